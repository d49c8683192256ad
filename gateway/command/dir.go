package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/workspace"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ensureCommand makes the sandbox that run would make, and prints its name: for programs that need it before they know a command. It is
// hidden: for people run does it.
func ensureCommand(env *Env) *cobra.Command {
	var name, dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:    "ensure -n NAME | --dir DIR",
		Short:  "make the sandbox that run would make, if it is missing",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (name == "") == (dir == "") {
				return usage("ensure: name a sandbox or a directory, and one of them")
			}
			var err error
			if dir != "" {
				name, err = env.ensureDir(cmd.Context(), dir)
			} else if name, err = wire.ParseSandbox(name); err == nil {
				err = env.ensure(cmd.Context(), name)
			}
			switch {
			case err != nil:
				return err
			case asJSON:
				return env.printJSON(map[string]string{"name": name})
			}
			fmt.Fprintln(env.Stdout, name)
			return nil
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox")
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the daemon's machine")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// ensureDir returns the name of the sandbox of a directory, made as its files say if there is none.
func (env *Env) ensureDir(ctx context.Context, dir string) (string, error) {
	root, dir, err := env.Hub.OpenDir(env.Principal, dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	w, err := workspace.Read(root, dir)
	if err != nil {
		return "", err
	}
	name := workspace.Name(dir)
	spec := gateway.NewSpec{Name: name, Reuse: true, Dir: dir, Recipe: w.Recipe, Image: w.Image, Network: w.Network, Allow: w.Allow, Limits: w.Limits, TTL: w.TTL, User: w.User,
		Sudo: w.Sudo, Env: w.Env, Entrypoint: w.Entrypoint, Workdir: w.Workdir}
	spec.Setup = w.Setup
	if b := w.Build; b != nil {
		spec.Build = &gateway.Build{Dir: dir, Dockerfile: b.Dockerfile, Context: b.Context, Args: b.Args, Target: b.Target}
	}
	had, missing := env.Hub.Get(ctx, env.Principal, name)
	began := time.Now()
	info := had
	if missing != nil {
		if err := env.Hub.MayNarrow(w.File, spec); err != nil {
			return "", err
		}
		if info, err = env.Hub.Create(ctx, env.Principal, spec, env.progress(false)); err != nil {
			return "", err
		}
	}
	if info.Dir != dir {
		return "", &wire.Error{Code: wire.CodeExists, Message: "the sandbox " + name + " is not that of " + text.Line(dir, 200),
			Hint: "rm it, or name a sandbox: -n NAME"}
	}
	say := func(format string, args ...any) { fmt.Fprintln(env.Stderr, text.Lines(fmt.Sprintf(format, args...))) }
	switch {
	case missing != nil:
		by := ""
		if w.File != "" {
			by = ", by " + w.File
		}
		say("new sandbox %s of %s (%s, network %s%s, %.2f s)", name, dir, info.ShortImage(), info.Network, by, time.Since(began).Seconds())
		for _, note := range w.Notes {
			say("note: %s", note)
		}
	case info.Recipe != w.Recipe:
		say("note: what %s says of its sandbox has changed since %s was made; sandboxd rm %s makes the next run begin anew", dir, name, name)
	}
	return name, nil
}
