package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// bootTimeout is how long a shell with marks may take to ask for its script.
const bootTimeout = 30 * time.Second

// asksMark is printed by a shell, with its nonce, when it has turned echo off and reads its next
// command.
const asksMark = "\x1b]7337;R;"

// terminal is a session.Terminal on a channel of the machine's SSH server. It cannot see its
// processes.
type terminal struct {
	*channel
	link *link

	done chan struct{} // closed when it has ended
	exit session.Exit  // set before done is closed

	writes    chan write    // to the goroutine that writes; never closed
	resized   chan struct{} // capacity one; size has changed
	answering atomic.Int32  // answers to the shell that are in progress

	asks    []byte   // text that the shell prints when it reads a command; nil without marks
	command *os.File // the command for the shell
	whole   bool     // it reads that in one go, up to a NUL, and not by lines
	held    []byte   // output that may begin asks; used only by the reader
	ready   []byte   // filtered output; used only by the reader

	sizing sync.Mutex // held while a size is sent; taken before mu

	mu       sync.Mutex
	size     *wire.WindowChange // guarded by mu; not yet sent to the machine
	deadline time.Time          // guarded by mu
	moved    chan struct{}      // guarded by mu; closed when deadline changes
}

// start is the session.Starter: it opens a terminal on the machine, with the account's shell or a
// program.
func (lo *local) start(ctx context.Context, start session.Start) (session.Terminal, error) {
	lo.mu.Lock()
	l, tier, f := lo.link, lo.tier, lo.f
	lo.mu.Unlock()
	var script, command *os.File
	for _, file := range start.Files {
		switch file.FD {
		case marks.ScriptFD:
			script = file.File
		case marks.CommandFD:
			command = file.File
		}
	}
	cols, rows := start.Cols, start.Rows
	if cols <= 0 || rows <= 0 {
		cols, rows = wire.DefaultCols, wire.DefaultRows
	}
	pty := wire.Marshal(wire.PtyReq{Term: start.Term, Cols: uint32(cols), Rows: uint32(rows),
		Modes: "\x00"})
	request, payload := wire.RequestShell, []byte(nil)
	own := len(start.Argv) > 0 && start.Argv[0] != lo.shell().Path // a program, and not the shell
	switch {
	case script != nil:
		request, payload = wire.RequestExec, wire.Marshal(wire.Exec{Command: bootLine})
	case own:
		words := make([]string, len(start.Argv))
		for i, w := range start.Argv {
			words[i] = quote(w)
		}
		line := strings.Join(words, " ")
		if start.Dir != "" {
			line = "cd " + quote(start.Dir) + " && exec " + line
		}
		request, payload = wire.RequestExec, wire.Marshal(wire.Exec{Command: line})
	case start.Dir != "":
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "tier " + tier +
			" cannot set a session's directory", Hint: "use cd in the session"}
	}
	t := &terminal{link: l, done: make(chan struct{}), writes: make(chan write),
		moved: make(chan struct{}), resized: make(chan struct{}, 1)}
	c, err := l.channel(ctx, func(conn *connect.Conn) (*channel, error) {
		return t.open(ctx, conn, pty, request, payload)
	})
	if lost := l.lost(); err != nil && lost != nil {
		return nil, wire.Errorf(wire.CodeLost, "terminal on %s: connection lost: %v",
			lo.inst.Host.URI, lost)
	}
	if err != nil {
		return nil, fmt.Errorf("terminal on %s: %w", lo.inst.Host.URI, err)
	}
	t.channel = c
	go t.write()  // ends with the channel
	go t.resize() // ends with the channel
	if script != nil {
		if err := t.boot(ctx, start, f, script, command); err != nil {
			t.Close()
			return nil, fmt.Errorf("shell with marks on %s: %w", lo.inst.Host.URI, err)
		}
	}
	return t, nil
}

// open opens the channel and starts its program. The channel's requests report how that ended.
func (t *terminal) open(ctx context.Context, conn *connect.Conn, pty []byte, request string,
	payload []byte) (*channel, error) {
	ch, err := conn.Open(ctx, wire.ChannelSession, nil)
	if err != nil {
		return nil, err
	}
	c := &channel{Channel: ch, conn: conn, ended: make(chan struct{})}
	go t.await(c) // ends with the channel
	go func() { _, _ = io.Copy(c, ch.Stderr()) }()
	for _, ask := range []struct {
		name    string
		payload []byte
	}{{wire.RequestPty, pty}, {request, payload}} {
		ok, err := ch.Request(ctx, ask.name, ask.payload)
		if err == nil && !ok {
			err = fmt.Errorf("%s was denied", ask.name)
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// await waits for the machine's report of the end.
func (t *terminal) await(c *channel) {
	exit := session.Exit{Signal: "HUP", Reason: "the machine closed the terminal"}
	for r := range c.Requests {
		var status wire.ExitStatus
		var signal wire.ExitSignal
		switch {
		case r.Type == wire.RequestExitStatus && wire.Unmarshal(r.Payload, &status) == nil:
			exit = session.Exit{Code: int(status.Status)}
		case r.Type == wire.RequestExitSignal && wire.Unmarshal(r.Payload, &signal) == nil:
			exit = session.Exit{Signal: signal.Signal}
		}
		_ = r.Reply(r.Type == wire.RequestExitStatus || r.Type == wire.RequestExitSignal, nil)
	}
	if exit.Reason != "" {
		// x/crypto closes the channels of a connection before it reports the end of the connection.
		if _, _, err := c.conn.SendRequest(wire.GlobalKeepalive, true, nil); err != nil {
			exit.Reason = "link"
			// Before the report: the caller may start the next shell immediately.
			t.link.gone(c.conn, err)
		}
	}
	t.exit = exit
	close(t.done)
	close(c.ended)
}

// Wait returns how it ended.
func (t *terminal) Wait() session.Exit {
	<-t.done
	return t.exit
}

// Resize sends the size to the machine later. It does not wait for the network, which may be stuck:
// the session calls it with its lock held.
func (t *terminal) Resize(cols, rows int) error {
	t.mu.Lock()
	t.size = &wire.WindowChange{Cols: uint32(cols), Rows: uint32(rows)}
	t.mu.Unlock()
	select {
	case t.resized <- struct{}{}:
	default: // the newest size is sent
	}
	return nil
}

// resize sends the sizes of Resize to the machine, also while a write waits.
func (t *terminal) resize() {
	for {
		select {
		case <-t.resized:
			t.sendSize()
		case <-t.done:
			return
		}
	}
}

// sendSize sends a size that the machine does not know yet. Input is sent after it.
func (t *terminal) sendSize() {
	t.sizing.Lock()
	defer t.sizing.Unlock()
	t.mu.Lock()
	size := t.size
	t.size = nil
	t.mu.Unlock()
	if size != nil {
		// The end of the link is reported elsewhere.
		_, _ = t.SendRequest(wire.RequestWindowChange, false, wire.Marshal(*size))
	}
}

// Close hangs up, and waits for the machine to do the same, for a limited time.
func (t *terminal) Close() error {
	_ = t.channel.Close()
	<-t.done
	return nil
}

// Read returns output. It answers the shell's requests for its command and removes them from the
// output.
func (t *terminal) Read(p []byte) (int, error) {
	if t.asks == nil {
		return t.Channel.Read(p)
	}
	for len(t.ready) == 0 {
		buf := make([]byte, 8<<10)
		n, err := t.Channel.Read(buf)
		t.filter(buf[:n])
		if err != nil {
			t.ready, t.held = append(t.ready, t.held...), nil
			if len(t.ready) == 0 {
				return 0, err
			}
		}
	}
	n := copy(p, t.ready)
	t.ready = t.ready[n:]
	return n, nil
}

// filter passes output on without the shell's requests, and holds back text that may begin one.
func (t *terminal) filter(p []byte) {
	t.held = append(t.held, p...)
	for {
		at := bytes.Index(t.held, t.asks)
		if at < 0 {
			break
		}
		t.ready = append(t.ready, t.held[:at]...)
		t.held = t.held[at+len(t.asks):]
		t.answer()
	}
	keep := 0
	// A lone ESC is passed on: programs end their output with one.
	for n := min(len(t.asks)-1, len(t.held)); n > 1; n-- {
		if bytes.HasPrefix(t.asks, t.held[len(t.held)-n:]) {
			keep = n
			break
		}
	}
	t.ready = append(t.ready, t.held[:len(t.held)-keep]...)
	t.held = append([]byte(nil), t.held[len(t.held)-keep:]...)
}

// maxAnswering is how many answers to the shell may be in progress. It asks one question at a time;
// the channel may have taken the previous answer slightly earlier than it reports.
const maxAnswering = 3

// answer sends the shell its next command. The shell reads it without echo.
func (t *terminal) answer() {
	if t.answering.Add(1) > maxAnswering {
		t.answering.Add(-1)
		// A program that prints the question repeatedly is not a shell that reads the answers.
		return
	}
	text, err := io.ReadAll(io.NewSectionReader(t.command, 0, 1<<20))
	if err != nil {
		text = nil
	}
	said := encode(text)
	if t.whole {
		said = append(bytes.ReplaceAll(said, []byte("\n"), nil), 0)
	}
	lines := write{append([]byte("\n"), said...), make(chan struct{})}
	// Ends when the shell has read it, or with the channel; the reader must not wait for it.
	go func() {
		defer t.answering.Add(-1)
		select {
		case t.writes <- lines: // sent as one, whatever else is written
		case <-t.done:
			return
		}
		select {
		case <-lines.done:
		case <-t.done:
		}
	}()
}

// SetWriteDeadline bounds writes that the machine does not accept.
func (t *terminal) SetWriteDeadline(when time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deadline = when
	close(t.moved)
	t.moved = make(chan struct{})
	return nil
}

// Write sends input. Bytes that the machine does not accept before the deadline are not sent; those
// of a write in progress count as sent.
func (t *terminal) Write(p []byte) (int, error) {
	own := write{append([]byte(nil), p...), make(chan struct{})}
	for send := t.writes; ; {
		t.mu.Lock()
		deadline, moved := t.deadline, t.moved
		t.mu.Unlock()
		var late <-chan time.Time
		if !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case send <- own:
			send = nil
		case <-own.done:
			return len(p), nil
		case <-t.done:
			if send == nil { // it may be what ended the shell
				return len(p), nil
			}
			return 0, io.ErrClosedPipe
		case <-late:
			if send == nil {
				return len(p), nil
			}
			return 0, os.ErrDeadlineExceeded
		case <-moved:
		}
	}
}

// write is a pending write of input.
type write struct {
	bytes []byte
	done  chan struct{} // closed when the channel has taken it
}

// write carries out the writes of Write, one at a time.
func (t *terminal) write() {
	for {
		select {
		case w := <-t.writes:
			t.sendSize()
			if _, err := t.Channel.Write(w.bytes); err != nil {
				<-t.done
				return
			}
			close(w.done)
		case <-t.done:
			return
		}
	}
}

// A shell with marks reads its script, which contains the nonce, from a descriptor that only it
// has. SSH cannot pass a descriptor. So the script is typed, once, to a shell that has turned echo
// off, and passed from its memory through a pipe: it is in no file, environment or argument list.
// The real shell must replace this one, because it has to lead the terminal's session: otherwise it
// would not get a hang-up while a command runs. Hence there is no pipeline. A here-document is a
// pipe, too, except in bash, which may use a file.
const (
	bootReady = "\nsandboxd-tty\n"
	bootGo    = "\nsandboxd-go\n" // what was typed before is not for the script
	// It reads two texts, each a few lines of printf escapes, ended by a line with a dot: the
	// environment, and the marks script. It has no single quotes, because it is quoted with them.
	bootScript = `stty -echo; printf "\nsandboxd-tty\n"; ` +
		`while IFS= read -r l; do case $l in sandboxd-go) break;; esac; done; ` +
		`t() { s=; while IFS= read -r l; do case $l in .) break;; esac; s=$s$l; done; }; ` +
		`t; eval "$(printf %b "$s")"; t; stty echo; ` +
		`case ${BASH_VERSION+x} in x) set +o posix; eval "exec 9< <(printf %b \"\$s\")";; ` +
		`*) s=$(printf %b "$s"); eval "$(printf "exec 9<<X\n\$s\nX")";; esac; s=; eval "$SBX"`
)

var bootLine = "exec /bin/sh -c " + quote(bootScript)

var nonce = regexp.MustCompile(`(?:__sbx_k=|7337;[^;]*;)([0-9A-Za-z_-]{16,})`)

// boot types the environment and the script.
func (t *terminal) boot(ctx context.Context, start session.Start, f facts, script,
	command *os.File) error {
	d := f.startupShell
	if d != f.dialect() { // the shell that start-up files left running reads it from the terminal
		if err := t.send(ctx, []byte(bootLine+"\n")); err != nil {
			return err
		}
	}
	text, err := io.ReadAll(script)
	if err != nil {
		return err
	}
	text, asks, err := d.adapt(text)
	if err != nil {
		return err
	}
	env := d.environment(start) + "SBX=" + quote("unset SBX; "+d.command(f, start.Argv)) + "\n"
	if t.command, err = duplicate(command); err != nil {
		return err
	}
	go func() { <-t.done; t.command.Close() }()
	ctx, cancel := context.WithTimeoutCause(
		ctx, bootTimeout, fmt.Errorf("it did not start within %v", bootTimeout))
	defer cancel()
	return t.within(ctx, func() error {
		// The terminal writes a carriage return before each newline.
		if err := t.until(strings.ReplaceAll(bootReady, "\n", "\r\n"), ""); err != nil {
			return err
		}
		t.asks, t.whole = asks, d == bash
		_, err := t.Channel.Write(slices.Concat([]byte(bootGo), encode([]byte(env)), encode(text)))
		return err
	})
}

// encode converts text to lines that any terminal accepts, and a last one with a dot. printf %b
// decodes them.
func encode(text []byte) []byte {
	var out []byte
	width := 0
	for _, c := range text {
		if c < ' ' || c >= 0x7f || c == '\\' || c == '.' && width == 0 {
			out = fmt.Appendf(out, "\\0%03o", c)
			width += 5
		} else {
			out = append(out, c)
			width++
		}
		if width >= 1000 { // in line mode a terminal takes at most 4095 bytes
			out = append(out, '\n')
			width = 0
		}
	}
	if width > 0 {
		out = append(out, '\n')
	}
	return append(out, ".\n"...)
}

func duplicate(f *os.File) (*os.File, error) {
	if f == nil {
		return nil, errors.New("no command descriptor")
	}
	return os.Open("/proc/self/fd/" + strconv.FormatUint(uint64(f.Fd()), 10))
}
