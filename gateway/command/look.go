package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func waitCommand(env *Env) *cobra.Command {
	var f callFlags
	var phases []string
	cmd := &cobra.Command{
		Use:   "wait NAME[~SESSION]",
		Short: "wait for a state of the terminal",
		Long: "Wait for a state of the terminal, and print what happens until then. Exit codes are those of run. A sandbox that is\n" +
			"stopped is not started.\n\n" +
			"The states are prompt (of the shell), running, waiting (a program asks for input), continuation (the shell wants the\n" +
			"rest of a command), opaque (it cannot be known) and dead. keyboard is none of them: it waits until no person holds it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(f.name, args)
			if err != nil {
				return err
			}
			r, err := f.request(wire.VerbWait)
			if err != nil {
				return err
			}
			for _, p := range phases {
				if p == "keyboard" {
					r.Keyboard = true
					continue
				}
				switch phase := wire.Phase(p); phase {
				case wire.PhasePrompt, wire.PhaseRunning, wire.PhaseWaiting, wire.PhaseContinuation, wire.PhaseOpaque, wire.PhaseDead:
					r.For = append(r.For, phase)
				default:
					return usage("--for %q: use prompt, running, waiting, continuation, opaque or dead, or keyboard", p)
				}
			}
			if r.Keyboard && len(r.For) > 0 {
				return usage("--for keyboard stands alone")
			}
			if err := env.running(cmd.Context(), t.Sandbox); err != nil {
				return env.refused(t, &f, err)
			}
			return env.call(cmd.Context(), t, r, &f, false)
		},
	}
	f.add(cmd, true)
	cmd.Flags().SetInterspersed(true)
	cmd.Flags().StringSliceVar(&phases, "for", nil, "states to wait for, such as prompt,waiting (default any but running); keyboard waits until no person holds it")
	return cmd
}

func screenCommand(env *Env) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "screen NAME[~SESSION]",
		Short: "print what the terminal shows",
		Long: "Print what the terminal of a session shows. It starts nothing: of a sandbox that is stopped it is the last screen, from the\n" +
			"record, which --json says by stopped.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(f.name, args)
			if err != nil {
				return err
			}
			screen, err := env.Hub.Screen(cmd.Context(), env.Principal, t)
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
	if err != nil || info.State != gateway.Stopped {
		return err
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + name + " is stopped", Hint: "start it: sandboxd start " + name}
}
