package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// runtimeNames are the runtimes that this package knows, the preferred one first.
var runtimeNames = []string{"runc", "crun"}

// runtimeTime bounds one call of a runtime.
const runtimeTime = 60 * time.Second

// runtimes calls OCI runtimes. Their command line is the one of runc(8).
type runtimes struct {
	root   string // directory with the state of containers
	byUser bool   // the service manager of an ordinary user makes control groups

	mu     sync.Mutex
	loaded bool // guarded by mu; the kernel has our AppArmor profile
}

// find returns the name of a runtime of this machine: isolation, or the preferred one when that is
// empty.
func (r *runtimes) find(isolation string) (string, error) {
	for _, name := range runtimeNames {
		if isolation != "" && isolation != name {
			continue
		}
		if _, err := exec.LookPath(name); err == nil {
			return name, nil
		}
	}
	switch {
	case isolation != "" && !slices.Contains(runtimeNames, isolation):
		return "", sandbox.Hint(fmt.Errorf("isolation %q: %w: without an engine it is runc or crun",
			isolation, sandbox.ErrUnsupported), "omit it, or install Docker")
	case isolation != "":
		return "", sandbox.Hint(fmt.Errorf("isolation %q: %w: it is not installed", isolation,
			sandbox.ErrUnsupported), "install it: apt-get install "+isolation)
	}
	return "", sandbox.Hint(errors.New("neither runc nor crun is installed"),
		"install one: apt-get install runc")
}

// call runs a runtime. The container gets stdin and out, if they are set. The error has the
// runtime's own text.
func (r *runtimes) call(ctx context.Context, name string, stdin, out *os.File,
	args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeTime)
	defer cancel()
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		return err
	}
	log, err := os.CreateTemp(r.root, ".log-*")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	global := []string{"--root", r.root, "--log-format", "json", "--log", log.Name()}
	if r.byUser {
		global = append(global, "--systemd-cgroup")
	}
	cmd := exec.CommandContext(ctx, name, append(global, args...)...)
	if stdin != nil { // a nil *os.File is no nil io.Reader
		cmd.Stdin = stdin
	}
	if out != nil {
		cmd.Stdout, cmd.Stderr = out, out
	}
	err = cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	entries, _ := io.ReadAll(io.LimitReader(log, maxLog))
	if why := lastError(entries); why != "" {
		return fmt.Errorf("%s %s: %s", name, args[0], why)
	}
	return fmt.Errorf("%s %s: %w", name, args[0], err)
}

// maxLog bounds what is read of a runtime's log, in bytes; maxWhy what is shown of it.
const (
	maxLog = 64 << 10
	maxWhy = 500
)

// lastError returns the last error in a runtime's log, safe to display; "" if there is none.
func lastError(log []byte) (last string) {
	for dec := json.NewDecoder(bytes.NewReader(log)); ; {
		var entry struct{ Level, Msg string }
		if dec.Decode(&entry) != nil {
			return text.End(last, maxWhy) // the reason is at its end
		}
		if entry.Level == "error" {
			last = entry.Msg
		}
	}
}
