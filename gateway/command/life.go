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

// ParseAge reads a duration such as 90s, 30m or 12h, or a number of days as 30d. 0 is none.
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
		return 0, errors.New("is not a duration such as 30d or 12h")
	}
	return d, nil
}

// parseLife is ParseAge for a flag that may be missing: then it is 0, and 0 itself is lifecycle.Never.
func parseLife(flag, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := ParseAge(s)
	switch {
	case err != nil:
		return 0, usage("--%s: %q %v", flag, s, err)
	case d == 0:
		return lifecycle.Never, nil
	}
	return d, nil
}

// idleText says how long a sandbox is kept, or is empty where it is kept for ever.
func idleText(i lifecycle.Info) string {
	ttl, deletion := time.Duration(i.TTLms)*time.Millisecond, time.Duration(i.DeleteAfterMS)*time.Millisecond
	var said []string
	switch {
	case i.StopsAt != nil:
		said = append(said, fmt.Sprintf("stops in %v unless it is used; after %v without use", time.Until(*i.StopsAt).Round(time.Second), ttl))
	case i.UsedBy != "":
		said = append(said, fmt.Sprintf("stops after %v without use; now %s", ttl, i.UsedBy))
	case ttl > 0:
		said = append(said, fmt.Sprintf("stops after %v without use", ttl))
	}
	switch {
	case i.RemovedAt != nil:
		said = append(said, fmt.Sprintf("REMOVED WITH ITS FILES in %v unless it is started", time.Until(*i.RemovedAt).Round(time.Second)))
	case deletion > 0:
		said = append(said, fmt.Sprintf("removed when it has been stopped for %v", deletion))
	}
	if i.End != nil && !i.End.At.IsZero() {
		said = append(said, i.End.Text())
	}
	return strings.Join(said, "; ")
}

// ttlCell is the same in one word: how long until it stops, or rm: and how long until it is removed.
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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "pause NAME…",
		Short: "freeze all processes of a sandbox",
		Long: "Freeze all processes of a sandbox where they are: it keeps its memory and uses no processor. Calls that follow\n" +
			"a command end as lost; exec and connections wait. Whoever runs, types or joins to drive resumes it, as resume does.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(args, asJSON, "paused", func(name string) error { return env.Hub.Pause(cmd.Context(), env.Principal, name) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

func resumeCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "resume NAME…",
		Short: "let the processes of a paused sandbox continue",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.each(args, asJSON, "resumed", func(name string) error { return env.Hub.Resume(cmd.Context(), env.Principal, name) })
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
		Long: "Keep the files of a sandbox, as they are now, as an image of which new sandboxes of yours can be made. The sandbox is frozen while they\n" +
			"are copied. Processes, sessions and keys do not go along, nor what is mounted into it. Without TAG it is the time, in UTC.",
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
			fmt.Fprintf(env.Stdout, "%s kept as %s\n  sandboxd new --image %s\n", args[0], image, image)
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
		Long: "Make another sandbox as NAME was made, with the files that it has now. NAME is frozen while they are copied. Processes, sessions,\n" +
			"records, shares and keys are not the new one's; variables that new --env gave it are.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			began := time.Now()
			info, err := env.Hub.Fork(cmd.Context(), env.Principal, args[0], args[1], env.progress(asJSON))
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(env.describeJSON(info))
			}
			fmt.Fprintf(env.Stdout, "%s ready in %.2f s (fork of %s, network %s)\n  %s\n", info.Name, time.Since(began).Seconds(), args[0], info.Network,
				env.Gateway.SSHCommand(info.Name))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
