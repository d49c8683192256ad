package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Values of coderInfo.Attention, besides those of agent.State.
const (
	attentionLikely  = "likely" // of agent.State, too
	attentionWaiting = "waiting"
	attentionEnded   = "ended"
	attentionUnknown = "unknown"
)

// coderInfo is a sandbox with a coding agent, as agent ls prints it.
type coderInfo struct {
	Name  string             `json:"name"`
	Agent string             `json:"agent"`
	State agent.SandboxState `json:"state"`
	// Attention is waiting if the program waits for input, likely if it is idle, no if it works,
	// ended if it does not run, and unknown if the sandbox does not answer.
	Attention  string `json:"attention"`
	Repository string `json:"repository"`
	Branch     string `json:"branch"`
	// what the last fetch has of the branch; nil without a fetch
	Diff     *diffTotal `json:"diff"`
	LastLine string     `json:"last_line"` // of the program's screen
}

// diffTotal sums up the changes of a branch.
type diffTotal struct {
	Files   int `json:"files"`
	Added   int `json:"added"`   // lines
	Deleted int `json:"deleted"` // lines
}

// String returns the total in a cell of a table.
func (d *diffTotal) String() string {
	if d == nil {
		return "-"
	}
	return fmt.Sprintf("%s, +%d −%d", plural(d.Files, "file"), d.Added, d.Deleted)
}

func (c repositories) agentListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the sandboxes with coding agents",
		Long: "List the sandboxes that sandboxd agent made on this machine: which agents need\n" +
			"attention, and what the last fetch has of their branches.",
		Example: "  sandboxd agent ls\n  sandboxd agent ls --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.coders(cmd.Context())
			if err != nil {
				return prefixed("agent ls: ", err)
			}
			if asJSON {
				for _, i := range all {
					if err := text.WriteJSON(os.Stdout, i); err != nil {
						return err
					}
				}
				return nil
			}
			out := shownOn(os.Stdout)
			defer out.Close()
			w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tAGENT\tSTATE\tATTENTION\tBRANCH\tFETCHED\tLAST LINE")
			for _, i := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, text.Line(i.Agent, 32),
					i.State, i.Attention, text.Line(i.Branch, 64), i.Diff,
					text.Line(i.LastLine, 60))
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

// coders returns the user's sandboxes with coding agents.
func (c repositories) coders(ctx context.Context) ([]coderInfo, error) {
	g, err := c.dialGateway(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	sandboxes, err := g.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []*coderInfo
	var asked sync.WaitGroup
	defer asked.Wait() // before the Gateway is closed
	for _, s := range sandboxes {
		record, err := c.clones().Find(s.ID)
		if err != nil {
			fmt.Fprintf(os.Stderr, "note: %s: %s\n", s.Name, text.Line(err.Error(), 200))
			continue
		}
		if record == nil || record.Agent == "" {
			continue
		}
		i := &coderInfo{Name: s.Name, Agent: record.Agent, State: s.State,
			Attention: attentionEnded, Repository: record.Repository, Branch: record.Branch}
		if s.State == agent.SandboxPaused {
			i.Attention = attentionUnknown
		}
		all = append(all, i)
		asked.Go(func() { i.Diff = fetchedTotal(ctx, record, i.Name) })
		running := func(session agent.Session) bool {
			return session.Name == coderSession && session.State.Phase != agent.PhaseDead
		}
		if s.State == agent.SandboxRunning && slices.ContainsFunc(s.Sessions, running) {
			asked.Go(func() { i.ask(ctx, g) })
		}
	}
	asked.Wait()
	infos := make([]coderInfo, len(all))
	for n, i := range all {
		infos[n] = *i
	}
	return infos, nil
}

// askWithin bounds how long agent ls waits for a program to become idle.
const askWithin = time.Second

// ask fills in what the program does. The daemon's own state of a session may be old, because
// sandboxes do not monitor a session that no client watches. Without an answer, attention is
// unknown.
func (i *coderInfo) ask(ctx context.Context, g *agent.Gateway) {
	i.Attention = attentionUnknown
	ctx, cancel := context.WithTimeout(ctx, 10*askWithin)
	defer cancel()
	client, err := g.Dial(ctx, i.Name)
	if err != nil {
		return
	}
	defer client.Close()
	sh, err := client.Attach(ctx, agent.ShellOptions{Session: coderSession, NoNew: true})
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
		i.Attention = attentionEnded
	case agent.PhaseWaiting:
		i.Attention = attentionWaiting
	default:
		i.Attention = res.Attention
	}
	screen, err := sh.Screen(ctx)
	if err != nil {
		return
	}
	a, err := agents.Find(i.Agent, ownAgents())
	if err != nil {
		a = &agents.Agent{} // described by a file of another directory
	}
	i.LastLine = text.Line(a.LastLine(screen.Text), 200)
}

// fetchedTotal returns what the last fetch has of the branch of a clone, nil if there is nothing.
func fetchedTotal(ctx context.Context, r *clone.Clone, name string) *diffTotal {
	d, err := clone.NewDiff(ctx, r.Repository, name, r.Branch, false)
	if err != nil {
		return nil
	}
	return sum(d.Files)
}

// sum sums up changes.
func sum(files []clone.File) *diffTotal {
	t := &diffTotal{Files: len(files)}
	for _, f := range files {
		t.Added, t.Deleted = t.Added+f.Added, t.Deleted+f.Deleted
	}
	return t
}
