package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func lsCommand(env *Env) *cobra.Command {
	var asJSON, watch, quiet bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list sandboxes, and which need attention",
		Long: "List your sandboxes, and what needs your attention. The column NEEDS is one\n" +
			"of:\n\n" +
			"  asks         a program waits for a line of input; asks:password and so on for " +
			"other input\n" +
			"  denied       the network blocked a connection; LAST shows which\n" +
			"  attention    a program that accepts input while it works, such as an agent, is " +
			"idle\n" +
			"  dead:STATUS  the shell ended with an exit code other than 0\n\n" +
			"~SESSION follows if the session is not main, +N if N more sessions need\n" +
			"attention.\n\n" +
			"--watch updates the list until ^C or q. Without a terminal it prints a line\n" +
			"per session, and one for each change; with --json an object. ls prints the\n" +
			"last known state, which may miss a question that nothing waited for. --watch\n" +
			"detects one within about two seconds.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			e := usage("ls: takes no name, it lists all sandboxes")
			e.Hint = fmt.Sprintf(
				"for one sandbox: sandboxd describe %s, or sandboxd sessions %[1]s",
				text.Line(args[0], 80))
			return e
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case quiet && (asJSON || watch):
				return usage("ls: --quiet prints only names: omit --json and --watch")
			case watch && (asJSON || env.Pty == nil || env.Pty.Term == "dumb"):
				return env.watchNeeds(cmd.Context(), asJSON)
			case watch:
				return env.watchTable(cmd.Context())
			}
			rows, err := env.rows(cmd.Context())
			if err != nil {
				return err
			}
			if quiet {
				for _, row := range rows {
					fmt.Fprintln(env.Stdout, row.Name)
				}
				return nil
			}
			if asJSON {
				for _, row := range rows {
					if err := env.printJSON(env.describeJSON(row.Info)); err != nil {
						return err
					}
				}
				return nil
			}
			if len(rows) == 0 {
				fmt.Fprintln(env.Stderr, noSandboxes)
				return nil
			}
			dirs := slices.ContainsFunc(rows, func(r row) bool { return r.Dir != "" })
			return table(env.Stdout, func(w io.Writer) {
				column := ""
				if dirs {
					column = "DIRECTORY\t"
				}
				fmt.Fprintln(w, "NAME\tSTATE\tNEEDS\tSINCE\tKEYBOARD\tIMAGE\tNETWORK\t"+
					"SESSIONS\tTTL\t"+column+"LAST")
				for _, row := range rows {
					if dirs {
						column = dash(text.Line(row.Dir, 80)) + "\t"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s%s\n", row.Name,
						row.State, dash(row.label()), gateway.Ago(row.since()),
						dash(row.need.Keyboard),
						text.Line(row.ShortImage(), 40), row.Network, len(row.Sessions),
						dash(ttlCell(row.Info)), column, dash(text.Line(row.need.LastLine, 60)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only names, one per line")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep the list up to date until ^C or q")
	return cmd
}

const noSandboxes = "no sandboxes; create one: sandboxd new demo"

// row is a sandbox in a list, with the most urgent of its sessions, or the default one if none
// needs attention.
type row struct {
	lifecycle.Info
	need attention.Need
	more int // other sessions that need attention
}

// rows returns the caller's sandboxes.
func (env *Env) rows(ctx context.Context) ([]row, error) {
	infos, err := env.Hub.List(ctx, env.Principal)
	if err != nil {
		return nil, err
	}
	all, err := env.Hub.Sessions.Attention(ctx, env.Principal, "")
	if err != nil {
		return nil, err
	}
	rows := make([]row, 0, len(infos))
	for _, info := range infos {
		r := row{Info: info}
		for _, n := range all {
			switch {
			case n.Sandbox != info.Name:
			case n.Needs == attention.None:
				if r.need.Needs == attention.None && n.Session == wire.DefaultSession {
					r.need = n
				}
			case r.need.Needs == attention.None:
				r.need = n
			default:
				r.more++
				if before(n, r.need) {
					r.need = n
				}
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// urgency orders the kinds of attention: lower is more urgent.
func urgency(k attention.Kind) int {
	if k == attention.None {
		return len(attention.Kinds())
	}
	return slices.Index(attention.Kinds(), k)
}

// before reports whether a is more urgent than b. Of the same kind, the older is more urgent.
func before(a, b attention.Need) bool {
	return cmp.Or(urgency(a.Needs)-urgency(b.Needs), a.Since.Compare(b.Since)) < 0
}

// label is the cell in the column NEEDS. It has no spaces, so that awk reads it as one field.
func (r row) label() string {
	if r.need.Needs == attention.None {
		return ""
	}
	s := r.need.Label()
	if r.need.Session != wire.DefaultSession {
		s += "~" + r.need.Session
	}
	if r.more > 0 {
		s += fmt.Sprintf("+%d", r.more)
	}
	return s
}

// since is when the sandbox began to need attention, or came into its state.
func (r row) since() time.Time {
	if r.need.Needs != attention.None {
		return r.need.Since
	}
	return r.Since
}

// needJSON is a line of ls --watch --json.
type needJSON struct {
	attention.Need
	SSHCommand string `json:"ssh_command"`
}

// watchNeeds prints a line per session, and then one for each change, until the caller disconnects
// or interrupts it.
func (env *Env) watchNeeds(ctx context.Context, asJSON bool) error {
	ctx, done := env.interruptible(ctx)
	defer done()
	watch := env.Hub.Sessions.WatchAttention(env.Principal)
	defer watch.Close()
	for {
		changed, err := watch.Next(ctx)
		if err != nil {
			return ended(ctx, err)
		}
		for _, n := range changed {
			if asJSON {
				err = env.printJSON(needJSON{n, env.Gateway.SSHCommand(n.Target().String())})
			} else {
				_, err = fmt.Fprintln(env.Stdout, needLine(n))
			}
			if err != nil {
				return err
			}
		}
	}
}

// needLine is a line of ls --watch without a terminal.
func needLine(n attention.Need) string {
	phase := string(n.Phase)
	if n.Gone {
		phase = "gone"
	}
	line := fmt.Sprintf("%s  %-20s %-12s %-14s %-14s %s", time.Now().Format(time.TimeOnly),
		n.Target(), text.Line(phase, 12), dash(n.Label()), dash(n.Keyboard),
		text.Line(n.LastLine, 100))
	return strings.TrimRight(line, " ")
}

var errInterrupted = errors.New("interrupted")

// interruptible returns a ctx that also ends at the caller's ^C. The caller calls the function.
func (env *Env) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-env.Interrupts:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); wg.Wait() }
}

// ended returns the error of a command that runs until its caller stops it.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(ctx), context.Canceled):
		return lifecycle.ErrClosed // the caller is gone, or the daemon stops
	}
	return exitError(wire.ExitInterrupt)
}
