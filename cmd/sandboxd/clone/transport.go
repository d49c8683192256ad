package clone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Bounds of what a command in the sandbox may send.
const (
	maxAnswer   = 1 << 20  // standard output of a script
	maxMessages = 1 << 20  // standard error
	keptMessage = 4 << 10  // its beginning, for errors
	maxGreeting = 64 << 10 // of a git before it was asked anything
)

// endTime is how long a command in the sandbox may take to end after the git of this machine has
// ended.
const endTime = 5 * time.Second

// Bounds of time, for a sandbox that does not answer.
const (
	scriptTime = 10 * time.Minute // a script may read a large work tree
	silentTime = 10 * time.Minute // of git, without a byte in either direction
)

// bounded is a writer for output of the sandbox that ends the command when there is too much.
type bounded struct {
	to   io.Writer
	most int64
	what string // for the error
	end  context.CancelCauseFunc

	n int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.n += int64(len(p)); b.n > b.most {
		err := &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("%s: longer than %s", b.what, size(b.most))}
		b.end(err)
		return 0, err
	}
	return b.to.Write(p)
}

// silent is the error for a sandbox that has not answered for a time.
func silent(d time.Duration) error {
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: fmt.Sprintf("git in the sandbox has not answered for %v", d),
		Hint:    "see what runs there: sandboxd ls"}
}

// size returns n bytes in the largest unit that is not a fraction.
func size(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n >= 1024 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

// script runs a shell script in the sandbox with arguments. It returns the script's standard output
// and exit status. said is the beginning of its standard error.
func script(ctx context.Context, box Sandbox, stdin io.Reader, code string,
	args ...string) (out []byte, said string, exit int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(scriptTime, func() { cancel(silent(scriptTime)) })
	defer late.Stop()
	words := append([]string{"sh", "-c", code, "sh"}, args...)
	stdout, stderr := &text.Head{Limit: maxAnswer}, &text.Head{Limit: keptMessage}
	ended, err := box.Exec(ctx, agent.Cmd{Command: text.Quote(words...), Stdin: stdin,
		Stdout: &bounded{to: stdout, most: maxAnswer, what: "answer of the sandbox", end: cancel},
		Stderr: &bounded{to: stderr, most: maxMessages, what: "messages of the sandbox",
			end: cancel}})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return stdout.Bytes(), stderr.String(), ended.Code, err
}

// runLinked runs git on this machine with args, and a git command in the sandbox that it talks to.
// In args, the word url is replaced by the one for this connection. most bounds what the sandbox
// may send.
func runLinked(ctx context.Context, r repository, box Sandbox, line []string, most int64,
	o call, args ...string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()

	late := time.AfterFunc(silentTime, func() { cancel(silent(silentTime)) })
	defer late.Stop()
	asked := &asks{from: ours, late: late}
	said := &text.Head{Limit: keptMessage}
	output := &bounded{to: ours, most: most, what: "answer of git in the sandbox", end: cancel}
	remote, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, 1)
	go func() { // ends with the command in the sandbox, or with remote
		exit, err := box.Exec(remote, agent.Cmd{
			// GIT_PROTOCOL is part of the command: not every server accepts the variable.
			Command: text.Quote(append([]string{"env", "GIT_PROTOCOL=version=2"}, line...)...),
			Stdin:   asked,
			Stdout:  &greeting{output, asked},
			Stderr: &bounded{to: said, most: maxMessages, what: "messages of the sandbox",
				end: cancel},
		})
		_ = ours.CloseWrite() // an error means that git has ended
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("exit status %d", exit.Code)
		}
		ended <- err
	}()
	o.files = []*os.File{theirs} // descriptor 3
	_, err = r.call(ctx, o, replaced(args, url, "fd::3")...)
	stop := time.AfterFunc(endTime, end)
	defer stop.Stop()
	if err != nil {
		end()
	}
	remoteErr := <-ended
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == nil {
		return nil // what git has verified is whole, however the other side ended
	}
	if lost, ok := errors.AsType[*agent.Error](remoteErr); ok {
		return lost
	}
	if words := lastWords(text.Lines(said.String())); words != "" {
		return fmt.Errorf("%w; git in the sandbox: %s", err, words)
	}
	return err
}

// url stands for the connection to the sandbox in the arguments of runLinked.
const url = "\x00url"

func replaced(args []string, old, with string) []string {
	var all []string
	for _, a := range args {
		if a == old {
			a = with
		}
		all = append(all, a)
	}
	return all
}

// socketPair returns a connection and its other end. It is a socket and not two pipes: git shuts
// its output down while its processes still have the descriptor.
func socketPair() (*net.UnixConn, *os.File, error) {
	near, far, err := connect.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("socket for git: %w", err)
	}
	defer far.Close()
	file, err := far.(*net.UnixConn).File()
	if err != nil {
		near.Close()
		return nil, nil, fmt.Errorf("socket for git: %w", err)
	}
	return near.(*net.UnixConn), file, nil
}

// asks is what git sends to the sandbox. It knows whether git has sent anything.
type asks struct {
	from io.Reader
	some atomic.Bool
	late *time.Timer
}

func (a *asks) Read(p []byte) (int, error) {
	n, err := a.from.Read(p)
	if n > 0 {
		a.late.Reset(silentTime)
		a.some.Store(true)
	}
	return n, err
}

// greeting is the output of git in the sandbox. Before it is asked, it sends only a short list of
// capabilities; git on this machine would store a list of refs without a bound.
type greeting struct {
	*bounded
	asked *asks
}

func (g *greeting) Write(p []byte) (int, error) {
	if g.n+int64(len(p)) > maxGreeting && !g.asked.some.Load() {
		err := &wire.Error{Code: wire.CodeUnavailable,
			Message: "git in the sandbox sends a list of refs that is too long",
			Hint:    "install git 2.18 or later in the sandbox"}
		g.end(err)
		return 0, err
	}
	g.asked.late.Reset(silentTime)
	return g.bounded.Write(p)
}
