package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// checkWithin bounds how long the check of a sandbox runs.
const checkWithin = 10 * time.Minute

// all creates several sandboxes at once, each with the same prompt. An error of one leaves the
// others.
func (l *launch) all(ctx context.Context) error {
	names := l.names()
	failures := make([]error, len(names))
	var launches sync.WaitGroup
	for i, name := range names {
		launches.Go(func() { failures[i] = l.one(ctx, name) })
	}
	launches.Wait()
	sshHosts{l.cli}.update(ctx)
	var missing, idle []string
	for i, err := range failures {
		if err == nil {
			continue
		}
		if _, runs := errors.AsType[notEntered](err); runs {
			idle = append(idle, names[i])
		} else {
			missing = append(missing, names[i])
		}
		fmt.Fprintf(os.Stderr, "note: %s: %s\n", names[i], text.Line(err.Error(), 400))
	}
	if len(missing) < len(names) && !l.asJSON {
		fmt.Printf("  to see how they go:   sandboxd agent ls\n"+
			"  to compare them:      sandboxd agent compare %[1]s\n"+
			"  to keep one:          sandboxd agent keep %[1]s-N\n", l.name)
	}
	var said []string
	if len(missing) > 0 {
		said = append(said, "not created: "+strings.Join(missing, ", "))
	}
	if len(idle) > 0 {
		said = append(said, "without the prompt: "+strings.Join(idle, ", "))
	}
	if len(said) == 0 {
		return nil
	}
	return wire.Errorf(wire.CodeUnavailable, "agent: %s", strings.Join(said, "; "))
}

// candidate is a sandbox of a group, as agent compare prints it.
type candidate struct {
	Name  string             `json:"name"`
	Agent string             `json:"agent"`
	State agent.SandboxState `json:"state"`
	Check *checkResult       `json:"check"` // nil if there is no check, or it did not run
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

// checkResult is how a check ended.
type checkResult struct {
	ExitCode int    `json:"exit_code"`
	LastLine string `json:"last_line"` // of its output
}

// String returns the result in a cell of a table.
func (r *checkResult) String() string {
	switch {
	case r == nil:
		return "-"
	case r.ExitCode == 0:
		return "passed"
	}
	return fmt.Sprintf("failed (exit code %d)", r.ExitCode)
}

func (c repositories) compareCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare NAME",
		Short: "compare the work of the agents that --count started",
		Long: "Fetch the commits of the sandboxes NAME-1, NAME-2 and so on, run the command of\n" +
			"agent --check in each clone, and print the results side by side. The check runs\n" +
			"in the directory in which the agent works.",
		Example: "  sandboxd agent claude \"fix it\" -n fix --count 3 --check 'make test'\n" +
			"  sandboxd agent compare fix",
		Args: oneName("agent compare"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				all, err := c.candidates(ctx, args[0])
				if err != nil {
					return prefixed("agent compare: ", err)
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
					return context.Cause(ctx)
				}
				if asJSON {
					for _, each := range all {
						if err := text.WriteJSON(os.Stdout, each); err != nil {
							return err
						}
					}
					return nil
				}
				out := shownOn(os.Stdout)
				defer out.Close()
				return printCandidates(out, all)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

// candidates returns the sandboxes of a group, in the order of their numbers.
func (c repositories) candidates(ctx context.Context, group string) ([]*candidate, error) {
	sandboxes, err := c.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	var all []*candidate
	for _, s := range sandboxes {
		record, err := c.clones().Find(s.ID)
		if err != nil {
			return nil, err
		}
		if record != nil && record.Group == group {
			all = append(all, &candidate{Name: s.Name, Agent: record.Agent, State: s.State,
				Branch: record.Branch, Files: []clone.File{}, info: s, record: record})
		}
	}
	if len(all) == 0 {
		return nil, &wire.Error{Code: wire.CodeNotFound,
			Message: fmt.Sprintf("no sandboxes %s-1, %[1]s-2 and so on of sandboxd agent --count",
				group),
			Hint: "to list your agents: sandboxd agent ls"}
	}
	slices.SortFunc(all, func(a, b *candidate) int { // the names differ in their numbers alone
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// fetchCandidate fetches the commits, and fills in what they changed.
func (c repositories) fetchCandidate(ctx context.Context, to *candidate) {
	fetched, err := c.fetch(ctx, to.record, to.info, clone.MaxFetch)
	if err != nil {
		to.Error = text.Line(err.Error(), 400)
		return
	}
	// The agent may have made a branch of its own.
	to.Branch = cmp.Or(fetched.Branch(), to.record.Branch)
	d, err := clone.NewDiff(ctx, to.record.Repository, to.Name, to.Branch, false)
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
func (c repositories) runCheck(ctx context.Context, to *candidate) {
	if to.record.Check == "" || to.State != agent.SandboxRunning {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkWithin,
		fmt.Errorf("the check does not end within %v", checkWithin))
	defer cancel()
	out := text.NewWriter(64 << 10)
	// In one stream, the last line is the last one.
	line := "exec 2>&1; cd -- " + shellquote.Join(to.record.Dir) + " && exec sh -c " +
		shellquote.Join(to.record.Check)
	var exit agent.Exit
	client, err := c.dial(ctx, to.Name, false)
	if err == nil {
		defer client.Close()
		exit, err = client.Exec(ctx, agent.Cmd{Stdout: out,
			Command: "exec sh -c " + shellquote.Join(line)})
	}
	if err != nil {
		to.Error = strings.TrimPrefix(to.Error+"; ", "; ") +
			text.Line("check: "+caused(ctx, err).Error(), 400)
		return
	}
	said := strings.TrimSpace(out.String())
	to.Check = &checkResult{ExitCode: exit.Code,
		LastLine: text.Line(said[strings.LastIndexByte(said, '\n')+1:], 200)}
}

// maxFiles is how many files compare prints for people.
const maxFiles = 200

// printCandidates prints the totals of each sandbox, and what each changed in each file.
func printCandidates(out io.Writer, all []*candidate) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tCHECK\tCOMMITS\tCHANGES")
	header := []string{"FILE"}
	cells := make(map[string][]string) // by path; a cell for each sandbox
	for i, each := range all {
		changes := sum(each.Files).String()
		if each.Uncommitted {
			changes += ", and uncommitted ones"
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%d\t%s\n", each.Name, each.State, each.Check, each.Commits,
			changes)
		header = append(header, each.Name)
		for _, f := range each.Files {
			if cells[f.Path] == nil {
				cells[f.Path] = slices.Repeat([]string{"-"}, len(all))
			}
			cells[f.Path][i] = fmt.Sprintf("+%d −%d", f.Added, f.Deleted)
			if f.Binary {
				cells[f.Path][i] = "binary"
			}
		}
	}
	files := slices.Sorted(maps.Keys(cells))
	if len(files) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(header, "\t"))
	}
	for _, path := range files[:min(len(files), maxFiles)] {
		fmt.Fprintf(w, "%s\t%s\n", text.Line(path, 60), strings.Join(cells[path], "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if n := len(files) - maxFiles; n > 0 {
		fmt.Fprintf(os.Stderr, "note: %s more: see sandboxd diff NAME --stat, or --json\n",
			plural(n, "file"))
	}
	for _, each := range all {
		if each.Branch != each.record.Branch {
			fmt.Fprintf(os.Stderr, "note: %s: on branch %s\n", each.Name,
				text.Line(each.Branch, 100))
		}
		if each.Error != "" {
			fmt.Fprintf(os.Stderr, "note: %s: %s\n", each.Name, each.Error)
		}
		if each.Check != nil && each.Check.ExitCode != 0 && each.Check.LastLine != "" {
			fmt.Fprintf(os.Stderr, "note: %s: check: %s\n", each.Name, each.Check.LastLine)
		}
	}
	return nil
}

func (c repositories) keepCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "keep NAME",
		Short: "keep one sandbox of a group and remove the others",
		Long: "Fetch the commits of one of the sandboxes that agent --count started, and\n" +
			"remove the others of its group. Their commits are fetched before.",
		Example: "  sandboxd agent keep fix-3",
		Args:    oneName("agent keep"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				err := c.keep(ctx, args[0], force)
				if _, decided := errors.AsType[exitCode](err); err != nil && !decided {
					err = prefixed("agent keep: ", err)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

// keep fetches the sandbox name and removes the others of its group.
func (c repositories) keep(ctx context.Context, name string, force bool) error {
	info, err := c.sandboxNamed(ctx, name)
	if err != nil {
		return err
	}
	record, err := c.clones().Find(info.ID)
	if err != nil {
		return err
	}
	if record == nil || record.Group == "" {
		return &wire.Error{Code: wire.CodeUsage,
			Message: "sandbox " + name + " is in no group of sandboxd agent --count",
			Hint:    "to get its commits: sandboxd fetch " + name}
	}
	all, err := c.candidates(ctx, record.Group)
	if err != nil {
		return err
	}
	var others []agent.Sandbox
	var names []string
	for _, each := range all {
		if each.Name != name {
			others, names = append(others, each.info), append(names, each.Name)
		}
	}
	fetched, err := c.fetch(ctx, record, info, clone.MaxFetch)
	if err != nil {
		return err
	}
	printFetched(os.Stdout, fetched)
	if len(others) == 0 {
		fmt.Printf("%s: no other sandbox of its group is left\n", name)
		return c.leaveGroup(record)
	}
	if !force {
		if !isTerminal(os.Stdin) || !isTerminal(os.Stdout) {
			return usage("removes "+strings.Join(names, ", ")+", and cannot ask without a terminal",
				"add --force")
		}
		if err := confirm("Remove " + strings.Join(names, ", ") +
			" with their files and recordings?"); err != nil {
			return err
		}
		if others, err = c.still(ctx, others); err != nil {
			return err
		}
	}
	err = c.fetchBefore(ctx, removeOptions{force: true,
		hint: "to remove it without them: sandboxd rm --discard NAME"}, others)
	if err != nil {
		return err
	}
	// Another sandbox may have a name by now.
	left, err := c.still(ctx, others)
	if err != nil {
		return err
	}
	names = nil
	for _, s := range left {
		names = append(names, s.Name)
	}
	if len(names) > 0 {
		_, err = c.command(ctx, nil, append([]string{"rm", "--force", "--json", "--"}, names...)...)
	}
	c.forget(ctx, others)
	sshHosts(c).update(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("removed %s\n", strings.Join(names, ", "))
	return c.leaveGroup(record)
}

// leaveGroup makes a later group of the same name leave the sandbox alone.
func (c repositories) leaveGroup(record *clone.Clone) error {
	record.Group = ""
	return c.clones().Add(record)
}

// still returns those of some that exist, with their current state.
func (c repositories) still(ctx context.Context, some []agent.Sandbox) ([]agent.Sandbox, error) {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s agent.Sandbox) bool {
		return !slices.ContainsFunc(some, func(o agent.Sandbox) bool { return o.ID == s.ID })
	}), nil
}
