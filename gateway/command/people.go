package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func peopleCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{
		sessionsCommand(env),
		keyboardCommand(env, "take", "take the keyboard of a session"),
		keyboardCommand(env, "give", "give the keyboard back"),
		watchCommand(env),
		kickCommand(env),
	}
}

// sessionJSON is a line of sessions with where it is.
type sessionJSON struct {
	Sandbox string `json:"sandbox"`
	wire.SessionInfo
	SSHCommand string `json:"ssh_command"`
}

func sessionsCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions [NAME]",
		Short: "list sessions, what they do and who is on them",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			names := args
			if len(args) == 0 {
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
				sessions, err := env.Hub.Sessions(cmd.Context(), env.Principal, name)
				if err != nil {
					return err
				}
				for _, s := range sessions {
					t := wire.Target{Sandbox: name, Session: s.Name}
					rows = append(rows, sessionJSON{name, s, env.Gateway.SSHCommand(t.String())})
				}
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
				fmt.Fprintln(w, "SESSION\tSTATE\tKEYBOARD\tSIZE\tPARTIES\tLAST")
				for _, row := range rows {
					t := wire.Target{Sandbox: row.Sandbox, Session: row.Name}
					var parties []string
					for _, p := range row.Parties {
						parties = append(parties, p.String())
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%dx%d\t%s\t%s\n", t, row.State.Phase, dash(row.Keyboard), row.Cols, row.Rows,
						dash(strings.Join(parties, " ")), dash(clean(row.State.LastLine, 60)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line")
	return cmd
}

func keyboardCommand(env *Env, verb, short string) *cobra.Command {
	var name string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   verb + " NAME[~SESSION]",
		Short: short,
		Long: strings.ToUpper(short[:1]) + short[1:] + ".\n\nIt acts on your attached person if there is one, else on your agent: the party that your calls of run, type and\n" +
			"keys share.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(name, args)
			if err != nil {
				return err
			}
			act := env.Hub.Take
			if verb == "give" {
				act = env.Hub.Give
			}
			holder, err := act(cmd.Context(), env.Principal, t)
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]string{"sandbox": t.Sandbox, "session": t.Session, "keyboard": holder})
			}
			if holder == "" {
				holder = "free"
			}
			fmt.Fprintf(env.Stdout, "keyboard of %s: %s\n", t, holder)
			return nil
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION")
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
	var name string
	cmd := &cobra.Command{
		Use:   "watch NAME[~SESSION]",
		Short: "watch a session; nothing you type reaches it",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(name, args)
			if err != nil {
				return err
			}
			if env.watch != nil {
				env.watch(t)
				return nil
			}
			return &wire.Error{Code: wire.CodeUnavailable, Message: "watch needs a terminal", Hint: "use ssh -t, or read the log: sandboxd log " + t.String()}
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION")
	return cmd
}

func kickCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "kick NAME[~SESSION] PARTY",
		Short: "end the attachments of a party, named as sessions lists it",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := wire.ParseTarget(args[0])
			if err != nil {
				return err
			}
			n, err := env.Hub.Kick(cmd.Context(), env.Principal, t, args[1])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]any{"sandbox": t.Sandbox, "session": t.Session, "party": args[1], "kicked": n})
			}
			fmt.Fprintf(env.Stdout, "%s of %s ended\n", plural(n, "attachment"), clean(args[1], 80))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
