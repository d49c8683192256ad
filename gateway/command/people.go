package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func peopleCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{
		sessionsCommand(env),
		takeCommand(env),
		giveCommand(env),
		privateCommand(env),
		watchCommand(env),
		kickCommand(env),
		shareCommand(env),
		unshareCommand(env),
		tokenCommand(env),
		pageCommand(env),
	}
}

// sessionJSON is a line of sessions with where it is.
type sessionJSON struct {
	Sandbox string `json:"sandbox"`
	wire.SessionInfo
	Needs      attention.Kind `json:"needs"`
	Since      time.Time      `json:"since"`
	LastLine   string         `json:"last_line"`
	SSHCommand string         `json:"ssh_command"`
}

func sessionsCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions [NAME[~SESSION]]",
		Short: "list sessions, their state and who is attached",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var names []string
			only := ""
			if len(args) == 1 {
				t, err := wire.ParseTarget(args[0])
				if err != nil {
					return err
				}
				if names = []string{t.Sandbox}; strings.Contains(args[0], "~") {
					only = t.Session
				}
			} else {
				all, err := env.Hub.List(cmd.Context(), env.Principal)
				if err != nil {
					return err
				}
				for _, info := range all {
					if info.State == "running" {
						names = append(names, info.Name)
					}
				}
			}
			var rows []sessionJSON
			for _, name := range names {
				sessions, err := env.Hub.Sessions.List(cmd.Context(), env.Principal, name)
				if err != nil {
					return err
				}
				needs, err := env.Hub.Sessions.Attention(cmd.Context(), env.Principal, name)
				if err != nil {
					return err
				}
				for _, s := range sessions {
					t := wire.Target{Sandbox: name, Session: s.Name}
					if only != "" && s.Name != only {
						continue
					}
					row := sessionJSON{Sandbox: name, SessionInfo: s, Since: time.UnixMilli(s.State.SinceUnix), SSHCommand: env.Gateway.SSHCommand(t.String())}
					for _, n := range needs {
						if n.Session == s.Name {
							row.Needs, row.Since, row.LastLine = n.Needs, n.Since, n.LastLine
						}
					}
					rows = append(rows, row)
				}
			}
			if only != "" && len(rows) == 0 {
				e := wire.Errorf(wire.CodeNotFound, "%s has no session %s", names[0], only)
				e.Hint = "sandboxd sessions " + names[0] + " lists them"
				return e
			}
			if asJSON {
				for _, row := range rows {
					if err := env.printJSON(row); err != nil {
						return err
					}
				}
				return nil
			}
			return table(env.Stdout, func(w io.Writer) {
				fmt.Fprintln(w, "SESSION\tSTATE\tNEEDS\tKEYBOARD\tSIZE\tPARTIES\tLAST")
				for _, row := range rows {
					t := wire.Target{Sandbox: row.Sandbox, Session: row.Name}
					var parties []string
					for _, p := range row.Parties {
						parties = append(parties, p.String())
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%dx%d\t%s\t%s\n", t, row.State.Phase, dash(string(row.Needs)), dash(row.Keyboard), row.Cols, row.Rows,
						dash(strings.Join(parties, " ")), dash(text.Line(row.State.LastLine, 60)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line")
	return cmd
}

// actsOn says of a command on which of the caller's parties it acts.
const actsOn = ".\n\nIt acts on your attached person if there is one, else on your agent: the party that your calls of run, type and\n" +
	"keys share."

func takeCommand(env *Env) *cobra.Command {
	var ask bool
	cmd := keyboardCommand(env, "take", "take the keyboard of a session", func(ctx context.Context, a *attach.Attachment) (holder, asked string, err error) {
		if ask {
			asked, err = a.Ask(ctx)
		} else {
			err = a.Take(ctx)
		}
		return cmp.Or(asked, a.Party().String()), asked, err
	})
	cmd.Long += " A person's keyboard is taken by the sandbox's owner alone, from those with whom it is shared; with --ask\n" +
		"the one who holds it is asked for it, and you have it when it is given."
	cmd.Flags().BoolVar(&ask, "ask", false, "ask a person for it from whom it cannot be taken")
	return cmd
}

func giveCommand(env *Env) *cobra.Command {
	var no bool
	cmd := keyboardCommand(env, "give", "give back the keyboard of a session", func(ctx context.Context, a *attach.Attachment) (holder, asked string, err error) {
		if no {
			err = a.Keep(ctx)
		} else {
			err = a.Give(ctx)
		}
		return a.Live().Keyboard(), "", err
	})
	cmd.Flags().BoolVar(&no, "no", false, "keep it, and tell whoever has asked for it")
	return cmd
}

// keyboardCommand makes a command that acts on the keyboard as the caller's own party. act returns
// who holds it then, and who was asked for it.
func keyboardCommand(env *Env, verb, short string, act func(context.Context, *attach.Attachment) (holder, asked string, err error)) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   verb + " NAME[~SESSION]",
		Short: short,
		Long:  strings.ToUpper(short[:1]) + short[1:] + actsOn,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			party, err := env.Hub.Sessions.Own(cmd.Context(), env.Principal, t)
			if err != nil {
				return err
			}
			holder, asked, err := act(cmd.Context(), party)
			if err != nil {
				return err
			}
			if asJSON {
				row := map[string]string{"sandbox": t.Sandbox, "session": t.Session, "keyboard": holder}
				if asked != "" {
					row["asked"] = asked
				}
				return env.printJSON(row)
			}
			switch {
			case asked != "":
				fmt.Fprintf(env.Stdout, "%s was asked for the keyboard of %s\n", asked, t)
				return nil
			case holder == "":
				holder = "free"
			}
			fmt.Fprintf(env.Stdout, "keyboard of %s: %s\n", t, holder)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func privateCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "private NAME[~SESSION] on|off",
		Short: "hide your terminal from others and from the record",
		Long: "Keep what your terminal shows from everybody else, and from the record, until the keyboard is given back.\n\n" +
			"It acts on your attached person. Others see the screen as it was; agents and the record get a gap, marked\n" +
			"private. When it ends, what it left on the screen is erased. The programs in the sandbox are not affected: what\n" +
			"they keep, such as a shell its history, they keep.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := wire.ParseTarget(args[0])
			if err != nil {
				return err
			}
			if args[1] != "on" && args[1] != "off" {
				return usage("private: %q is neither on nor off", args[1])
			}
			on := args[1] == "on"
			if err := env.Hub.Sessions.Private(cmd.Context(), env.Principal, t, on); err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]any{"sandbox": t.Sandbox, "session": t.Session, "private": on})
			}
			if args[1] == "on" {
				fmt.Fprintf(env.Stdout, "%s is private until the keyboard is given back\n", t)
			} else {
				fmt.Fprintf(env.Stdout, "%s is no longer private\n", t)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func shareCommand(env *Env) *cobra.Command {
	var drive, asJSON bool
	cmd := &cobra.Command{
		Use:   "share NAME PRINCIPAL",
		Short: "let another user watch a sandbox, or work in it",
		Long: "Let another principal watch a sandbox's sessions and read its records or, with --drive, work in it: terminals,\n" +
			"commands, files and forwards. Its life stays yours: rm, stop, start, rescue, kick, share. A key with role=\"watch\"\n" +
			"watches, whatever is shared with its principal. Who cannot log in is refused; who can by a certificate alone is\n" +
			"taken at the name, with a word on standard error.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			rights := wire.RightWatch
			if drive {
				rights = wire.RightDrive
			}
			if err := env.Hub.Share(cmd.Context(), env.Principal, args[0], args[1], rights); err != nil {
				return err
			}
			if key, _ := env.Hub.LogsIn(args[1]); !key {
				fmt.Fprintf(env.Stderr, "sandboxd: no key of %s is listed: only a certificate with that name can log in so\n", args[1])
			}
			if asJSON {
				return env.printJSON(map[string]any{"name": args[0], "principal": args[1], "rights": rights})
			}
			fmt.Fprintf(env.Stdout, "%s may %s %s\n", args[1], rights, args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&drive, "drive", false, "let them work in it, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func unshareCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "unshare NAME PRINCIPAL",
		Short: "stop sharing a sandbox with a user, and disconnect them",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			was, err := env.Hub.Unshare(cmd.Context(), env.Principal, args[0], args[1])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]any{"name": args[0], "principal": args[1], "done": was})
			}
			if !was {
				fmt.Fprintf(env.Stdout, "%s was not shared with %s\n", args[0], args[1])
				return nil
			}
			fmt.Fprintf(env.Stdout, "%s is no longer shared with %s\n", args[0], args[1])
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// Watches reports whether a command line only asks to watch a session, and which. The door that has the caller's terminal
// draws it; a line that is wrong is for Run to complain about.
func Watches(args []string) (t wire.Target, ok bool) {
	if len(args) == 0 || args[0] != "watch" {
		return t, false
	}
	root := Tree(&Env{watch: func(asked wire.Target) { t, ok = asked, true }})
	root.SetArgs(args)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	if err := root.Execute(); err != nil {
		return t, false
	}
	return t, ok
}

func watchCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch NAME[~SESSION]",
		Short: "watch a session, read-only",
		Long: "Watch a session; nothing you type reaches it. With --json it needs no terminal: it prints the line of sessions\n" +
			"now and whenever something in it but the output changes, until the session ends.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			switch {
			case asJSON && env.watch == nil:
				return env.watchJSON(cmd.Context(), t)
			case env.watch != nil:
				if !asJSON {
					env.watch(t)
				}
				return nil
			}
			return &wire.Error{Code: wire.CodeUnavailable, Message: "watch needs a terminal", Hint: "use ssh -t, or read the log: sandboxd log " + t.String()}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per change")
	return cmd
}

// watchJSON prints a session's line when it changes.
func (env *Env) watchJSON(ctx context.Context, t wire.Target) error {
	live, err := env.Hub.Sessions.Live(ctx, env.Principal, t)
	if err != nil {
		return err
	}
	var last []byte
	for gen := uint64(0); ; {
		info := live.Info()
		if info.Cols > 0 {
			same := info
			same.Offset, same.State.QuietMS, same.State.Offset = 0, 0, 0 // which output changes
			key, err := json.Marshal(same)
			if err != nil {
				return err
			}
			if !bytes.Equal(key, last) {
				last = key
				if err := env.printJSON(sessionJSON{Sandbox: t.Sandbox, SessionInfo: info, Needs: live.Brief().Needs,
					Since: time.UnixMilli(info.State.SinceUnix), LastLine: info.State.LastLine, SSHCommand: env.Gateway.SSHCommand(t.String())}); err != nil {
					return err
				}
			}
		}
		next, err := live.Wait(ctx, gen)
		if err == nil {
			_, err = env.Hub.Get(ctx, env.Principal, t.Sandbox) // it may be shared no longer
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		gen = next
	}
}

func kickCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "kick NAME[~SESSION] PARTY",
		Short: "disconnect a party from a session",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := wire.ParseTarget(args[0])
			if err != nil {
				return err
			}
			n, err := env.Hub.Sessions.Disconnect(cmd.Context(), env.Principal, t, args[1])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]any{"sandbox": t.Sandbox, "session": t.Session, "party": args[1], "kicked": n})
			}
			fmt.Fprintf(env.Stdout, "%s of %s ended\n", plural(n, "attachment"), text.Line(args[1], 80))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
