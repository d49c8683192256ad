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
		Short: "list sandboxes, and which need a person",
		Long: "List sandboxes. NEEDS says what their sessions need a person for: asks (waits for input; asks:password and so on\n" +
			"where it is not a line), denied (a connection was refused; LAST says which), attention (a program that listens beside\n" +
			"its work has come to rest), dead:STATUS (the shell ended, and not with 0). ~SESSION follows where it is not session\n" +
			"main, +N where N more need something.\n\n" +
			"With --watch the list follows what happens, until ^C or q. Without a terminal it is a line for each session, and one\n" +
			"for each change of it; with --json an object. A plain ls knows the last known state: a program may have begun to ask\n" +
			"since while nobody waited for it. With --watch that is known within a second or two.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			e := usage("ls: it lists all sandboxes and takes no name")
			e.Hint = fmt.Sprintf("sandboxd describe %s is about one, sandboxd sessions %[1]s lists what runs in it", text.Line(args[0], 80))
			return e
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case quiet && (asJSON || watch):
				return usage("ls: --quiet prints names alone: leave out --json and --watch")
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
				fmt.Fprintln(w, "NAME\tSTATE\tNEEDS\tSINCE\tKEYBOARD\tIMAGE\tNETWORK\tSESSIONS\tTTL\t"+column+"LAST")
				for _, row := range rows {
					if dirs {
						column = dash(text.Line(row.Dir, 80)) + "\t"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s%s\n", row.Name, row.State, dash(row.label()), gateway.Ago(row.since()), dash(row.need.Keyboard),
						text.Line(row.ShortImage(), 40), row.Network, len(row.Sessions), dash(ttlCell(row.Info)), column, dash(text.Line(row.need.LastLine, 60)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names alone, one per line")
	cmd.Flags().BoolVar(&watch, "watch", false, "follow what happens")
	return cmd
}

const noSandboxes = "no sandboxes; make one: sandboxd new demo"

// row is a sandbox in a list, with the session that is shown of it: the one that needs somebody most, else the default one.
type row struct {
	lifecycle.Info
	need attention.Need
	more int // other sessions that need something
}

// rows are the caller's sandboxes.
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

// urgency is the order in which needs are shown.
func urgency(k attention.Kind) int {
	if k == attention.None {
		return len(attention.Kinds())
	}
	return slices.Index(attention.Kinds(), k)
}

// before reports whether a is to be shown rather than b: what somebody waits for, the longest first.
func before(a, b attention.Need) bool {
	return cmp.Or(urgency(a.Needs)-urgency(b.Needs), a.Since.Compare(b.Since)) < 0
}

// label is what the sandbox needs, as NEEDS shows it: one word, also for awk.
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

// since is since when it needs that, or is in its state.
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

// watchNeeds prints what every session needs, and then each change, until the caller goes or interrupts it.
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

// needLine is a change for people without a terminal.
func needLine(n attention.Need) string {
	phase := string(n.Phase)
	if n.Gone {
		phase = "gone"
	}
	line := fmt.Sprintf("%s  %-20s %-12s %-14s %-14s %s", time.Now().Format(time.TimeOnly), n.Target(), text.Line(phase, 12), dash(n.Label()), dash(n.Keyboard), text.Line(n.LastLine, 100))
	return strings.TrimRight(line, " ")
}

var errInterrupted = errors.New("interrupted")

// interruptible ends ctx also by the caller's ^C.
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

// ended is how a command ends that goes on until its caller has enough.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(ctx), context.Canceled):
		return lifecycle.ErrClosed // nobody else is left to be told
	}
	return exitError(wire.ExitInterrupt)
}
