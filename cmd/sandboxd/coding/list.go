package coding

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Values of Info.Attention, besides those of [agent.State].
const (
	AttentionLikely  = "likely" // of agent.State, too
	AttentionWaiting = "waiting"
	AttentionEnded   = "ended"
	AttentionUnknown = "unknown"
)

// Info is a sandbox with a coding agent.
type Info struct {
	Name  string             `json:"name"`
	Agent string             `json:"agent"`
	State agent.SandboxState `json:"state"`
	// Attention is waiting if the program waits for input, likely if it is idle, no if it works,
	// ended if it does not run, and unknown if the sandbox does not answer, or if the program has
	// no terminal.
	Attention  string `json:"attention"`
	Repository string `json:"repository"`
	Branch     string `json:"branch"`
	// what the last fetch has of the branch; nil without a fetch
	Diff     *Total `json:"diff"`
	LastLine string `json:"last_line"` // of the program's screen
	// how the check ended when Compare ran it last; nil if it did not run
	Check *clone.CheckResult `json:"check"`
	Group string             `json:"group"` // under which several began together, or empty
}

// Total sums up the changes of a branch.
type Total struct {
	Files   int `json:"files"`
	Added   int `json:"added"`   // lines
	Deleted int `json:"deleted"` // lines
}

// Sum sums up changes.
func Sum(files []clone.File) *Total {
	t := &Total{Files: len(files)}
	for _, f := range files {
		t.Added, t.Deleted = t.Added+f.Added, t.Deleted+f.Deleted
	}
	return t
}

// List returns the user's sandboxes with coding agents, sorted by name: those of group, or all if
// it is empty. It asks each program what it does. A group without sandboxes is an error of code
// not_found. A record that cannot be read is a note.
func (c *Client) List(ctx context.Context, group string) ([]Info, error) {
	g, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	sandboxes, err := g.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []*Info
	var asked sync.WaitGroup
	defer asked.Wait() // before the Gateway is closed
	for _, s := range sandboxes {
		record, err := c.Clones.Find(s.ID)
		if err != nil {
			c.notef("%s: %v", s.Name, err)
			continue
		}
		if record == nil || record.Agent == "" || group != "" && record.Group != group {
			continue
		}
		i := &Info{Name: s.Name, Agent: record.Agent, State: s.State,
			Attention: AttentionEnded, Repository: record.Repository, Branch: record.Branch,
			Check: record.Checked, Group: record.Group}
		if s.State == agent.SandboxPaused || s.State == agent.SandboxRunning && record.Prints {
			i.Attention = AttentionUnknown
		}
		all = append(all, i)
		asked.Go(func() { i.Diff = fetchedTotal(ctx, record) })
		running := func(session agent.Session) bool {
			return session.Name == Session && session.State.Phase != agent.PhaseDead
		}
		if s.State == agent.SandboxRunning && slices.ContainsFunc(s.Sessions, running) {
			asked.Go(func() { i.ask(ctx, g, cmp.Or(record.AgentFile, record.Agent), c.Own) })
		}
	}
	if group != "" && len(all) == 0 {
		return nil, noGroup(group)
	}
	asked.Wait()
	infos := make([]Info, len(all))
	for n, i := range all {
		infos[n] = *i
	}
	return infos, nil
}

// askWithin bounds how long List waits for a program to become idle. It waits ten times as long for
// each other answer.
const askWithin = time.Second

// ask fills in what the program does. The daemon's own state of a session may be old, because
// sandboxes do not monitor a session that no client watches. Without an answer, attention is
// unknown. description is the file or the name of the agent, and own the directory of the user's
// own agents.
func (i *Info) ask(ctx context.Context, g *agent.Gateway, description, own string) {
	i.Attention = AttentionUnknown
	ctx, cancel := context.WithTimeout(ctx, 10*askWithin)
	defer cancel()
	client, err := g.Dial(ctx, i.Name)
	if err != nil {
		return
	}
	defer client.Close()
	sh, err := client.Attach(ctx, agent.ShellOptions{Session: Session, NoNew: true})
	if err != nil {
		return
	}
	defer sh.Close()
	brief, stop := context.WithTimeout(ctx, askWithin)
	defer stop()
	res, err := sh.Wait(brief)
	if err != nil {
		return
	}
	switch res.Phase {
	case agent.PhaseDead:
		i.Attention = AttentionEnded
	case agent.PhaseWaiting:
		i.Attention = AttentionWaiting
	default:
		i.Attention = attention(res.Attention)
	}
	screen, err := sh.Screen(ctx)
	if err != nil {
		return
	}
	a, err := agents.Find(description, own)
	if err != nil {
		a = &agents.Agent{} // the file was removed
	}
	i.LastLine = text.Line(a.LastLine(screen.Text), 200)
}

// attention returns what a sandbox says of its program, if it is one of the values of Info.
func attention(said string) string {
	switch said {
	case AttentionLikely, "no":
		return said
	case "": // it does not listen
		return "no"
	}
	return AttentionUnknown
}

// fetchedTotal returns what the last fetch has of the branch of a clone, nil if there is nothing.
func fetchedTotal(ctx context.Context, r *clone.Clone) *Total {
	ctx, cancel := context.WithTimeout(ctx, 10*askWithin)
	defer cancel()
	d, err := r.Diff(ctx, r.Branch)
	if err != nil {
		return nil
	}
	return Sum(d.Files)
}
