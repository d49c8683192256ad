// Package files serves SFTP for a machine without it: each request becomes a shell command there,
// with exact bytes, modes and times. Use it for an SSH server that rejects the subsystem and runs
// commands. It knows no SSH: the caller provides a way to run a command.
//
// The machine needs a POSIX shell and its usual tools (cat, stat, find, touch, …), of GNU, busybox
// or BSD.
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

// Run runs a command on the machine, with the account's shell, and returns its exit code. An error
// means that it did not run or did not end. ctx bounds it.
type Run func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) (
	int, error)

// probeTime bounds the check whether a machine has the tools.
const probeTime = 20 * time.Second

// Serve serves one SFTP connection until the client or ctx ends it. An error before the first
// request means that the machine lacks the tools, and says why; the client has received nothing
// then.
func Serve(ctx context.Context, client io.ReadWriteCloser, run Run) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &machine{ctx: ctx, run: run, uploads: make(map[string]*upload)}
	home, err := m.home()
	if err != nil {
		return err
	}
	server := sftp.NewRequestServer(client, sftp.Handlers{FileGet: m, FilePut: m, FileCmd: m,
		FileList: m}, sftp.WithStartDirectory(home))
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_ = server.Serve() // ends when the client leaves
	return nil
}

// machine is the machine with the files. Besides downloads, it runs one command at a time: servers
// allow few channels on a connection.
type machine struct {
	ctx  context.Context //nolint:containedctx // of the connection, whose requests have none
	run  Run
	turn sync.Mutex // held while a command runs

	mu      sync.Mutex
	uploads map[string]*upload // guarded by mu; open ones, by name
}

// home returns the directory of relative names, and checks that the machine has the tools.
func (m *machine) home() (string, error) {
	ctx, cancel := context.WithTimeoutCause(
		m.ctx, probeTime, fmt.Errorf("no answer within %v", probeTime))
	defer cancel()
	out, err := m.ask(ctx, `stat_ / >/dev/null && pwd`)
	if err != nil {
		return "", fmt.Errorf("it has no SFTP, and its shell lacks the tools to serve files: %w",
			err)
	}
	home := strings.TrimSuffix(string(out), "\n")
	if !strings.HasPrefix(home, "/") {
		return "", fmt.Errorf("it has no SFTP, and its shell has no directory: it printed %.80q",
			home)
	}
	return home, nil
}

// prelude begins all scripts. stat_ prints a line for each name: mode in hexadecimal, size, time,
// owner, group. Start-up files may have read none or some of the input, so the script's input
// begins after a line with a random key.
const prelude = `export LC_ALL=C
stat_() { stat -c "%%f %%s %%Y %%u %%g" -- "$@" 2>/dev/null || stat -f "%%Xp %%z %%m %%u %%g" -- "$@" 2>/dev/null || { ls -dn -- "$@" >/dev/null && { echo "no stat" >&2; false; }; }; }
follow_() { stat -L -c "%%f %%s %%Y %%u %%g" -- "$@" 2>/dev/null || stat -L -f "%%Xp %%z %%m %%u %%g" -- "$@" 2>/dev/null || { ls -dnL -- "$@" >/dev/null && { echo "no stat" >&2; false; }; }; }
while IFS= read -r l; do [ "$l" != %[1]s-in ] || break; done
printf "\n%[1]s-out\n"
`

// ask runs a script and returns its output.
func (m *machine) ask(ctx context.Context, script string, args ...string) ([]byte, error) {
	m.turn.Lock()
	defer m.turn.Unlock()
	var out answer
	err := m.stream(ctx, nil, &out, script, args...)
	return out.Bytes(), err
}

// maxAnswer is more than a directory of a hundred thousand names needs. An answer is kept in
// memory.
const maxAnswer = 32 << 20

// answer is the output of a script, up to maxAnswer.
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

// stream runs a script with the parameters $1, … and stdin, and writes its output to stdout. The
// error of a failed script is its standard error.
func (m *machine) stream(ctx context.Context, stdin io.Reader, stdout io.Writer, script string,
	args ...string) error {
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
	from := &afterMark{mark: []byte("\n" + key + "-out\n"), to: stdout}
	// If start-up files replace the shell, the new one reads its input, so the command comes there,
	// too.
	in := io.MultiReader(strings.NewReader(command+"\n"+key+"-in\n"), stdin)
	code, err := m.run(ctx, command, in, from, &said)
	switch {
	case from.err != nil:
		return from.err
	case err != nil:
		return err
	case !from.found:
		return fmt.Errorf("runs another command: %.200s", said.line())
	case code != 0:
		return failure(said.line(), code)
	}
	return nil
}

// failure returns the error of a failed script: one that SFTP knows, if it matches.
func failure(said string, code int) error {
	for text, err := range map[string]error{"No such file": os.ErrNotExist,
		"nonexistent": os.ErrNotExist, "ermission denied": os.ErrPermission,
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

// afterMark passes on everything after a mark.
type afterMark struct {
	mark  []byte
	to    io.Writer
	held  []byte
	found bool
	err   error // error of to
}

func (b *afterMark) Write(p []byte) (int, error) {
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

// tail keeps the end of the written text.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-2048):]
	return len(p), nil
}

// line returns the last line.
func (t *tail) line() string {
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
