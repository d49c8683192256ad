package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	ref "github.com/distribution/reference"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/workspace"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ensureCommand creates the sandbox that run would create, and prints its name. It is hidden: only
// programs need a sandbox before they have a command to run in it.
func ensureCommand(env *Env) *cobra.Command {
	var name, dir, network string
	var asJSON bool
	var o dirOptions
	cmd := &cobra.Command{
		Use:    "ensure -n NAME | --dir DIR [flags]",
		Short:  "create the sandbox that run would create, if it does not exist",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (name == "") == (dir == "") {
				return usage("ensure: use either --name or --dir")
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
	cmd.Flags().StringVarP(&name, "name", "n", "", "name of the sandbox")
	cmd.Flags().StringVar(&dir, "dir", "", "directory on the daemon's machine")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	cmd.Flags().BoolVar(&o.wipe, "wipe", false, "remove the directory's sandbox first")
	cmd.Flags().StringVar(&o.image, "image", "", "image of the directory's sandbox")
	cmd.Flags().StringVar(&network, "network", "", "network mode of the directory's sandbox")
	cmd.Flags().StringArrayVar(&o.allow, "allow", nil, "additional host to allow; repeatable")
	limitFlags(cmd, &o.limits, sandbox.AllLimits...)
	return cmd
}

// gone reports whether a sandbox was removed outside the daemon, which the daemon may not have
// detected yet. It starts a stopped sandbox to find out.
func gone(ctx context.Context, env *Env, info lifecycle.Info) bool {
	for range 3 { // the state may change meanwhile
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

// dirOptions override the files of a directory. Zero fields override nothing.
type dirOptions struct {
	wipe    bool
	image   string
	network sandbox.Network
	via     sandbox.Via
	allow   []string
	limits  sandbox.Limits
}

// labelImage holds the requested image. Setup commands of the directory make another image of it,
// whose name differs.
const labelImage = "sandboxd.asked-image"

// override sets the fields of spec that o has.
func (o dirOptions) override(spec *lifecycle.NewSpec) {
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

// mismatch returns an error that lists how an existing sandbox differs from what the caller
// requests, or nil. An image that was built from the requested one does not differ.
func (o dirOptions) mismatch(info lifecycle.Info) error {
	var all []string
	differs := func(what, has, asked string) {
		all = append(all,
			fmt.Sprintf("%s is %s, not %s", what, text.Line(has, 200), text.Line(asked, 200)))
	}
	if o.image != "" && !sameImage(o.image, info.Image) &&
		!sameImage(o.image, info.Labels[labelImage]) {
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
			all = append(all, text.Line(a, 200)+" is not allowed")
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
	return &wire.Error{
		Code: wire.CodeExists,
		Message: fmt.Sprintf("sandbox %s of the directory differs: %s",
			info.Name, strings.Join(all, ", ")),
		Hint: "omit the flag, or recreate the sandbox with --wipe, which keeps the directory",
	}
}

// sameImage reports whether two names mean the same image, without a look at the images.
func sameImage(a, b string) bool {
	x, err := ref.ParseDockerRef(a)
	if err != nil {
		return a == b
	}
	y, err := ref.ParseDockerRef(b)
	return err == nil && x.String() == y.String()
}

// ensureDir returns the name of the sandbox of a directory. It creates a missing one from the
// directory's files.
func (env *Env) ensureDir(ctx context.Context, dir string) (string, error) {
	return env.ensureDirAs(ctx, dir, dirOptions{})
}

// ensureDirAs is ensureDir with overrides. It fails if an existing sandbox differs from them.
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
	spec := lifecycle.NewSpec{Name: name, Reuse: true, Dir: dir, Recipe: w.Recipe, Image: w.Image,
		Network: w.Network, Allow: w.Allow, Limits: w.Limits, TTL: w.TTL, User: w.User,
		Sudo: w.Sudo, Env: w.Env, Entrypoint: w.Entrypoint, Workdir: w.Workdir}
	spec.Setup = w.Setup
	if b := w.Build; b != nil {
		spec.Build = &lifecycle.Build{Dir: dir, Dockerfile: b.Dockerfile, Context: b.Context,
			Args: b.Args, Target: b.Target}
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
		o.override(&spec)
		if info, err = env.Hub.Create(ctx, env.Principal, spec, env.progress(false)); err != nil {
			return "", err
		}
	}
	if info.Dir != dir {
		return "", &wire.Error{Code: wire.CodeExists, Message: "sandbox " + name +
			" belongs to another directory than " + text.Line(dir, 200),
			Hint: "remove it with sandboxd rm, or name another sandbox with -n NAME"}
	}
	if missing == nil {
		if err := o.mismatch(info); err != nil {
			return "", err
		}
	}
	say := func(format string, args ...any) {
		fmt.Fprintln(env.Stderr, text.Lines(fmt.Sprintf(format, args...)))
	}
	switch {
	case missing != nil:
		from := ""
		if w.File != "" {
			from = ", from " + w.File
		}
		say("new sandbox %s for %s (%s, network %s%s, %.2f s)", name, dir, info.ShortImage(),
			info.Network, from, time.Since(began).Seconds())
		for _, note := range w.Notes {
			say("note: %s", note)
		}
	case info.Recipe != w.Recipe:
		say("note: the sandbox settings in %s changed since %s was created; to recreate it: "+
			"sandboxd rm -f %s, then run again", dir, name, name)
	}
	return name, nil
}

// unnamed returns err, the end of a run in a directory's sandbox. If the run failed to start, or
// its program was not found, it adds a hint: the first argument may be meant as the name of a
// sandbox.
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
			meant := fmt.Sprintf("%s is a sandbox; to run in it: sandboxd run -n %[1]s -- %s",
				info.Name, text.Line(text.Quote(command...), 200))
			if e, ok := errors.AsType[*wire.Error](err); ok {
				better := *e
				better.Hint = meant
				return &better
			}
			fmt.Fprintln(env.Stderr, "note: "+meant)
			return err
		}
	}
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeDenied {
		better := *e
		better.Hint = "to run without the directory, name a sandbox: -n NAME"
		if e.Hint != "" {
			better.Hint = e.Hint + "; or " + better.Hint
		}
		return &better
	}
	return err
}
