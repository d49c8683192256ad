package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	ref "github.com/distribution/reference"
	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/workspace"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ensureCommand makes the sandbox that run would make, and prints its name: for programs that need it before they know a command. It is
// hidden: for people run does it.
func ensureCommand(env *Env) *cobra.Command {
	var name, dir, network string
	var asJSON bool
	var o dirOptions
	cmd := &cobra.Command{
		Use:    "ensure -n NAME | --dir DIR [flags]",
		Short:  "make the sandbox that run would make, if it is missing",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (name == "") == (dir == "") {
				return usage("ensure: name a sandbox or a directory, and one of them")
			}
			var err error
			if network != "" {
				if o.network, o.via, err = ParseNetwork(network); err != nil {
					return usage("--network %q: %v", network, err)
				}
			}
			if dir != "" {
				name, err = env.ensureDirAs(cmd.Context(), dir, o)
			} else if name, err = wire.ParseSandbox(name); err == nil {
				err = env.ensure(cmd.Context(), lifecycle.NewSpec{Name: name, Reuse: true}, true)
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
	cmd.Flags().BoolVar(&o.wipe, "wipe", false, "remove the directory's sandbox first")
	cmd.Flags().StringVar(&o.image, "image", "", "image of the directory's sandbox")
	cmd.Flags().StringVar(&network, "network", "", "its network")
	cmd.Flags().StringArrayVar(&o.allow, "allow", nil, "what its network opens besides")
	limitFlags(cmd, &o.limits, sandbox.AllLimits...)
	return cmd
}

// gone reports whether a sandbox was removed behind the daemon's back, which nobody may have noticed yet. One that is stopped is started.
func gone(ctx context.Context, env *Env, info lifecycle.Info) bool {
	for range 3 { // what is known of it may change while it is asked
		var err error
		switch info.State {
		case lifecycle.Running:
			_, err = env.Hub.Sessions.List(ctx, env.Principal, info.Name)
		case lifecycle.Stopped:
			_, err = env.Hub.Start(ctx, env.Principal, info.Name, env.progress(false))
		default:
			return info.State == lifecycle.Broken && strings.HasPrefix(info.Reason, "gone:")
		}
		if err == nil || errors.Is(err, sandbox.ErrGone) {
			return err != nil
		}
		if info, err = env.Hub.Get(ctx, env.Principal, info.Name); err != nil {
			return false
		}
	}
	return false
}

// dirOptions are what a caller asks of the sandbox of a directory beyond what the directory's files say. Zero fields ask for nothing.
type dirOptions struct {
	wipe    bool
	image   string
	network sandbox.Network
	via     sandbox.Via
	allow   []string
	limits  sandbox.Limits
}

// labelImage is the image that was asked for, whose name is lost where commands of the directory's file have made another of it.
const labelImage = "sandboxd.asked-image"

// over puts what was asked for over what files say.
func (o dirOptions) over(spec *lifecycle.NewSpec) {
	if o.image != "" {
		spec.Image, spec.Build = o.image, nil
		spec.Labels = map[string]string{labelImage: o.image}
	}
	if o.network != "" {
		spec.Network, spec.Via = o.network, o.via
	}
	spec.Allow = append(spec.Allow, o.allow...)
	spec.Limits = o.limits.Or(spec.Limits)
}

// mismatch says in what a sandbox that exists is not what was asked for. Its image may have been made of the one that was asked for.
func (o dirOptions) mismatch(info lifecycle.Info) error {
	var all []string
	differs := func(what, has, asked string) {
		all = append(all, fmt.Sprintf("%s %s and not %s", what, text.Line(has, 200), text.Line(asked, 200)))
	}
	if o.image != "" && !sameImage(o.image, info.Image) && !sameImage(o.image, info.Labels[labelImage]) {
		has := info.Image
		if info.ImageOf != "" {
			has += " (of " + info.ImageOf + ")"
		}
		differs("image", has, o.image)
	}
	if o.network != "" && (o.network != info.Network || o.via != "" && o.via != info.Via) {
		differs("network", string(info.Network), string(o.network))
	}
	for _, a := range o.allow {
		if !slices.Contains(info.Allow, a) {
			all = append(all, "no opening of "+text.Line(a, 200))
		}
	}
	if wanted := o.limits.Or(info.Limits); wanted != info.Limits {
		for _, d := range sandbox.AllLimits {
			if has, asked := d.Text(info.Limits), d.Text(wanted); has != asked {
				differs(d.Name, has, asked)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return &wire.Error{Code: wire.CodeExists, Message: fmt.Sprintf("the directory's sandbox %s has %s", info.Name, strings.Join(all, ", ")),
		Hint: "leave the flag out, or begin anew with --wipe, which removes what is in the sandbox and not the directory"}
}

// sameImage reports whether two names mean one image as far as names tell.
func sameImage(a, b string) bool {
	x, err := ref.ParseDockerRef(a)
	if err != nil {
		return a == b
	}
	y, err := ref.ParseDockerRef(b)
	return err == nil && x.String() == y.String()
}

// ensureDir returns the name of the sandbox of a directory, made as its files say if there is none.
func (env *Env) ensureDir(ctx context.Context, dir string) (string, error) {
	return env.ensureDirAs(ctx, dir, dirOptions{})
}

// ensureDirAs is ensureDir for a caller who asks for more. A sandbox that exists and is another than that is an error.
func (env *Env) ensureDirAs(ctx context.Context, dir string, o dirOptions) (string, error) {
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
	spec := lifecycle.NewSpec{Name: name, Reuse: true, Dir: dir, Recipe: w.Recipe, Image: w.Image, Network: w.Network, Allow: w.Allow, Limits: w.Limits, TTL: w.TTL, User: w.User,
		Sudo: w.Sudo, Env: w.Env, Entrypoint: w.Entrypoint, Workdir: w.Workdir}
	spec.Setup = w.Setup
	if b := w.Build; b != nil {
		spec.Build = &lifecycle.Build{Dir: dir, Dockerfile: b.Dockerfile, Context: b.Context, Args: b.Args, Target: b.Target}
	}
	had, missing := env.Hub.Get(ctx, env.Principal, name)
	if missing == nil && had.Dir == dir && (o.wipe || gone(ctx, env, had)) {
		if _, err := env.Hub.Remove(ctx, env.Principal, name); err != nil {
			return "", err
		}
		_, missing = env.Hub.Get(ctx, env.Principal, name)
	}
	began := time.Now()
	info := had
	if missing != nil {
		if err := env.Hub.MayNarrow(w.File, spec); err != nil {
			return "", err
		}
		o.over(&spec)
		if info, err = env.Hub.Create(ctx, env.Principal, spec, env.progress(false)); err != nil {
			return "", err
		}
	}
	if info.Dir != dir {
		return "", &wire.Error{Code: wire.CodeExists, Message: "the sandbox " + name + " is not that of " + text.Line(dir, 200),
			Hint: "rm it, or name a sandbox: -n NAME"}
	}
	if missing == nil {
		if err := o.mismatch(info); err != nil {
			return "", err
		}
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
		say("note: what %s says of its sandbox has changed since %s was made; sandboxd rm -f %s makes the next run begin anew", dir, name, name)
	}
	return name, nil
}

// unnamed is how a run in a directory's sandbox ended. Where it could not be, or there is no such program, it adds what may have been meant:
// the name of a sandbox, which takes -n.
func (env *Env) unnamed(ctx context.Context, args []string, err error) error {
	if exit, ok := errors.AsType[exitError](err); err == nil || ok && exit != 127 {
		return err
	}
	if len(args) > 1 {
		if info, unknown := env.Hub.Get(ctx, env.Principal, args[0]); unknown == nil {
			command := args[1:]
			if command[0] == "--" && len(command) > 1 {
				command = command[1:]
			}
			fmt.Fprintf(env.Stderr, "note: %s is a sandbox; to run in it: sandboxd run -n %s -- %s\n", info.Name, info.Name, text.Line(shellquote.Join(command...), 200))
			return err
		}
	}
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeDenied {
		better := *e
		better.Hint = "run without the directory: -n NAME"
		if e.Hint != "" {
			better.Hint = e.Hint + "; or " + better.Hint
		}
		return &better
	}
	return err
}
