package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Set by make build: the release, the commit, and its time (RFC 3339, UTC).
var version, commit, date string

// build describes this program.
var build = readBuild(debug.ReadBuildInfo())

// unknown is the value that neither the Makefile nor Go recorded.
const unknown = "unknown"

// buildFacts describe how a program was built. No field depends on the time or the machine of the
// build.
type buildFacts struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // ends in -dirty if files had changed
	Date     string `json:"date"`   // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuild returns what make build recorded, or else what Go recorded: go install records the
// module's version, go build in a checkout the commit.
func readBuild(info *debug.BuildInfo, ok bool) buildFacts {
	b := buildFacts{Version: version, Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if ok {
		recorded := make(map[string]string)
		for _, s := range info.Settings {
			recorded[s.Key] = s.Value
		}
		revision := recorded["vcs.revision"]
		if revision != "" && recorded["vcs.modified"] == "true" {
			revision += "-dirty"
		}
		b.Version = cmp.Or(b.Version, strings.TrimPrefix(info.Main.Version, "v"))
		b.Commit = cmp.Or(b.Commit, revision)
		b.Date = cmp.Or(b.Date, recorded["vcs.time"])
	}
	b.Version, b.Commit = cmp.Or(b.Version, unknown), cmp.Or(b.Commit, unknown)
	b.Date = cmp.Or(b.Date, unknown)
	return b
}

func versionCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the versions of this program and of the daemon",
		Long: "Print the version of this program, the commit that it was built from, and the\n" +
			"version of the daemon on this machine, if one answers. A daemon keeps its\n" +
			"version until it is restarted.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			daemon := c.daemonVersion(cmd.Context())
			if c.json {
				return text.WriteJSON(os.Stdout, struct {
					buildFacts
					Daemon *string `json:"daemon"` // null if none answers
				}{build, daemon})
			}
			printVersion(os.Stdout, build, daemon)
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print one object; daemon is null if none answers")
	return cmd
}

func printVersion(w io.Writer, b buildFacts, daemon *string) {
	running := "none answers"
	if daemon != nil {
		running = *daemon
	}
	fmt.Fprintf(w, "sandboxd %s %s\n", b.Version, b.Platform)
	fmt.Fprintf(w, "  commit   %s\n", b.Commit)
	fmt.Fprintf(w, "  date     %s\n", b.Date)
	fmt.Fprintf(w, "  go       %s\n", b.Go)
	fmt.Fprintf(w, "  daemon   %s\n", running)
}

// daemonVersion returns the version of the daemon that answers for the state directory, or nil.
func (c *cli) daemonVersion(ctx context.Context) *string {
	e, err := c.daemon()
	if err != nil {
		return nil
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", e.address())
	if err != nil {
		return nil
	}
	conn.Close()
	return &e.Version
}
