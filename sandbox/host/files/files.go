// Package files speaks SFTP for a machine that does not: each request becomes a shell command there, with exact bytes, modes and
// times. Reach for it where an SSH server refuses the subsystem and runs commands. It knows no SSH: who calls it brings a way
// to run a command.
//
// It needs a POSIX shell and what belongs to one (cat, stat, find, touch, …), of GNU, busybox or BSD.
package files

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
)

// Run runs a command on the machine, by the account's shell, and returns its exit code. An error means that it was not run or
// did not end. ctx bounds it.
type Run func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) (int, error)

// probeTime bounds the question whether a machine can do it.
const probeTime = 20 * time.Second

// Serve serves one SFTP connection until the client ends it. ctx ends it, too. The error before the first request says that
// the machine cannot, and why; nothing was written to the client then.
func Serve(ctx context.Context, client io.ReadWriteCloser, run Run) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &machine{ctx: ctx, run: run, uploads: make(map[string]*upload)}
	home, err := m.home()
	if err != nil {
		return err
	}
	server := sftp.NewRequestServer(client, sftp.Handlers{FileGet: m, FilePut: m, FileCmd: m, FileList: m}, sftp.WithStartDirectory(home))
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_ = server.Serve() // however the client ended it
	return nil
}

// machine is the other side. Beside files that are on their way here, one command runs there at a time: servers allow few
// channels on a connection.
type machine struct {
	ctx  context.Context //nolint:containedctx // of the connection, whose requests have none
	run  Run
	turn sync.Mutex // held while a command runs

	mu      sync.Mutex
	uploads map[string]*upload // guarded by mu; those that are open, by name
}

// home is where relative names begin, and shows whether the machine can do what the package needs.
func (m *machine) home() (string, error) {
	ctx, cancel := context.WithTimeoutCause(m.ctx, probeTime, fmt.Errorf("no answer within %v", probeTime))
	defer cancel()
	out, err := m.ask(ctx, `stat_ / >/dev/null && pwd`)
	if err != nil {
		return "", fmt.Errorf("it has no SFTP, and its shell does not serve files: %w", err)
	}
	home := strings.TrimSuffix(string(out), "\n")
	if !strings.HasPrefix(home, "/") {
		return "", fmt.Errorf("it has no SFTP, and its shell has no directory: it says %.80q", home)
	}
	return home, nil
}

// prelude is what scripts begin with. stat_ prints a line for each name: mode in hexadecimal, size, time, owner, group. Start-up
// files may have read nothing, or the first line, of the input: what is for the script begins behind a line that only we know.
const prelude = `export LC_ALL=C
stat_() { stat -c "%%f %%s %%Y %%u %%g" -- "$@" 2>/dev/null || stat -f "%%Xp %%z %%m %%u %%g" -- "$@" 2>/dev/null || { ls -dn -- "$@" >/dev/null && { echo "no stat" >&2; false; }; }; }
follow_() { stat -L -c "%%f %%s %%Y %%u %%g" -- "$@" 2>/dev/null || stat -L -f "%%Xp %%z %%m %%u %%g" -- "$@" 2>/dev/null || { ls -dnL -- "$@" >/dev/null && { echo "no stat" >&2; false; }; }; }
while IFS= read -r l; do [ "$l" != %[1]s-in ] || break; done
printf "\n%[1]s-out\n"
`

// ask runs a script and returns what it printed.
func (m *machine) ask(ctx context.Context, script string, args ...string) ([]byte, error) {
	m.turn.Lock()
	defer m.turn.Unlock()
	var out answer
	err := m.stream(ctx, nil, &out, script, args...)
	return out.Bytes(), err
}

// maxAnswer is more than a directory of a hundred thousand names. What a machine says is kept in memory whole.
const maxAnswer = 32 << 20

// answer is what a script printed, up to maxAnswer.
type answer struct{ bytes.Buffer }

func (a *answer) Write(p []byte) (int, error) {
	if a.Len()+len(p) > maxAnswer {
		return 0, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	}
	return a.Buffer.Write(p)
}

// do runs a script that prints nothing.
func (m *machine) do(script string, args ...string) error {
	_, err := m.ask(m.ctx, script, args...)
	return err
}

// stream runs a script, with $1, … as given, on stdin, and writes what it prints to stdout. An error of the script is what it
// says on its standard error.
func (m *machine) stream(ctx context.Context, stdin io.Reader, stdout io.Writer, script string, args ...string) error {
	key := rand.Text()
	words := []string{"exec /bin/sh -c", quote(fmt.Sprintf(prelude, key) + script), "sh"}
	for _, a := range args {
		words = append(words, quote(a))
	}
	command := strings.Join(words, " ")
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	var said tail
	from := &behind{mark: []byte("\n" + key + "-out\n"), to: stdout}
	// Start-up files that put another shell in place make it read its input: the command comes there, too.
	in := io.MultiReader(strings.NewReader(command+"\n"+key+"-in\n"), stdin)
	code, err := m.run(ctx, command, in, from, &said)
	switch {
	case from.err != nil:
		return from.err
	case err != nil:
		return err
	case !from.found:
		return fmt.Errorf("runs something else: %.200s", said.line())
	case code != 0:
		return failure(said.line(), code)
	}
	return nil
}

// failure is the error that SFTP has a word for, where there is one.
func failure(said string, code int) error {
	for text, err := range map[string]error{"No such file": os.ErrNotExist, "nonexistent": os.ErrNotExist, "ermission denied": os.ErrPermission,
		"not permitted": os.ErrPermission} {
		if strings.Contains(said, text) {
			return err
		}
	}
	if said == "" {
		said = fmt.Sprintf("exit code %d", code)
	}
	return errors.New(said)
}

// behind passes on what comes behind a mark.
type behind struct {
	mark  []byte
	to    io.Writer
	held  []byte
	found bool
	err   error // of to
}

func (b *behind) Write(p []byte) (int, error) {
	rest := p
	if !b.found {
		b.held = append(b.held, p...)
		_, after, ok := bytes.Cut(append([]byte("\n"), b.held...), b.mark)
		if !ok {
			if keep := len(b.held) - len(b.mark); keep > 0 {
				b.held = b.held[keep:]
			}
			return len(p), nil
		}
		b.found, rest = true, after
	}
	if len(rest) > 0 && b.err == nil {
		_, b.err = b.to.Write(rest)
	}
	return len(p), b.err
}

// tail keeps the end of what is written.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-2048):]
	return len(p), nil
}

// line is the last line.
func (t *tail) line() string {
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
