package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ByName adds -n to cmd as another way to write its first argument, the name of a sandbox. RunE of
// cmd receives the name as the first argument either way.
func ByName(cmd *cobra.Command) {
	usage := "sandbox, instead of the argument"
	if strings.Contains(cmd.Use, "~SESSION") {
		usage = "sandbox or SANDBOX~SESSION, instead of the argument"
	}
	name := cmd.Flags().StringP("name", "n", "", usage)
	whole := func(cmd *cobra.Command, args []string) []string {
		switch {
		case cmd.Flags().Changed("name"):
			return append([]string{*name}, args...)
		case len(args) > 1 && args[1] == "--": // flags ended at the name, so the parser left it
			return append([]string{args[0]}, args[2:]...)
		}
		return args
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			return check(cmd, whole(cmd, args))
		}
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd, whole(cmd, args)) }
}

// NameFirst reads "NAME -- WORD…" for run and python, whose name is optional: one word before -- is
// the name. It sets -n and returns the words. Other arguments are returned as they are.
func NameFirst(cmd *cobra.Command, args []string) ([]string, error) {
	if cmd.Flags().Changed("name") {
		return args, nil
	}
	switch at := cmd.ArgsLenAtDash(); {
	case at == 1: // flags may stand among the arguments
		return args[1:], cmd.Flags().Set("name", args[0])
	case at < 0 && len(args) > 1 && args[1] == "--": // flags ended at the name
		return args[2:], cmd.Flags().Set("name", args[0])
	}
	return args, nil
}

// flagsAfterName lets flags of cmd, whose flags end at its first argument, follow the name of the
// sandbox too. They end at the first word after it, or at --. It sets -n to the name. RunE of cmd
// receives the words after the flags, which are also cmd.Flags().Args().
func flagsAfterName(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		unknown := strings.HasPrefix(err.Error(), "unknown ")
		err = cmd.Parent().FlagErrorFunc()(cmd, err)
		if e, ok := errors.AsType[*wire.Error](err); ok && unknown {
			e.Hint = "write -- before a word that begins with -, and see: sandboxd help " +
				cmd.Name()
		}
		return err
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		flags := cmd.Flags()
		if flags.Changed("name") || flags.ArgsLenAtDash() >= 0 || len(args) == 0 {
			return nil
		}
		if err := flags.Parse(args[1:]); err != nil {
			return cmd.FlagErrorFunc()(cmd, err)
		}
		if help, _ := flags.GetBool("help"); help {
			return pflag.ErrHelp
		}
		if flags.Changed("name") { // as in "TEXT -n NAME"
			return flags.Parse(append([]string{"--", args[0]}, flags.Args()...))
		}
		return flags.Set("name", args[0])
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, cmd.Flags().Args()) }
}

// target reads the session that the first argument names. It returns the other arguments.
func target(args []string) (wire.Target, []string, error) {
	if len(args) == 0 {
		return wire.Target{}, nil,
			usage("missing sandbox name: write it as the first argument, or -n NAME")
	}
	t, err := wire.ParseTarget(args[0])
	return t, args[1:], err
}

// onlyTarget is target for commands that have no other argument.
func onlyTarget(args []string) (wire.Target, error) {
	t, rest, err := target(args)
	if err == nil && len(rest) > 0 {
		err = usage("unexpected argument %q", rest[0])
	}
	return t, err
}

// ensure creates the sandbox of spec if it does not exist and the caller may create one by logging
// in. Unless create is set, a name that is similar to that of another sandbox is an error.
func (env *Env) ensure(ctx context.Context, spec lifecycle.NewSpec, create bool) error {
	_, err := env.Hub.Get(ctx, env.Principal, spec.Name)
	if !errors.Is(err, lifecycle.ErrUnknown) && !errors.Is(err,
		&wire.Error{Code: wire.CodeNotFound}) {
		return err
	}
	if err := env.Hub.AutoCreate(env.Principal, spec.Name); err != nil {
		return err
	}
	if !create {
		if err := mistyped(ctx, env, spec.Name); err != nil {
			return err
		}
	}
	began := time.Now()
	info, err := env.Hub.Create(ctx, env.Principal, spec, env.progress(false))
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "new sandbox %s (%s, network %s, %.2f s)\n",
		spec.Name, info.ShortImage(), info.Network, time.Since(began).Seconds())
	return nil
}

// mistyped returns an error if name is similar to the name of a sandbox of the caller.
func mistyped(ctx context.Context, env *Env, name string) error {
	near, err := env.similar(ctx, name)
	if err != nil || near == "" {
		return err
	}
	e := wire.Errorf(wire.CodeNotFound, "no sandbox %s", name)
	e.Hint = fmt.Sprintf("did you mean %s? To create %s, add --create", near, name)
	return e
}

// similar returns the name of a sandbox of the caller that name looks like a typing error for, or
// "" if there is none.
func (env *Env) similar(ctx context.Context, name string) (string, error) {
	infos, err := env.Hub.List(ctx, env.Principal)
	if err != nil {
		return "", err
	}
	for _, info := range infos {
		if almost(name, info.Name) {
			return info.Name, nil
		}
	}
	return "", nil
}

// almost reports whether name looks like a typing error for other: one wrong letter, or two in
// names of six letters or more. Names that differ only in digits are different on purpose.
func almost(name, other string) bool {
	noDigits := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return -1
			}
			return r
		}, s)
	}
	if noDigits(name) == noDigits(other) {
		return false
	}
	shorter := min(len(name), len(other))
	return shorter >= 3 && text.Distance(name, other) <= min(2, shorter/3)
}
