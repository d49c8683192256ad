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

// progress returns a function that prints progress to stderr, or nil if quiet.
func (env *Env) progress(quiet bool) func(string) {
	if quiet {
		return nil
	}
	// may be output of a build
	return func(line string) { fmt.Fprintln(env.Stderr, text.Lines(line)) }
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
	held := ""
	if d.Held {
		held = "until a user resumes it"
	}
	line("state", "%s %s%s", d.State, d.Reason, held)
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
	line("secrets", "%s", strings.Join(d.Secrets, " "))
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
			return env.all(cmd.Context(), args, asJSON, func(name string) error {
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
func (env *Env) each(ctx context.Context, names []string, asJSON bool, did string,
	do func(name string) error) error {
	return env.all(ctx, names, asJSON, func(name string) error {
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
func (env *Env) all(ctx context.Context, names []string, asJSON bool,
	do func(name string) error) error {
	failed := 0
	for _, name := range names {
		if err := do(name); err != nil {
			failed = Fail(env.Stdout, env.Stderr, asJSON, env.publicExisting(ctx, err))
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
			return env.each(cmd.Context(), args, asJSON, "stopped", func(name string) error {
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
			return env.each(cmd.Context(), args, asJSON, "started", func(name string) error {
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
