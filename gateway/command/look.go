package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func waitCommand(env *Env) *cobra.Command {
	var f callFlags
	var values []string
	var from uint64
	cmd := &cobra.Command{
		Use:   "wait NAME[~SESSION]",
		Short: "wait for a prompt, a question or text in a session",
		Long: "Wait for a state of a session or for text in its output, and print the output\n" +
			"until then. The exit codes are those of run. A stopped sandbox is not started.\n\n" +
			"States are prompt (of the shell), running, waiting (a program asks for input),\n" +
			"continuation (the shell needs the rest of a command), opaque (unknown) and\n" +
			"dead. keyboard waits until no user holds the keyboard.\n\n" +
			"Any other value is a regular expression (RE2). Write a single word as (word).\n" +
			"It is matched against the exact output of the latest command, or from the\n" +
			"offset --from. A match exits with 0. If a program runs when the wait starts,\n" +
			"the wait also ends when that program asks for input or ends, with exit code 1\n" +
			"in place of 0.",
		Example: "  sandboxd wait web --for prompt,waiting\n" +
			"  sandboxd wait web --for 'listening on port [0-9]+'",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			r, err := f.request(wire.VerbWait)
			if err != nil {
				return err
			}
			pattern, err := readFor(values, &r)
			if err != nil {
				return err
			}
			if pattern == nil && cmd.Flags().Changed("from") {
				return usage("--from: needs --for with a regular expression")
			}
			if err := env.running(cmd.Context(), t.Sandbox); err != nil {
				return env.refused(t, &f, err)
			}
			if pattern != nil {
				w := patternWait{pattern: pattern, from: from, given: cmd.Flags().Changed("from")}
				return env.waitPattern(cmd.Context(), t, r, &f, w)
			}
			return env.call(cmd.Context(), t, r, &f, false)
		},
	}
	f.add(cmd, true)
	cmd.Flags().SetInterspersed(true)
	cmd.Flags().StringArrayVar(&values, "for", nil,
		"states such as prompt,waiting; or keyboard; or a regular expression (default: any state "+
			"but running)")
	cmd.Flags().Uint64Var(&from, "from", 0,
		"offset in the log, in bytes, at which matching starts, such as Result.to (default: the "+
			"latest command)")
	return cmd
}

func screenCommand(env *Env) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "screen NAME[~SESSION]",
		Short: "print the screen of a session",
		Long: "Print the screen of a session as text. It does not start a stopped sandbox: it\n" +
			"prints the last screen from the recording, with \"stopped\": true in --json.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			screen, err := env.Hub.Sessions.Screen(cmd.Context(), env.Principal, t)
			if err != nil {
				return err
			}
			if f.asJSON {
				return env.printJSON(screen)
			}
			if screen.Stopped {
				fmt.Fprintf(env.Stderr, "sandbox %s is stopped: this is the last screen of %s\n"+
					"  start it: sandboxd start %[1]s\n", t.Sandbox, t)
			}
			_, err = io.WriteString(env.Stdout, withNewline(text.Lines(screen.Text)))
			return err
		},
	}
	f.add(cmd, false)
	cmd.Flags().Lookup("json").Usage = "print text, size and cursor as one object"
	return cmd
}

// running returns an error if the sandbox is stopped. Read-only commands do not start it.
func (env *Env) running(ctx context.Context, name string) error {
	info, err := env.Hub.Get(ctx, env.Principal, name)
	if err != nil || info.State != lifecycle.Stopped {
		return err
	}
	return &wire.Error{
		Code:    wire.CodeUnavailable,
		Message: "sandbox " + name + " is stopped",
		Hint:    "start it: sandboxd start " + name,
	}
}
