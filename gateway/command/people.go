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

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/token"
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
		secretCommand(env),
		pageCommand(env),
	}
}

// sessionJSON is a line of sessions --json.
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
		Long: "List the sessions of a sandbox or, without NAME, of all your running\n" +
			"sandboxes: their state, what needs attention, who holds the keyboard, and the\n" +
			"attached parties.",
		Args: cobra.MaximumNArgs(1),
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
					row := sessionJSON{Sandbox: name, SessionInfo: s,
						Since:      time.UnixMilli(s.State.SinceUnix),
						SSHCommand: env.Gateway.SSHCommand(t.String())}
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
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%dx%d\t%s\t%s\n", t, row.State.Phase,
						dash(string(row.Needs)), dash(row.Keyboard), row.Cols, row.Rows,
						dash(strings.Join(parties, " ")), dash(text.Line(row.State.LastLine, 60)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line")
	return cmd
}

// actsOn tells for which of the caller's parties a command acts.
const actsOn = ".\n\n" +
	"It acts for your attached terminal if you have one, else for your agent: the\n" +
	"party that your run, type and keys commands share."

func takeCommand(env *Env) *cobra.Command {
	var ask bool
	cmd := keyboardCommand(env, "take", "take the keyboard of a session",
		func(ctx context.Context, a *attach.Attachment) (holder, asked string, err error) {
			if ask {
				asked, err = a.Ask(ctx)
			} else {
				err = a.Take(ctx)
			}
			return cmp.Or(asked, a.Party().String()), asked, err
		})
	cmd.Long += "\n\n" +
		"You can take it from an agent. Only the owner of the sandbox can take it from\n" +
		"another user. --ask requests it from that user instead: you get it when they\n" +
		"give it."
	cmd.Flags().BoolVar(&ask, "ask", false, "request the keyboard from the user who holds it")
	return cmd
}

func giveCommand(env *Env) *cobra.Command {
	var no bool
	cmd := keyboardCommand(env, "give", "give back the keyboard of a session",
		func(ctx context.Context, a *attach.Attachment) (holder, asked string, err error) {
			if no {
				err = a.Keep(ctx)
			} else {
				err = a.Give(ctx)
			}
			return a.Live().Keyboard(), "", err
		})
	cmd.Flags().BoolVar(&no, "no", false, "keep it, and reject requests for it")
	return cmd
}

// keyboardCommand returns a command that acts on the keyboard as the caller's own party. act
// returns the new holder, and the user that it was requested from.
func keyboardCommand(env *Env, verb, short string,
	act func(context.Context, *attach.Attachment) (holder, asked string,
		err error)) *cobra.Command {
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
				row := map[string]string{"sandbox": t.Sandbox, "session": t.Session,
					"keyboard": holder}
				if asked != "" {
					row["asked"] = asked
				}
				return env.printJSON(row)
			}
			switch {
			case asked != "":
				fmt.Fprintf(env.Stdout, "requested the keyboard of %[2]s from %[1]s\n", asked, t)
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
		Short: "hide your terminal from others and from the recording",
		Long: "Turn private mode on or off. While it is on, only your attached terminal shows\n" +
			"new output; others see the screen as it was. Agents and the recording get a\n" +
			"gap that is marked private. Private mode ends when you give back the keyboard,\n" +
			"and its output is erased from the screen.\n\n" +
			"Programs in the sandbox do not know of it. A shell still writes its history,\n" +
			"for example.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := wire.ParseTarget(args[0])
			if err != nil {
				return err
			}
			if args[1] != "on" && args[1] != "off" {
				return usage("private %q: must be on or off", args[1])
			}
			on := args[1] == "on"
			if err := env.Hub.Sessions.Private(cmd.Context(), env.Principal, t, on); err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]any{"sandbox": t.Sandbox, "session": t.Session,
					"private": on})
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
	var drive, link, asJSON bool
	var expires, base string
	cmd := &cobra.Command{
		Use:   "share NAME [PRINCIPAL]",
		Short: "let another user watch a sandbox, or work in it",
		Long: "Let another principal watch the sessions of a sandbox and read its recordings.\n" +
			"With --drive they can also work in it: terminals, commands, files and port\n" +
			"forwarding. rm, stop, start, rescue, kick and share stay yours.\n\n" +
			"A key with role=\"watch\" can only watch, even with --drive. A principal that\n" +
			"cannot log in is rejected. A principal that only a certificate can log in is\n" +
			"accepted with a warning.\n\n" +
			"With --link and without PRINCIPAL, print a link to the dashboard instead. Its\n" +
			"user can watch the sandbox in a browser until it expires: they need no key, and it\n" +
			"works more than once. sandboxd describe shows the principal that it stands for, and\n" +
			"sandboxd unshare NAME PRINCIPAL ends it.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case link && len(args) == 2:
				return usage("--link makes its own principal: share NAME --link")
			case link && drive:
				return usage("--link is read-only: --drive needs a PRINCIPAL with a key")
			case link:
				return shareLink(cmd.Context(), env, args[0], expires, base, asJSON)
			case cmd.Flags().Changed("expires") || cmd.Flags().Changed("url"):
				return usage("--expires and --url are for --link")
			case len(args) == 1:
				return usage("share NAME PRINCIPAL, or share NAME --link")
			}
			rights := wire.RightWatch
			if drive {
				rights = wire.RightDrive
			}
			if err := env.Hub.Share(cmd.Context(), env.Principal, args[0], args[1],
				rights); err != nil {
				return err
			}
			if key, _ := env.Hub.LogsIn(args[1]); !key {
				fmt.Fprintf(env.Stderr,
					"sandboxd: warning: %s has no key: only a certificate with that name "+
						"can log in\n", args[1])
			}
			if asJSON {
				return env.printJSON(map[string]any{"name": args[0], "principal": args[1],
					"rights": rights})
			}
			fmt.Fprintf(env.Stdout, "%s may %s %s\n", args[1], rights, args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&drive, "drive", false, "allow them to work in it, too")
	cmd.Flags().BoolVar(&link, "link", false, "print a read-only link for a browser")
	cmd.Flags().StringVar(&expires, "expires", "24h", "lifetime of the link, up to 30d")
	urlFlag(cmd, &base)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// linkJSON is the answer of share --link --json.
type linkJSON struct {
	Name      string      `json:"name"`
	Principal string      `json:"principal"` // for unshare
	Rights    wire.Rights `json:"rights"`    // watch
	URL       string      `json:"url"`
	Expires   time.Time   `json:"expires"`
}

// shareLink prints a read-only link to a sandbox.
func shareLink(ctx context.Context, env *Env, name, expires, base string, asJSON bool) error {
	base, err := env.dashboard(base)
	if err != nil {
		return err
	}
	age, err := ParseAge(expires)
	if err != nil || age <= 0 || age > token.MaxLink {
		return usage("--expires %q: write a duration up to 30d, such as 12h", expires)
	}
	maker, err := env.newToken(wire.Person, true, age)
	if err != nil {
		return err
	}
	secret, t, err := env.Tokens.Link(ctx, env.Hub, env.Principal, name, maker)
	if err != nil {
		return err
	}
	link := linkJSON{Name: name, Principal: t.Principal, Rights: t.Rights, Expires: *t.Expires,
		URL: base + "/#link=" + secret}
	if asJSON {
		return env.printJSON(link)
	}
	fmt.Fprintln(env.Stdout, link.URL)
	return nil
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
			if _, link := gateway.LinkOf(args[1]); was && link {
				for _, t := range env.Tokens.List(args[1]) {
					if err := env.Tokens.Revoke(cmd.Context(), args[1], t.ID); err != nil {
						return err
					}
				}
			}
			if asJSON {
				return env.printJSON(map[string]any{"name": args[0], "principal": args[1],
					"done": was})
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

// Watches reports whether a command line is watch without --json, and returns its session. The
// server that has the caller's terminal draws it. It returns false for an invalid line: Run reports
// it.
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
		Long: "Watch a session on your terminal, read-only. --json needs no terminal: it\n" +
			"prints the object of sessions --json at once, and again when its state\n" +
			"changes, until the session ends.",
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
			return &wire.Error{
				Code:    wire.CodeUnavailable,
				Message: "watch: needs a terminal",
				Hint:    "use ssh -t, or read the log: sandboxd log " + t.String(),
			}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per change")
	return cmd
}

// watchJSON prints a session at once and when its state changes.
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
			// output alone is no change
			same.Offset, same.State.QuietMS, same.State.Offset = 0, 0, 0
			key, err := json.Marshal(struct {
				wire.SessionInfo
				attention.Brief
			}{same, live.Brief()})
			if err != nil {
				return err
			}
			if !bytes.Equal(key, last) {
				last = key
				need := live.Need()
				if err := env.printJSON(sessionJSON{Sandbox: t.Sandbox, SessionInfo: info,
					Needs: need.Needs, Since: need.Since, LastLine: need.LastLine,
					SSHCommand: env.Gateway.SSHCommand(t.String())}); err != nil {
					return err
				}
			}
		}
		next, err := live.Wait(ctx, gen)
		if err == nil {
			_, err = env.Hub.Get(ctx, env.Principal, t.Sandbox) // the share may have ended
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
		Long: "Disconnect a party, such as person:bob, from a session. sandboxd sessions\n" +
			"lists the parties. They can attach again: to prevent that, end the share with\n" +
			"sandboxd unshare.",
		Args: cobra.ExactArgs(2),
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
				return env.printJSON(map[string]any{"sandbox": t.Sandbox, "session": t.Session,
					"party": args[1], "disconnected": n, "kicked": n}) // kicked is the old name
			}
			fmt.Fprintf(env.Stdout, "disconnected %s: %s\n",
				text.Line(args[1], 80), plural(n, "attachment"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
