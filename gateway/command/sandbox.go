package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func sandboxCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{newCommand(env), addCommand(env), lsCommand(env), describeCommand(env),
		rmCommand(env), stopCommand(env), startCommand(env),
		pauseCommand(env), resumeCommand(env), snapshotCommand(env), forkCommand(env),
		rescueCommand(env), allowCommand(env), portCommand(env), poolCommand(env),
		quotaCommand(env)}
}

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
		"host that the sandbox may connect to: NAME, *.NAME, address or range, with or without "+
			":PORT; repeatable")
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
			"repeatable")
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

// progress returns a function that prints progress to stderr, or nil if quiet.
func (env *Env) progress(quiet bool) func(string) {
	if quiet {
		return nil
	}
	// may be output of a build
	return func(line string) { fmt.Fprintln(env.Stderr, text.Lines(line)) }
}

func parseTrust(s string) (sandbox.Trust, error) {
	switch t := sandbox.Trust(s); t {
	case "", sandbox.TrustHost, sandbox.TrustImage:
		return t, nil
	}
	return "", usage("--trust %q: must be host or image", s)
}

// parseSize is sandbox.ParseSize for a flag: it returns 0 if the flag is not set.
func parseSize(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := sandbox.ParseSize(s)
	if err != nil {
		return 0, usage("--%s: %v", flag, err)
	}
	return n, nil
}

// plural returns n and thing, in the plural unless n is 1.
func plural(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"), strings.HasSuffix(thing, "x"):
		return fmt.Sprintf("%d %ses", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// dash returns "-" for an empty cell, so that awk sees the same number of fields in each line.
func dash(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return "-"
	}
	return s
}

// table aligns rows, whose cells are separated by tabs, in columns. It removes control characters.
func table(w io.Writer, rows func(io.Writer)) error {
	var out strings.Builder
	t := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	rows(t)
	_ = t.Flush() // writing to memory does not fail
	_, err := io.WriteString(w, text.Lines(out.String()))
	return err
}

// sandboxJSON is Info and the fields that a client needs to connect.
type sandboxJSON struct {
	lifecycle.Info
	URI        string `json:"ssh_uri"`
	SSHCommand string `json:"ssh_command"`
	KnownHosts string `json:"known_hosts"`
}

func (env *Env) describeJSON(info lifecycle.Info) sandboxJSON {
	return sandboxJSON{info, env.Gateway.URI(info.Name), env.Gateway.SSHCommand(info.Name),
		env.Gateway.KnownHosts}
}

func describeCommand(env *Env) *cobra.Command {
	var asJSON, packages bool
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "show all details of a sandbox",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			describe := env.Hub.Describe
			if packages {
				describe = env.Hub.DescribePackages
			}
			d, err := describe(cmd.Context(), env.Principal, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(struct {
					lifecycle.Description
					URI        string `json:"ssh_uri"`
					SSHCommand string `json:"ssh_command"`
					KnownHosts string `json:"known_hosts"`
				}{d, env.Gateway.URI(d.Name), env.Gateway.SSHCommand(d.Name),
					env.Gateway.KnownHosts})
			}
			return table(env.Stdout, func(w io.Writer) { describeText(w, env, d) })
		},
	}
	cmd.Flags().BoolVar(&packages, "packages", false,
		"also show installed packages: the number of system packages, and Python packages by "+
			"name (takes about a second)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func describeText(w io.Writer, env *Env, d lifecycle.Description) {
	long := func(name, said string, most int) {
		if said = strings.TrimSpace(text.Line(said, most)); said != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, said)
		}
	}
	line := func(name, format string, args ...any) { long(name, fmt.Sprintf(format, args...), 400) }
	line("name", "%s", d.Name)
	line("state", "%s %s", d.State, d.Reason)
	line("health", "%s", d.Health)
	long("about", d.About, 4096)
	line("owner", "%s", d.Owner)
	for _, s := range d.SharedWith {
		line("shared with", "%s, to %s", s.Principal, s.Rights)
	}
	line("created", "%s (%s ago)", d.Created.Format(time.RFC3339), gateway.Ago(d.Created))
	line("image", "%s %s", d.Image, d.Digest)
	line("image of", "%s", d.ImageOf)
	line("system", "%s %s %s", d.OS, d.Kernel, d.Arch)
	line("user", "%s", d.Account)
	line("cwd", "%s", d.Cwd)
	line("shell", "%s", d.Shell)
	line("isolation", "%s", d.Isolation)
	if d.Tier != "" {
		line("tier", "%s: %s", d.Tier, d.TierText)
	}
	line("directory", "%s", d.Dir)
	for _, m := range d.Mounts {
		said := m.Path
		if m.Target != "" {
			said += " at " + m.Target
		}
		if m.ReadOnly {
			said += ", read-only"
		}
		line("mount", "%s", said)
	}
	line("network", "%s", d.NetworkText)
	line("allowed", "%s", strings.Join(d.Allow, " "))
	line("limits", "%s", d.LimitsText)
	line("usage", "%s", d.Usage)
	line("idle", "%s", idleText(d.Info))
	var tools []string
	for name := range d.Tools {
		tools = append(tools, name)
	}
	slices.Sort(tools)
	line("tools", "%s", strings.Join(tools, " "))
	for _, p := range d.Packages {
		long("packages", packagesText(p), 16<<10)
	}
	for _, note := range d.Notes {
		line("note", "%s", note)
	}
	for _, s := range d.Sessions {
		line("session", "%s: %s %s", s.Name, s.State.Phase, strings.Join(s.Argv, " "))
	}
	line("join", "%s", env.Gateway.SSHCommand(d.Name))
}

// packagesText returns the number of packages, and their names and versions.
func packagesText(p lifecycle.Packages) string {
	said, before := fmt.Sprintf("%s: %d", p.By, p.Count), ": "
	for _, one := range p.List {
		said, before = said+before+one.Name+" "+one.Version, ", "
	}
	if p.Cut {
		said += ", and more"
	}
	return said
}

func rmCommand(env *Env) *cobra.Command {
	var all, force, asJSON bool
	cmd := &cobra.Command{
		Use:   "rm NAME… | --all",
		Short: "remove sandboxes with their files and recordings",
		Long: "Remove sandboxes with their files and recordings. For a running or paused\n" +
			"sandbox, rm asks for confirmation on a terminal. Without a terminal, and with\n" +
			"--json, it needs --force.",
		Example: "  sandboxd rm web\n" +
			"  sandboxd rm -f web api                    # even if they run\n" +
			"  sandboxd rm --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("rm: name sandboxes, or use --all")
			}
			if all {
				infos, err := env.Hub.List(cmd.Context(), env.Principal)
				if err != nil {
					return err
				}
				for _, info := range infos {
					// its name may belong to another one by now
					if info.State != lifecycle.Deleting {
						args = append(args, info.Name)
					}
				}
			}
			if !force && env.Pty != nil && !asJSON {
				confirmed, err := confirmRemoval(cmd.Context(), env, args)
				switch {
				case err != nil:
					return err
				case !confirmed:
					fmt.Fprintln(env.Stderr, "canceled: no sandbox was removed")
					return exitError(wire.ExitFailed)
				}
				force = true
			}
			return env.all(args, asJSON, func(name string) error {
				if !force && isActive(cmd.Context(), env, name) {
					e := wire.Errorf(wire.CodeUsage, "sandbox %s is running", name)
					e.Hint = "to remove it with its files and recordings, add -f"
					return e
				}
				return env.remove(cmd.Context(), name, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove all your sandboxes")
	cmd.Flags().BoolVarP(&force, "force", "f", false,
		"remove running sandboxes without confirmation")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

// isActive reports whether a sandbox is running or paused.
func isActive(ctx context.Context, env *Env, name string) bool {
	info, err := env.Hub.Get(ctx, env.Principal, name)
	return err == nil && (info.State == lifecycle.Running || info.State == lifecycle.Paused)
}

// confirmRemoval asks the user once to confirm the removal of those of names that are active. It
// returns true if none is.
func confirmRemoval(ctx context.Context, env *Env, names []string) (bool, error) {
	var active []string
	for _, name := range names {
		if isActive(ctx, env, name) {
			active = append(active, name)
		}
	}
	switch len(active) {
	case 0:
		return true, nil
	case 1:
		return env.confirm(ctx, active[0]+" is running. Remove it with its files and recordings?")
	}
	return env.confirm(ctx, strings.Join(active,
		", ")+" are running. Remove them with their files and recordings?")
}

// remove removes a sandbox and prints the result, with what could not be deleted on other machines.
func (env *Env) remove(ctx context.Context, name string, asJSON bool) error {
	removal, err := env.Hub.Remove(ctx, env.Principal, name)
	switch {
	case err != nil:
		return err
	case asJSON:
		return env.printJSON(struct {
			Name string `json:"name"`
			Done string `json:"done"`
			lifecycle.Removal
		}{name, "removed", removal})
	case removal.Left != "":
		fmt.Fprintf(env.Stdout, "%s removed, but %s\n", name, removal.Left)
		fmt.Fprintf(env.Stderr, "%s: %s\n", name, removal.Hint)
	default:
		fmt.Fprintf(env.Stdout, "%s removed\n", name)
	}
	return nil
}

// each calls do for each sandbox, and prints did for those that succeed.
func (env *Env) each(names []string, asJSON bool, did string, do func(name string) error) error {
	return env.all(names, asJSON, func(name string) error {
		err := do(name)
		switch {
		case err != nil:
			return err
		case asJSON:
			return env.printJSON(map[string]string{"name": name, "done": did})
		}
		fmt.Fprintf(env.Stdout, "%s %s\n", name, did)
		return nil
	})
}

// all calls do for each sandbox, also after one has failed.
func (env *Env) all(names []string, asJSON bool, do func(name string) error) error {
	failed := 0
	for _, name := range names {
		if err := do(name); err != nil {
			failed = Fail(env.Stdout, env.Stderr, asJSON, hintExisting(env.public(err)))
		}
	}
	if failed != 0 {
		return exitError(failed)
	}
	return nil
}

func stopCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stop NAME…",
		Short: "stop sandboxes; their files stay",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(args, asJSON, "stopped", func(name string) error {
				return env.Hub.Stop(cmd.Context(), env.Principal, name)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

func startCommand(env *Env) *cobra.Command {
	var asJSON bool
	var raised sandbox.Limits
	cmd := &cobra.Command{
		Use:   "start NAME…",
		Short: "start stopped sandboxes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(args, asJSON, "started", func(name string) error {
				if raised.Disk > 0 {
					if err := env.Hub.SetDisk(cmd.Context(), env.Principal, name,
						raised.Disk); err != nil {
						return err
					}
				}
				_, err := env.Hub.Start(env.asking(cmd.Context(), asJSON), env.Principal, name,
					env.progress(asJSON))
				return err
			})
		},
	}
	for _, d := range sandbox.AllLimits {
		if d.Name == "disk" {
			cmd.Flags().Var(limitFlag{d, &raised}, d.Name, "change the disk limit, such as 20g")
		}
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

func rescueCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rescue NAME",
		Short: "kill all processes of a sandbox; its files stay",
		Long: "Kill all processes of a sandbox, for example after a fork bomb. Its files\n" +
			"stay, and it keeps running. Sessions end, and start again when they are used.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			killed, err := env.Hub.Rescue(cmd.Context(), env.Principal, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]any{"name": args[0], "killed": killed})
			}
			fmt.Fprintf(env.Stdout, "%s rescued: %s killed\n", args[0], plural(killed, "process"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
