package command

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// ParseAge parses a duration such as 90s, 30m or 12h, or a number of days such as 30d. It returns 0
// for "0".
func ParseAge(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil && n > 0 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("invalid duration: write 30m, 12h or 30d")
	}
	return d, nil
}

// parseLife is ParseAge for a flag: it returns 0 if the flag is not set, and lifecycle.Never for
// "0".
func parseLife(flag, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := ParseAge(s)
	switch {
	case err != nil:
		return 0, usage("--%s %q: %v, or 0 for never", flag, s, err)
	case d == 0:
		return lifecycle.Never, nil
	}
	return d, nil
}

// idleText describes when a sandbox is stopped and removed. It is empty if neither ever happens.
func idleText(i lifecycle.Info) string {
	ttl, deletion := time.Duration(i.TTLms)*time.Millisecond,
		time.Duration(i.DeleteAfterMS)*time.Millisecond
	var said []string
	switch {
	case i.StopsAt != nil:
		said = append(said, fmt.Sprintf("stops in %v unless it is used (ttl %v)",
			time.Until(*i.StopsAt).Round(time.Second), ttl))
	case i.UsedBy != "":
		said = append(said, fmt.Sprintf("stops after %v without use; now %s", ttl, i.UsedBy))
	case ttl > 0:
		said = append(said, fmt.Sprintf("stops after %v without use", ttl))
	}
	switch {
	case i.RemovedAt != nil:
		said = append(said, fmt.Sprintf("REMOVED WITH ITS FILES in %v unless it is started",
			time.Until(*i.RemovedAt).Round(time.Second)))
	case deletion > 0:
		said = append(said, fmt.Sprintf("removed after it has been stopped for %v", deletion))
	}
	if i.End != nil && !i.End.At.IsZero() {
		said = append(said, i.End.Text())
	}
	return strings.Join(said, "; ")
}

// ttlCell is idleText in one word: the time until the sandbox stops, or "rm:" and the time until it
// is removed.
func ttlCell(i lifecycle.Info) string {
	switch {
	case i.End != nil && !i.End.At.IsZero() && !i.End.Pause:
		return "rm:" + gateway.Span(time.Until(i.End.At))
	case i.StopsAt != nil:
		return gateway.Span(time.Until(*i.StopsAt))
	case i.RemovedAt != nil:
		return "rm:" + gateway.Span(time.Until(*i.RemovedAt))
	case i.TTLms > 0 && i.State == lifecycle.Running:
		return gateway.Span(time.Duration(i.TTLms) * time.Millisecond)
	}
	return ""
}

func pauseCommand(env *Env) *cobra.Command {
	var asJSON, hold bool
	cmd := &cobra.Command{
		Use:   "pause NAME…",
		Short: "suspend all processes of sandboxes",
		Long: "Suspend all processes of a sandbox. It keeps its memory and uses no CPU.\n" +
			"resume continues it, as does the next run, type or keys, and a user who\n" +
			"attaches to work in it: with --hold these are rejected instead. Calls that\n" +
			"follow a command return as lost; exec and connections wait.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(cmd.Context(), args, asJSON, "paused", func(name string) error {
				return env.Hub.Pause(cmd.Context(), env.Principal, name, hold)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	cmd.Flags().BoolVar(&hold, "hold", false,
		"reject new commands until resume or start continues it")
	return cmd
}

func resumeCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "resume NAME…",
		Short: "continue the processes of paused sandboxes",
		Long: "Continue the processes of paused sandboxes. For a sandbox that is not paused,\n" +
			"it does nothing if the sandbox runs, and fails if it is stopped.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(cmd.Context(), args, asJSON, "resumed", func(name string) error {
				return env.Hub.Resume(cmd.Context(), env.Principal, name)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

func snapshotCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "snapshot NAME [TAG]",
		Short: "save the files of a sandbox as an image",
		Long: "Save the files of a sandbox as an image for your new sandboxes. The sandbox is\n" +
			"suspended while its files are copied. The image has no processes, sessions,\n" +
			"keys or mounted directories. TAG names the image (default: the time in UTC).",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			tag := ""
			if len(args) == 2 {
				tag = args[1]
			}
			image, err := env.Hub.Snapshot(cmd.Context(), env.Principal, args[0], tag)
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(map[string]string{"name": args[0], "image": image})
			}
			fmt.Fprintf(env.Stdout, "saved %s as image %s\n  sandboxd new --image %s\n", args[0],
				image, image)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func forkCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fork NAME NEW",
		Short: "copy a sandbox with its files",
		Long: "Create the sandbox NEW with the settings and the current files of NAME. NAME\n" +
			"is suspended while its files are copied. The variables of new --env are\n" +
			"copied, too. Processes, sessions, recordings, shares and keys are not.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			began := time.Now()
			info, err := env.Hub.Fork(cmd.Context(), env.Principal, args[0], args[1],
				env.progress(asJSON))
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(env.describeJSON(info))
			}
			fmt.Fprintf(env.Stdout, "%s ready in %.2f s (fork of %s, network %s)\n  %s\n",
				info.Name, time.Since(began).Seconds(), args[0], info.Network,
				env.Gateway.SSHCommand(info.Name))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
