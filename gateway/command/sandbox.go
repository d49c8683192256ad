package command

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func sandboxCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{newCommand(env), lsCommand(env), describeCommand(env), rmCommand(env), stopCommand(env), startCommand(env), rescueCommand(env)}
}

// laterFlags are flags of the protocol that this version refuses by name.
func laterFlags(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		cmd.Flags().Var(laterFlag(name), name, "")
		_ = cmd.Flags().MarkHidden(name)
	}
}

type laterFlag string

func (f laterFlag) String() string   { return "" }
func (f laterFlag) Type() string     { return "value" }
func (f laterFlag) Set(string) error { return fmt.Errorf("not in this version") }

func newCommand(env *Env) *cobra.Command {
	var (
		spec            gateway.NewSpec
		network, trust  string
		memory          string
		noEntry, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "new [NAME]",
		Short: "make a sandbox",
		Long: "Make a sandbox and wait until it answers. Without NAME one is generated.\n\n" +
			"The network is none unless the daemon's configuration says otherwise; bridge opens the host and the local\n" +
			"network to the sandbox, and the internet where the host has it.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				spec.Name = args[0]
			}
			if spec.Name != "" {
				if _, err := wire.ParseSandbox(spec.Name); err != nil {
					return err
				}
			}
			var err error
			if spec.Network, err = parseNetwork(network); err != nil {
				return err
			}
			if spec.Trust, err = parseTrust(trust); err != nil {
				return err
			}
			if spec.Limits.Memory, err = parseSize("memory", memory); err != nil {
				return err
			}
			if c := spec.Limits.CPUs; cmd.Flags().Changed("cpus") && (c <= 0 || math.IsNaN(c) || math.IsInf(c, 0)) {
				return usage("--cpus %v: a sandbox needs a number above 0", c)
			}
			if cmd.Flags().Changed("pids") && spec.Limits.PIDs <= 0 {
				return usage("--pids %d: a sandbox needs more than none", spec.Limits.PIDs) // how many is the backend's to say
			}
			for _, kv := range spec.Env {
				if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
					return usage("--env %q: write NAME=VALUE", kv)
				}
			}
			if noEntry {
				spec.Entrypoint = sandbox.EntrypointOff
			}
			began := time.Now()
			info, err := env.Hub.Create(cmd.Context(), env.Principal, spec, env.progress(asJSON))
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(env.describeJSON(info))
			}
			fmt.Fprintf(env.Stdout, "%s ready in %.2f s (%s, network %s)\n  %s\n", info.Name, time.Since(began).Seconds(), info.ShortImage(),
				info.Network, env.Gateway.SSHCommand(info.Name))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Image, "image", "", "image to boot (default "+sandbox.DefaultImage+")")
	f.StringVar(&network, "network", "", "none or bridge")
	f.StringVar(&memory, "memory", "", "most memory, swap included, such as 512m (default 2g)")
	f.Float64Var(&spec.Limits.CPUs, "cpus", 0, "most processor cores (default 2)")
	f.Int64Var(&spec.Limits.PIDs, "pids", 0, "most processes and threads (default 512)")
	f.StringVar(&spec.User, "user", "", "user inside: name, uid or uid:gid (default the image's)")
	f.BoolVar(&spec.Sudo, "sudo", false, "let setuid programs gain rights (leaves out no-new-privileges)")
	f.StringArrayVar(&spec.Env, "env", nil, "NAME=VALUE for every process; may be repeated")
	f.BoolVar(&noEntry, "no-entrypoint", false, "do not run the image's ENTRYPOINT and CMD")
	f.StringVar(&trust, "trust", "", "certificate authorities inside: host or image (default host)")
	f.BoolVar(&spec.Reuse, "if-missing", false, "a sandbox that has the name already is the answer")
	f.BoolVar(&asJSON, "json", false, "print one object")
	laterFlags(cmd, "host", "mount", "dockerfile", "allow", "disk", "ttl", "isolation")
	return cmd
}

// progress prints what takes long, to people only.
func (env *Env) progress(quiet bool) func(string) {
	if quiet {
		return nil
	}
	return func(line string) { fmt.Fprintln(env.Stderr, line) }
}

func parseNetwork(s string) (sandbox.Network, error) {
	switch n := sandbox.Network(s); n {
	case "", sandbox.NetworkNone, sandbox.NetworkBridge:
		return n, nil
	case sandbox.NetworkFiltered, sandbox.NetworkAllowlist:
		return "", &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("--network %s: not in this version", n), Hint: "use none or bridge"}
	}
	return "", usage("--network %q: use none or bridge", s)
}

func parseTrust(s string) (sandbox.Trust, error) {
	switch t := sandbox.Trust(s); t {
	case "", sandbox.TrustHost, sandbox.TrustImage:
		return t, nil
	}
	return "", usage("--trust %q: use host or image", s)
}

// ParseSize reads a number of bytes with an optional suffix k, m, g or t (powers of 1024, in either case, with or without
// a b behind it). It must be above 0.
func ParseSize(s string) (int64, error) {
	number, shift := strings.TrimSuffix(strings.ToLower(s), "b"), 0
	if number != "" {
		if at := strings.IndexByte("kmgt", number[len(number)-1]); at >= 0 {
			number, shift = number[:len(number)-1], 10*(at+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is not a size such as 512m or 2g", s)
	}
	return n << shift, nil
}

// parseSize is ParseSize for a flag that may be missing: then it is 0.
func parseSize(flag, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := ParseSize(s)
	if err != nil {
		return 0, usage("--%s: %v", flag, err)
	}
	return n, nil
}

// needs says whether a sandbox waits for a person: its first session that asks or died.
func needs(info gateway.Info) (what, since, last string) {
	for _, s := range info.Sessions {
		switch {
		case s.State.Phase == wire.PhaseWaiting:
			what = "asks"
		case s.State.Attention == "likely":
			what = "attention"
		case s.State.Phase == wire.PhaseDead && s.Name != "entrypoint" && s.Argv == nil && (s.State.ExitCode == nil || *s.State.ExitCode != 0):
			what = "dead"
		default:
			continue
		}
		if s.Name != wire.DefaultSession {
			what += " (" + s.Name + ")"
		}
		last = s.State.LastLine
		if s.State.Prompt != "" {
			last = s.State.Prompt
		}
		return what, age(time.UnixMilli(s.State.SinceUnix)), last
	}
	return "", "", ""
}

// age is how long ago t was, short.
func age(t time.Time) string {
	if t.IsZero() || t.UnixMilli() == 0 {
		return ""
	}
	d := max(time.Since(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// clean makes text of a sandbox safe for a person's terminal, on one line of at most n characters.
func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func lsCommand(env *Env) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list sandboxes, and which need a person",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "ls --watch: not in this version"}
			}
			all, err := env.Hub.List(cmd.Context(), env.Principal)
			if err != nil {
				return err
			}
			if asJSON {
				for _, info := range all {
					if err := env.printJSON(env.describeJSON(info)); err != nil {
						return err
					}
				}
				return nil
			}
			if len(all) == 0 {
				fmt.Fprintln(env.Stderr, "no sandboxes; make one: sandboxd new demo")
				return nil
			}
			return table(env.Stdout, func(w io.Writer) {
				fmt.Fprintln(w, "NAME\tSTATE\tNEEDS\tSINCE\tIMAGE\tNETWORK\tSESSIONS\tLAST")
				for _, info := range all {
					what, since, last := needs(info)
					if since == "" {
						since = age(info.Since)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", info.Name, info.State, dash(what), since, clean(info.ShortImage(), 40),
						info.Network, len(info.Sessions), dash(clean(last, 60)))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line")
	cmd.Flags().BoolVar(&watch, "watch", false, "")
	_ = cmd.Flags().MarkHidden("watch")
	return cmd
}

// plural is n things, in words.
func plural(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		return fmt.Sprintf("%d %ses", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// dash fills a cell that would be empty: columns stay columns for awk, too.
func dash(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return "-"
	}
	return s
}

func table(w io.Writer, rows func(io.Writer)) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	rows(t)
	return t.Flush()
}

// sandboxJSON is Info with what a client needs to connect.
type sandboxJSON struct {
	gateway.Info
	URI        string `json:"ssh_uri"`
	SSHCommand string `json:"ssh_command"`
	KnownHosts string `json:"known_hosts"`
}

func (env *Env) describeJSON(info gateway.Info) sandboxJSON {
	return sandboxJSON{info, env.Gateway.URI(info.Name), env.Gateway.SSHCommand(info.Name), env.Gateway.KnownHosts}
}

func describeCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "say all there is to know about a sandbox",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := env.Hub.Describe(cmd.Context(), env.Principal, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(struct {
					gateway.Description
					URI        string `json:"ssh_uri"`
					SSHCommand string `json:"ssh_command"`
					KnownHosts string `json:"known_hosts"`
				}{d, env.Gateway.URI(d.Name), env.Gateway.SSHCommand(d.Name), env.Gateway.KnownHosts})
			}
			return table(env.Stdout, func(w io.Writer) { describeText(w, env, d) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func describeText(w io.Writer, env *Env, d gateway.Description) {
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); strings.TrimSpace(text) != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, strings.TrimSpace(clean(text, 400)))
		}
	}
	line("name", "%s", d.Name)
	line("state", "%s %s", d.State, d.Reason)
	line("health", "%s", d.Health)
	line("owner", "%s", d.Owner)
	line("created", "%s (%s ago)", d.Created.Format(time.RFC3339), age(d.Created))
	line("image", "%s %s", d.Image, d.Digest)
	line("system", "%s %s %s", d.OS, d.Kernel, d.Arch)
	line("user", "%s", d.Account)
	line("cwd", "%s", d.Cwd)
	line("shell", "%s", d.Shell)
	line("isolation", "%s", d.Isolation)
	line("network", "%s", d.NetworkText)
	line("limits", "%s", d.LimitsText)
	line("usage", "%s", d.Usage)
	var tools []string
	for name := range d.Tools {
		tools = append(tools, name)
	}
	slices.Sort(tools)
	line("tools", "%s", strings.Join(tools, " "))
	for _, note := range d.Notes {
		line("note", "%s", note)
	}
	for _, s := range d.Sessions {
		line("session", "%s: %s %s", s.Name, s.State.Phase, strings.Join(s.Argv, " "))
	}
	line("join", "%s", env.Gateway.SSHCommand(d.Name))
}

func rmCommand(env *Env) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "rm NAME… | --all",
		Short: "remove sandboxes with their files and records",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("rm: name the sandboxes, or say --all")
			}
			if all {
				infos, err := env.Hub.List(cmd.Context(), env.Principal)
				if err != nil {
					return err
				}
				for _, info := range infos {
					args = append(args, info.Name)
				}
			}
			return env.each(args, asJSON, "removed", func(name string) error { return env.Hub.Remove(cmd.Context(), env.Principal, name) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all of yours")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

// each does one thing to several sandboxes; one that fails does not keep the others from it. The first error ends it.
func (env *Env) each(names []string, asJSON bool, did string, do func(name string) error) error {
	failed := 0
	for _, name := range names {
		err := do(name)
		if err != nil {
			public := env.public(err)
			failed = Fail(env.Stdout, env.Stderr, asJSON, public)
			continue
		}
		if asJSON {
			if err := env.printJSON(map[string]string{"name": name, "done": did}); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(env.Stdout, "%s %s\n", name, did)
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
		Short: "end all processes of a sandbox; its files stay",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(args, asJSON, "stopped", func(name string) error { return env.Hub.Stop(cmd.Context(), env.Principal, name) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

func startCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "start NAME…",
		Short: "start a stopped sandbox again",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(args, asJSON, "started", func(name string) error {
				_, err := env.Hub.Start(cmd.Context(), env.Principal, name, env.progress(asJSON))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

func rescueCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rescue NAME",
		Short: "kill every process of a sandbox; its files stay",
		Long:  "Kill every process of a sandbox but its guest, such as after a fork bomb. Files stay; sessions end and start anew.",
		Args:  cobra.ExactArgs(1),
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
