package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func daemonCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "start, stop and inspect the daemon on this machine",
		Long: "Start, stop and inspect the daemon that serves the state directory. `sandboxd\n" +
			"up` and `sandboxd down` are short for `daemon start` and `daemon stop`.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.upCommand("start"), c.downCommand("stop"), statusCommand(c), logsCommand(c))
	return cmd
}

// exitNotRunning is the exit code of daemon status when no daemon runs, as of other status commands
// (LSB, init scripts).
const exitNotRunning = 3

// daemonStatus is the output of daemon status --json. The other fields are empty if no daemon runs.
type daemonStatus struct {
	Running bool `json:"running"`
	// Answers reports that the daemon lets this command log in. Problem says why not.
	Answers bool   `json:"answers"`
	Problem string `json:"problem,omitempty"`

	endpoint
	Started   *time.Time    `json:"started,omitempty"`
	Config    string        `json:"config,omitempty"` // the file of --config
	Log       string        `json:"log,omitempty"`    // absent in the foreground
	Sandboxes *sandboxCount `json:"sandboxes,omitempty"`
}

// sandboxCount counts the sandboxes of the user.
type sandboxCount struct {
	Running int `json:"running"`
	Total   int `json:"total"` // with those that are stopped
}

func statusCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show whether the daemon runs, and where it answers",
		Long: "Show whether a daemon serves the state directory, where it answers, and how\n" +
			"many sandboxes you have. The exit code is 0 if it answers, 3 if none runs, and\n" +
			"125 if it does not answer.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.gateway != "" {
				return usage("daemon status: --gateway is not supported",
					"omit it, or list the sandboxes of that daemon: sandboxd ls")
			}
			s := askStatus(cmd.Context(), c)
			if asJSON {
				if err := text.WriteJSON(os.Stdout, s); err != nil {
					return err
				}
			} else if err := printStatus(os.Stdout, s); err != nil {
				return err
			}
			switch {
			case !s.Running:
				return exitCode(exitNotRunning)
			case !s.Answers:
				return exitCode(wire.ExitFailed)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// askStatus asks the daemon of the state directory.
func askStatus(ctx context.Context, c *cli) daemonStatus {
	state := string(c.config.State)
	e, err := c.daemon()
	if err != nil {
		return daemonStatus{endpoint: endpoint{State: state}}
	}
	s := daemonStatus{Running: true, endpoint: e}
	if info, err := os.Stat(filepath.Join(state, endpointFile)); err == nil {
		// The file is written once, when the daemon is ready.
		at := info.ModTime().UTC().Truncate(time.Second)
		s.Started = &at
	}
	how, err := readStarted(state)
	if err == nil {
		s.Config = how.Config
	}
	if !how.Serve {
		s.Log = logFilePath(state)
	}
	all, err := c.sandboxes(ctx)
	if err != nil {
		s.Problem = public(err).Message
		return s
	}
	s.Answers = true
	s.Sandboxes = &sandboxCount{Total: len(all)}
	for _, info := range all {
		if info.State == agent.SandboxRunning {
			s.Sandboxes.Running++
		}
	}
	return s
}

func printStatus(w io.Writer, s daemonStatus) error {
	if !s.Running {
		_, err := fmt.Fprintf(w, "no daemon runs for %s\n  start it: sandboxd daemon start\n",
			s.State)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "daemon\tsandboxd %s, pid %d\n", s.Version, s.PID)
	if s.Started != nil {
		fmt.Fprintf(t, "started\t%s\n", s.Started.Local().Format(time.DateTime))
	}
	fmt.Fprintf(t, "ssh\t%s\n", s.SSH)
	if s.HTTP != nil {
		fmt.Fprintf(t, "http\t%s\n", *s.HTTP)
	}
	fmt.Fprintf(t, "state\t%s\n", s.State)
	fmt.Fprintf(t, "config\t%s\n", cmp.Or(s.Config, "-"))
	fmt.Fprintf(t, "log\t%s\n", cmp.Or(s.Log, "standard error of sandboxd serve"))
	if s.Answers {
		fmt.Fprintf(t, "sandboxes\t%d running, %d in all\n", s.Sandboxes.Running, s.Sandboxes.Total)
	} else {
		fmt.Fprintf(t, "problem\t%s\n", text.Line(s.Problem, 400))
	}
	return t.Flush()
}

func logsCommand(c *cli) *cobra.Command {
	var lines int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [-f] [-n LINES]",
		Short: "print the log of a daemon in the background",
		Long: "Print the end of daemon.log in the state directory. A daemon that runs in the\n" +
			"foreground, or as a service, logs to standard error instead.\n\n" +
			"The keys log.max_size and log.max_files say when the file is rotated, and how\n" +
			"many rotated files are kept.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lines < 0 {
				return usage(fmt.Sprintf("daemon logs: -n %d: must not be negative", lines),
					"write the number of lines, such as -n 20")
			}
			state := string(c.config.State)
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			shown := shownOn(os.Stdout)
			defer shown.Close()
			err := copyLog(ctx, shown, logFilePath(state), lines, follow)
			if errors.Is(err, fs.ErrNotExist) {
				return &wire.Error{Code: wire.CodeUnavailable,
					Message: "no daemon has run in the background for " + state,
					Hint: "start it: sandboxd daemon start; " +
						"the log of sandboxd serve is on its standard error"}
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new lines until ^C")
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "number of lines to print")
	return cmd
}
