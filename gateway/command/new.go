package command

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// limitFlags adds a flag for each of limits that sets it in l.
func limitFlags(cmd *cobra.Command, l *sandbox.Limits, limits ...sandbox.Limit) {
	for _, d := range limits {
		cmd.Flags().Var(limitFlag{d, l}, d.Name,
			d.Help+" (default "+d.Text(sandbox.DefaultLimits)+")")
	}
}

type limitFlag struct {
	limit sandbox.Limit
	all   *sandbox.Limits
}

func (f limitFlag) String() string {
	if f.all == nil {
		return ""
	}
	return f.limit.Text(*f.all)
}
func (f limitFlag) Type() string          { return "limit" }
func (f limitFlag) Set(text string) error { return f.limit.Set(f.all, text) }

// newFlags are the flags of new: spec has those that need no parsing.
type newFlags struct {
	spec           lifecycle.NewSpec
	network, trust string
	ttl, deletion  string
	noEntry        bool
	remove         bool // remove the sandbox when it stops
	mounts         []string
	volumes        []string
	build          lifecycle.Build
}

// read parses the flags and arguments and returns the spec.
func (f *newFlags) read(args []string) (spec lifecycle.NewSpec, err error) {
	spec = f.spec
	if len(args) == 1 {
		spec.Name = args[0]
	}
	if spec.Name != "" {
		if _, err := wire.ParseSandbox(spec.Name); err != nil {
			return spec, err
		}
	}
	if f.network != "" {
		if spec.Network, spec.Via, err = ParseNetwork(f.network); err != nil {
			return spec, usage("--network %q: %v", f.network, err)
		}
	}
	if spec.Trust, err = parseTrust(f.trust); err != nil {
		return spec, err
	}
	for _, kv := range spec.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return spec, usage("--env %q: write NAME=VALUE", kv)
		}
	}
	for _, m := range f.mounts {
		spec.Mounts = append(spec.Mounts, parseMount(m))
	}
	for _, v := range f.volumes {
		if storage, ok := ParseStorage(v); ok {
			if spec.Volume.Size != 0 {
				return spec, usage("new: two volumes with a size; a sandbox can have one")
			}
			spec.Volume = storage
			continue
		}
		m, err := ParseVolume(v)
		if err != nil {
			return spec, err
		}
		spec.Mounts = append(spec.Mounts, m)
	}
	if spec.TTL, err = parseLife("ttl", f.ttl); err != nil {
		return spec, err
	}
	if spec.DeleteAfter, err = parseLife("delete-after", f.deletion); err != nil {
		return spec, err
	}
	if f.remove {
		if f.deletion != "" {
			return spec, usage("new: --rm and --delete-after are mutually exclusive")
		}
		spec.DeleteAfter = lifecycle.ShortestLife
	}
	switch {
	case f.build.Dockerfile != "":
		spec.Build = &f.build
	case f.build.Context != "" || len(f.build.Args) > 0 || f.build.Target != "":
		return spec, usage("new: --build-context, --build-arg and --build-target need --dockerfile")
	}
	if h := spec.Host; h.URI == "" && h.Accept+h.Identity+h.PasswordFile+h.Prompt+h.Tier != "" {
		return spec, usage(
			"new: --accept, --identity, --password-file, --prompt and --tier need --host")
	}
	if f.noEntry {
		spec.Entrypoint = sandbox.EntrypointOff
	}
	return spec, nil
}

func newCommand(env *Env) *cobra.Command {
	var given newFlags
	var asJSON, progress, quiet bool
	cmd := &cobra.Command{
		Use:   "new [NAME]",
		Short: "create a sandbox",
		Long: "Create a sandbox and wait until it is ready. Without NAME, a name is\n" +
			"generated.\n\n" +
			"The default network is filtered: it allows public addresses, and blocks this\n" +
			"machine, private networks and metadata addresses. allowlist allows only the\n" +
			"hosts of --allow, none allows nothing, and bridge allows everything that the\n" +
			"host can reach, and the host itself. The key network of the configuration sets\n" +
			"another default.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := given.read(args)
			if err != nil {
				return err
			}
			began := time.Now()
			info, err := env.Hub.Create(env.asking(cmd.Context(), asJSON), env.Principal, spec,
				env.progress(quiet || asJSON && !progress))
			if err != nil {
				return err
			}
			if quiet && !asJSON {
				fmt.Fprintln(env.Stdout, info.Name)
				return nil
			}
			if asJSON {
				return env.printJSON(env.describeJSON(info))
			}
			if info.Backend == "host" {
				return added(env, info, time.Since(began))
			}
			fmt.Fprintf(env.Stdout, "%s ready in %.2f s (%s, network %s)\n  %s\n", info.Name,
				time.Since(began).Seconds(), info.ShortImage(),
				info.Network, env.Gateway.SSHCommand(info.Name))
			return nil
		},
	}
	f, spec, build := cmd.Flags(), &given.spec, &given.build
	f.StringVar(&spec.Image, "image", "", "image to boot (default "+sandbox.DefaultImage+")")
	f.StringVar(&given.network, "network", "",
		"network: filtered, allowlist, none or bridge; filtered=tun and allowlist=tun fail "+
			"without a TUN device instead of using a proxy (default: key network)")
	f.StringArrayVar(&spec.Allow, "allow", nil,
		"host that the sandbox may connect to: NAME, *.NAME, address, range, or * for all that "+
			"filtered reaches, with or without :PORT; repeatable")
	limitFlags(cmd, &spec.Limits, sandbox.AllLimits...)
	f.StringVar(&spec.User, "user", "",
		"user in the sandbox: name, uid or uid:gid (default: the image's user)")
	f.BoolVar(&spec.Sudo, "sudo", false,
		"allow setuid programs such as sudo (turns off no-new-privileges)")
	f.StringArrayVarP(&spec.Env, "env", "e", nil,
		"NAME=VALUE, a variable of all processes; repeatable")
	f.StringArrayVar(&given.mounts, "mount", nil,
		"DIR or DIR:ro, a directory on the daemon's machine to mount at the same path; repeatable")
	f.StringArrayVarP(&given.volumes, "volume", "v", nil,
		"SRC:DST or SRC:DST:ro, a directory SRC on the daemon's machine to mount at DST; "+
			"repeatable; on Kubernetes SIZE or SIZE:DST, a new volume, with which the sandbox "+
			"can be stopped (default DST: /root)")
	f.StringArrayVar(&spec.Options, "docker-option", nil,
		"NAME=VALUE, an allowed option of docker run, such as hostname=box or "+
			"tmpfs=/scratch:size=64m; repeatable")
	f.StringVar(&spec.About, "about", "", "notes for users and models; describe shows them")
	f.StringVar(&spec.Workdir, "workdir", "",
		"working directory of sessions (default: the first mount, else the image's)")
	f.StringVar(&given.ttl, "ttl", "",
		"stop the sandbox, and keep its files, after it was not used for this long, such as 30m; "+
			"0 means never (default: key ttl)")
	f.StringVar(&given.deletion, "delete-after", "",
		"remove the sandbox with its files after it was stopped for this long, such as 7d; 0 "+
			"means never (default: key delete_after)")
	f.BoolVar(&given.noEntry, "no-entrypoint", false, "do not run the image's ENTRYPOINT and CMD")
	f.StringVar(&given.trust, "trust", "",
		"certificate authorities that the sandbox trusts: those of the host or of the image "+
			"(default host)")
	f.BoolVar(&spec.Reuse, "if-missing", false, "return the existing sandbox instead of failing")
	f.BoolVar(&asJSON, "json", false, "print one object")
	f.BoolVar(&given.remove, "rm", false, "remove the sandbox with its files when it stops")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only the name, without progress")
	f.BoolVar(&progress, "progress", false, "with --json: print progress on standard error")
	hostFlags(cmd, &spec.Host)
	f.StringVar(&spec.Host.URI, "host", "",
		"use an existing machine, ssh://[USER@]HOST[:PORT], instead of a container; same as add")
	f.StringVar(&build.Dockerfile, "dockerfile", "",
		"Dockerfile to build, or its directory, on the daemon's machine")
	f.StringVar(&build.Context, "build-context", "",
		"directory that COPY and ADD read from (default: the directory of the Dockerfile)")
	f.StringArrayVar(&build.Args, "build-arg", nil,
		"NAME=VALUE for an ARG of the Dockerfile; not for secrets; repeatable")
	f.StringVar(&build.Target, "build-target", "",
		"stage of the Dockerfile to use as the image (default: the last)")
	f.StringVar(&spec.Isolation, "isolation", "",
		"runtime of the container, such as runc or runsc (default: key isolation)")
	return cmd
}

// parseMount parses DIR or DIR:ro. The hub checks DIR.
func parseMount(s string) sandbox.Mount {
	dir, readOnly := strings.CutSuffix(s, ":ro")
	return sandbox.Mount{Path: dir, ReadOnly: readOnly}
}

// ParseStorage parses SIZE or SIZE:DST, such as 10g:/home/ann.
func ParseStorage(s string) (v sandbox.Volume, ok bool) {
	size, dst, hasPath := strings.Cut(s, ":")
	n, err := sandbox.ParseSize(size)
	return sandbox.Volume{Size: n, Path: dst}, err == nil && (!hasPath || dst != "")
}

// ParseVolume parses SRC:DST or SRC:DST:ro. Neither path may have a colon. The hub checks them.
func ParseVolume(s string) (sandbox.Mount, error) {
	pair, readOnly := strings.CutSuffix(s, ":ro")
	path, target, ok := strings.Cut(pair, ":")
	switch {
	case !ok || path == "" || target == "" || strings.Contains(target, ":"):
		return sandbox.Mount{}, volumeError(s, "not a pair of directories")
	case !strings.HasPrefix(target, "/"):
		return sandbox.Mount{}, volumeError(s, "DST is not an absolute path")
	}
	return sandbox.Mount{Path: path, Target: target, ReadOnly: readOnly}, nil
}

func volumeError(s, problem string) error {
	e := usage("--volume %q: %s", s, problem)
	e.Hint = "write SRC:/DST or SRC:/DST:ro; --mount SRC mounts it at the same path"
	return e
}

func parseTrust(s string) (sandbox.Trust, error) {
	switch t := sandbox.Trust(s); t {
	case "", sandbox.TrustHost, sandbox.TrustImage:
		return t, nil
	}
	return "", usage("--trust %q: must be host or image", s)
}
