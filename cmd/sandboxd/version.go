package main

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/sandboxd/sandboxd/sandbox/wire"
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
			"version of the daemon on this machine, if one answers; also its commit, if that\n" +
			"is another. A daemon keeps its version until it is restarted.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			daemon := c.answering(cmd.Context())
			if c.json {
				out := struct {
					buildFacts
					Daemon *string `json:"daemon"` // its version; null if none answers
					From   *string `json:"daemon_commit"`
				}{buildFacts: build}
				if daemon != nil {
					out.Daemon, out.From = &daemon.Version, &daemon.Commit
				}
				return text.WriteJSON(os.Stdout, out)
			}
			printVersion(os.Stdout, build, daemon)
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print one object; daemon and daemon_commit are null if none answers")
	return cmd
}

func printVersion(w io.Writer, b buildFacts, daemon *endpoint) {
	running := "none answers"
	if daemon != nil {
		running = daemon.Version
		if daemon.Commit != b.Commit {
			running += ", commit " + cmp.Or(daemon.Commit, unknown)
		}
	}
	fmt.Fprintf(w, "sandboxd %s %s\n", b.Version, b.Platform)
	fmt.Fprintf(w, "  commit   %s\n", b.Commit)
	fmt.Fprintf(w, "  date     %s\n", b.Date)
	fmt.Fprintf(w, "  go       %s\n", b.Go)
	fmt.Fprintf(w, "  daemon   %s\n", running)
}

// answering returns the daemon that answers for the state directory, or nil.
func (c *cli) answering(ctx context.Context) *endpoint {
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
	return &e
}

// otherBuild prints a note if err is the exit code of a usage error, and the daemon on this machine
// was built from another commit: it may reject what this program knows. The exit code may also be
// that of a command in a sandbox. It returns err.
func (c *cli) otherBuild(err error) error {
	if exit, ok := errors.AsType[exitCode](err); !ok || exit != wire.ExitUsage || c.gateway != "" {
		return err
	}
	e, gone := c.daemon()
	if gone == nil && (e.Version != build.Version || e.Commit != build.Commit) {
		fmt.Fprintf(os.Stderr, "note: the daemon is sandboxd %s, commit %s, and this program %s, "+
			"commit %s; to restart the daemon: sandboxd down && sandboxd up\n",
			text.Line(e.Version, 100), text.Line(cmp.Or(e.Commit, unknown), 100), build.Version,
			build.Commit)
	}
	return err
}
