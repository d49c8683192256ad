package coding

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// CheckWithin bounds how long the check of a sandbox runs.
const CheckWithin = 10 * time.Minute

// Candidate is a sandbox of a group, with its work.
type Candidate struct {
	Name  string             `json:"name"`
	Agent string             `json:"agent"`
	State agent.SandboxState `json:"state"`
	Check *clone.CheckResult `json:"check"` // nil if there is no check, or it did not run
	// commits of Branch since the base
	Commits int `json:"commits"`
	// it also has changes that are not committed
	Uncommitted bool         `json:"uncommitted"`
	Files       []clone.File `json:"files"`           // that its commits changed
	Branch      string       `json:"branch"`          // that is checked out in the sandbox
	Error       string       `json:"error,omitempty"` // why it could not be fetched or checked

	info   agent.Sandbox
	record *clone.Clone
}

// Moved reports whether the program works on another branch than the one that it began with.
func (c *Candidate) Moved() bool { return c.Branch != c.record.Branch }

// group returns the sandboxes of a group, in the order of their numbers.
func (c *Client) group(ctx context.Context, group string) ([]*Candidate, error) {
	sandboxes, err := c.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	var all []*Candidate
	for _, s := range sandboxes {
		record, err := c.Clones.Find(s.ID)
		if err != nil {
			return nil, err
		}
		if record != nil && record.Group == group {
			all = append(all, &Candidate{Name: s.Name, Agent: record.Agent, State: s.State,
				Branch: record.Branch, Files: []clone.File{}, info: s, record: record})
		}
	}
	if len(all) == 0 {
		return nil, noGroup(group)
	}
	slices.SortFunc(all, func(a, b *Candidate) int { // the names differ in their numbers alone
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

func noGroup(name string) *wire.Error {
	return &wire.Error{Code: wire.CodeNotFound,
		Message: fmt.Sprintf("no sandboxes %s-1, %[1]s-2 and so on of sandboxd agent --count", name),
		Hint:    "to list your agents: sandboxd agent ls"}
}

// Compare fetches the commits of the sandboxes of a group, runs the check of each that is running,
// and returns their work in the order of their numbers. A group without sandboxes is an error; what
// fails for one sandbox is its Error.
func (c *Client) Compare(ctx context.Context, group string) ([]*Candidate, error) {
	all, err := c.group(ctx, group)
	if err != nil {
		return nil, err
	}
	var asked sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU()) // for checks
	for _, each := range all {
		asked.Go(func() {
			c.fetchCandidate(ctx, each)
			slots <- struct{}{}
			c.runCheck(ctx, each)
			<-slots
		})
	}
	asked.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return all, nil
}

// fetchCandidate fetches the commits, and fills in what they changed.
func (c *Client) fetchCandidate(ctx context.Context, to *Candidate) {
	fetched, err := c.Fetch(ctx, to.record, to.info, clone.MaxFetch)
	if err != nil {
		to.Error = text.Line(err.Error(), 400)
		return
	}
	// The agent may have made a branch of its own.
	to.Branch = cmp.Or(fetched.Branch(), to.record.Branch)
	d, err := to.record.Diff(ctx, to.Branch)
	if err != nil { // it has removed its branch
		to.Error = text.Line(err.Error(), 400)
		return
	}
	to.Files, to.Uncommitted = d.Files, d.Wip != ""
	for _, r := range fetched.Refs {
		if r.Name == d.Ref {
			to.Commits = r.Commits
		}
	}
}

// runCheck runs the check in a sandbox that is running, and fills in the result.
func (c *Client) runCheck(ctx context.Context, to *Candidate) {
	if to.record.Check == "" || to.State != agent.SandboxRunning {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, CheckWithin,
		fmt.Errorf("the check does not end within %v", CheckWithin))
	defer cancel()
	out := text.NewWriter(64 << 10)
	// In one stream, the last line is the last one.
	line := "exec 2>&1; cd -- " + text.Quote(to.record.Dir) + " && exec sh -c " +
		text.Quote(to.record.Check)
	var exit agent.Exit
	client, err := c.DialSandbox(ctx, to.Name)
	if err == nil {
		defer client.Close()
		exit, err = client.Exec(ctx, agent.Cmd{Stdout: out,
			Command: "exec sh -c " + text.Quote(line)})
	}
	if err != nil {
		to.Error = strings.TrimPrefix(to.Error+"; ", "; ") +
			text.Line("check: "+caused(ctx, err).Error(), 400)
		return
	}
	said := strings.TrimSpace(out.String())
	to.Check = &clone.CheckResult{ExitCode: exit.Code, At: time.Now().UTC().Truncate(time.Second),
		LastLine: text.Line(said[strings.LastIndexByte(said, '\n')+1:], 200)}
	c.noteCheck(to)
}

// noteCheck records the result of a check. The record may have changed, or be removed, while the
// check ran.
func (c *Client) noteCheck(of *Candidate) {
	record, err := c.Clones.Find(of.info.ID)
	if err == nil && record != nil {
		record.Checked = of.Check
		err = c.Clones.Add(record)
	}
	if err != nil {
		c.notef("%s: result of the check: %v", of.Name, err)
	}
}

// Keep is a sandbox that stays, and the others of its group.
type Keep struct {
	Fetched *clone.Fetched  // of the sandbox that stays
	Others  []agent.Sandbox // that Remove removes

	client *Client
	record *clone.Clone
}

// Keep fetches the commits of the sandbox name of a group. It removes no sandbox.
func (c *Client) Keep(ctx context.Context, name string) (*Keep, error) {
	info, err := c.Named(ctx, name)
	if err != nil {
		return nil, err
	}
	k := &Keep{client: c}
	if k.record, err = c.Clones.Find(info.ID); err != nil {
		return nil, err
	}
	if k.record == nil || k.record.Group == "" {
		return nil, &wire.Error{Code: wire.CodeUsage,
			Message: "sandbox " + name + " is in no group of sandboxd agent --count",
			Hint:    "to get its commits: sandboxd fetch " + name}
	}
	all, err := c.group(ctx, k.record.Group)
	if err != nil {
		return nil, err
	}
	for _, each := range all {
		if each.info.ID != info.ID {
			k.Others = append(k.Others, each.info)
		}
	}
	k.Fetched, err = c.Fetch(ctx, k.record, info, clone.MaxFetch)
	return k, err
}

// Remove fetches the commits of the others, removes them, and ends the group. It returns what it
// fetched and the names of the sandboxes that it removed. If one cannot be fetched, it removes
// none.
func (k *Keep) Remove(ctx context.Context) (fetched []*clone.Fetched, names []string, err error) {
	c := k.client
	// They may be in other states since the user was asked.
	others, err := c.Existing(ctx, k.Others)
	if err != nil {
		return nil, nil, err
	}
	fetched, err = c.FetchBefore(ctx, Removal{Force: true,
		Hint: "to remove it without them: sandboxd rm --discard NAME"}, others)
	if err != nil {
		return fetched, nil, err
	}
	// Another sandbox may have a name by now.
	left, err := c.Existing(ctx, others)
	if err != nil {
		return fetched, nil, err
	}
	for _, s := range left {
		names = append(names, s.Name)
	}
	if len(names) > 0 {
		err = c.command(ctx, append([]string{"rm", "--force", "--json", "--"}, names...)...)
	}
	c.Forget(ctx, others)
	if err != nil {
		return fetched, nil, err
	}
	return fetched, names, k.end()
}

// end makes a later group of the same name leave the sandbox alone.
func (k *Keep) end() error {
	k.record.Group = ""
	return k.client.Clones.Add(k.record)
}
