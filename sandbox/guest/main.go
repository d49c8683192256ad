//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Exit statuses of the program.
const (
	exitUsage  = 64 // sysexits(3)
	exitConfig = 78
)

// Main is the program: args are those of the process. As PID 1, or with the argument init, it is
// the init process of a sandbox; with pod, that of a sandbox that waits for its configuration, and
// for connections. keep, sftp and true are its own children. With relay it connects its standard
// input and output to such a sandbox; with install it copies itself to a file. With stdio and host
// it serves sessions on a machine that has its own SSH server. It returns the exit status.
func Main(args []string) int {
	mode := ""
	if len(args) > 1 {
		mode = args[1]
	} else if os.Getpid() == 1 {
		mode = "init"
	}
	switch mode {
	case "init", "pod":
		return runInit(mode == "pod")
	case "keep":
		return runKeeper()
	case "sftp":
		return runSFTP()
	case "true":
		return 0
	case "stdio", "host", "relay", "install":
		if len(args) != 3 {
			break
		}
		run := map[string]func(string) int{"stdio": runStdio, "host": runHost, "relay": runRelay,
			"install": runInstall}[mode]
		return run(args[2])
	case "version":
		// Its checksum identifies it; peers need the protocol version.
		fmt.Println(Software, wire.Version)
		return 0
	}
	fmt.Fprintf(os.Stderr, "usage: %s init | pod | relay ADDRESS | install FILE | stdio DIR | version\n", Name)
	return exitUsage
}

// runSFTP serves files on standard input and output with the rights of this process. Hostile
// packets end only this process. Paths are relative to its directory, which it does not tell the
// library: that would make the targets of symbolic links absolute.
func runSFTP() int {
	if _, err := os.Getwd(); err != nil { // the directory was removed
		_ = os.Chdir("/")
	}
	server, err := sftp.NewServer(standard{})
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd:", err)
		return 1
	}
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "sandboxd: sftp:", err)
		return 1
	}
	return 0
}

// standard is standard input and output as one connection.
type standard struct{}

func (standard) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (standard) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (standard) Close() error                { return unix.Close(1) }
