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
		Short: "wait for a prompt, a question or a text in a session",
		Long: "Wait for a state of the terminal, or for text, and print what happens until then. Exit codes are those of run. A sandbox\n" +
			"that is stopped is not started.\n\n" +
			"The states are prompt (of the shell), running, waiting (a program asks for input), continuation (the shell wants the\n" +
			"rest of a command), opaque (it cannot be known) and dead. keyboard is none of them: it waits until no person holds it.\n\n" +
			"Anything but a word is a regular expression (RE2), matched against the exact output of the newest command, or with --from\n" +
			"against the output from that offset of the log. Write a single word as (word). When it is printed the wait ends with 0. A\n" +
			"program that runs when the wait begins ends it, too, when it asks for something or ends: with 1 in place of 0.",
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
				return usage("--from goes with --for and a regular expression")
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
	cmd.Flags().StringArrayVar(&values, "for", nil, "states, such as prompt,waiting (default any but running), keyboard until no person holds it, or a regular expression")
	cmd.Flags().Uint64Var(&from, "from", 0, "offset of the log at which a regular expression begins to match, such as Result.to (default the newest command)")
	return cmd
}

func screenCommand(env *Env) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "screen NAME[~SESSION]",
		Short: "print what the terminal of a session shows",
		Long: "Print what the terminal of a session shows. It starts nothing: of a sandbox that is stopped it is the last screen, from the\n" +
			"record, which --json says by stopped.",
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
				fmt.Fprintf(env.Stderr, "sandbox %s is stopped: this is the last screen of %s\n  start it: sandboxd start %[1]s\n", t.Sandbox, t)
			}
			_, err = io.WriteString(env.Stdout, withNewline(text.Lines(screen.Text)))
			return err
		},
	}
	f.add(cmd, false)
	cmd.Flags().Lookup("json").Usage = "print text, size and cursor as one object"
	return cmd
}

// running is an error for a sandbox that is stopped, for commands that only look.
func (env *Env) running(ctx context.Context, name string) error {
	info, err := env.Hub.Get(ctx, env.Principal, name)
	if err != nil || info.State != lifecycle.Stopped {
		return err
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + name + " is stopped", Hint: "start it: sandboxd start " + name}
}
