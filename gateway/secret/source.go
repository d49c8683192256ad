package secret

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	commandTimeout = 30 * time.Second
	// Between runs of a command, so that a sandbox cannot make the daemon start one for each of
	// its requests.
	commandPause = 10 * time.Second
)

// command is a command that prints a value. It runs when a value is needed, and the value stays in
// memory until it is rejected or expires.
type command struct {
	line string

	mu      sync.Mutex // held while it runs: others wait for the value
	known   Value      // guarded by mu
	failed  error      // guarded by mu; of the last run
	stale   bool       // guarded by mu; the server rejected known
	expires time.Time  // guarded by mu; zero: never
	ran     time.Time  // guarded by mu; end of the last run
}

// printed is a command's output in JSON.
type printed struct {
	Value   string    `json:"value"`
	Expires time.Time `json:"expires"`
}

// CheckCommand returns an error unless line can be run: words in shell quoting, without a shell.
func CheckCommand(line string) error {
	words, err := shellquote.Split(line)
	if err != nil || len(words) == 0 {
		return usage("--from-cmd: must be a program and its arguments, quoted as in a shell",
			"write --from-cmd 'pass show api-key', or --from-cmd \"sh -c '…'\" for a shell")
	}
	return nil
}

// value returns the value. It runs the command if there is none, or if it expired or was rejected.
func (c *command) value(ctx context.Context) (Value, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	expired := !c.expires.IsZero() && !now.Before(c.expires)
	switch {
	case !c.known.IsZero() && !c.stale && !expired:
		return c.known, nil
	case now.Sub(c.ran) < commandPause && c.failed != nil:
		return Value{}, c.failed
	case now.Sub(c.ran) < commandPause && !c.known.IsZero() && !expired:
		return c.known, nil // rejected again: the command would print the same
	}
	// Not ctx: a request that ends must not end the run, whose value others wait for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	value, expires, err := run(ctx, c.line)
	c.ran = time.Now()
	if err != nil {
		c.failed = fmt.Errorf("the command of --from-cmd: %w", err)
		return Value{}, c.failed
	}
	c.known, c.expires, c.failed, c.stale = value, expires, nil, false
	return value, nil
}

// forget makes the next call of value run the command.
func (c *command) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale = true
}

// run runs a command and returns what it prints. Errors contain no output: it may be a part of the
// value.
func run(ctx context.Context, line string) (v Value, expires time.Time, err error) {
	words, err := shellquote.Split(line)
	if err != nil || len(words) == 0 {
		return v, expires, errors.New("invalid command line")
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...) // #nosec G204 -- the admin's command
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	switch exit, ok := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return v, expires, fmt.Errorf("no value in %v", commandTimeout)
	case ok:
		return v, expires, errors.New(exit.ProcessState.String())
	case err != nil:
		return v, expires, err
	}
	p := printed{Value: string(out)}
	if bytes.HasPrefix(bytes.TrimSpace(out), []byte("{")) {
		p = printed{}
		if json.Unmarshal(out, &p) != nil { // its error may quote the value
			return v, expires, errors.New(
				"it printed an object that is not {\"value\":…,\"expires\":…}")
		}
	}
	if strings.TrimSpace(p.Value) == "" {
		return v, expires, errNoValue
	}
	v, err = ParseValue([]byte(p.Value))
	if known, ok := errors.AsType[*wire.Error](err); ok {
		err = errors.New(strings.TrimPrefix(known.Message, "secret: "))
	}
	return v, p.Expires, err
}

// fill returns the header of a template with a value.
func fill(template string, v Value) (name, text string, err error) {
	name, text, err = parseHeader(template)
	if err != nil {
		return "", "", err
	}
	filled := placeholder.ReplaceAllStringFunc(text, func(at string) string {
		if at == "{}" {
			return v.reveal()
		}
		user := placeholder.FindStringSubmatch(at)[1]
		return base64.StdEncoding.EncodeToString([]byte(user + ":" + v.reveal()))
	})
	return name, filled, nil
}
