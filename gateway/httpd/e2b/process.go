package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxProcesses limits concurrent commands of one sandbox: each holds a channel in the daemon.
const maxProcesses = 256

// Limits of a command. The account's shell gets it as one argument, which Linux limits to 128 KiB
// (MAX_ARG_STRLEN, execve(2)). A line larger than an SSH packet would end the connection with
// everything on it.
const (
	maxLine = 128<<10 - 1<<10
	maxTag  = 256
)

// processConfig is a command as a client requests it.
type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Env  map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitzero"`
}

// event is a message about a process: its start, output or end. One field is set.
type event struct {
	Start     *startEvent `json:"start,omitzero"`
	Data      *dataEvent  `json:"data,omitzero"`
	End       *endEvent   `json:"end,omitzero"`
	Keepalive *empty      `json:"keepalive,omitzero"`
}

type startEvent struct {
	PID uint32 `json:"pid"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	PTY    []byte `json:"pty,omitempty"`
}

// endEvent is how a process ended, as in os.ProcessState: the code is -1 after a signal.
type endEvent struct {
	Code   int    `json:"exitCode"`
	Exited bool   `json:"exited"`
	Status string `json:"status"`
	Error  string `json:"error,omitempty"`
}

// said is an event in the wire format.
type said struct {
	Event event `json:"event"`
}

func isEnd(s *said) bool { return s.Event.End != nil }

var keepalive = &said{event{Keepalive: &empty{}}}

// process is a command that this API started. It runs on a channel of the place's connection. Its
// output goes to all listeners, at the speed of the slowest. Without listeners it is dropped.
type process struct {
	pid    uint32
	tag    *string
	config processConfig
	ch     ssh.Channel
	typing chan struct{} // semaphore; its holder writes to its input
	expire *time.Timer   // kills it; nil without a deadline

	mu        sync.Mutex
	listeners map[*listener]bool // guarded by mu
}

// listener receives a process's output.
type listener struct {
	events chan *said
	gone   chan struct{} // closed by the client
}

// listen subscribes to output from now on. It returns nil if the process has ended.
func (p *process) listen() *listener {
	l := &listener{events: make(chan *said, 8), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners == nil {
		return nil
	}
	p.listeners[l] = true
	return l
}

func (p *process) leave(l *listener) {
	p.mu.Lock()
	delete(p.listeners, l)
	p.mu.Unlock()
	close(l.gone)
}

// tell sends an event to all listeners and waits for each.
func (p *process) tell(e *said) {
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.listeners))
	if isEnd(e) {
		p.listeners = nil
	}
	p.mu.Unlock()
	for _, l := range all {
		select {
		case l.events <- e:
		case <-l.gone:
		}
	}
}

// chunk is the maximum size of an event's data.
const chunk = 32 << 10

// pump sends the bytes of r to listeners until r ends, and returns their number.
func (p *process) pump(r io.Reader, data func([]byte) *dataEvent) (n int64) {
	buf := make([]byte, chunk)
	for {
		got, err := r.Read(buf)
		if n += int64(got); got > 0 {
			p.tell(&said{event{Data: data(slices.Clone(buf[:got]))}})
		}
		if err != nil {
			return n
		}
	}
}

const bash = "/bin/bash"

// quote returns s as one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// line returns a shell command that prints word and the process number, then executes the command.
// word is random, so that output of start-up files cannot be mistaken for it.
func (c processConfig) line(a account, word string) (string, error) {
	var b strings.Builder
	if !a.own {
		for key, value := range map[string]string{"HOME": a.home, "USER": a.name,
			"LOGNAME": a.name} {
			fmt.Fprintf(&b, "export %s=%s; ", key, quote(value))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Env)) {
		if !isName(key) || strings.ContainsRune(c.Env[key], 0) {
			return "",
				invalid("envs: %.64q is not a variable name, or its value contains a NUL byte", key)
		}
		fmt.Fprintf(&b, "export %s=%s; ", key, quote(c.Env[key]))
	}
	switch {
	case c.Cwd != nil && *c.Cwd != "":
		dir, err := a.path(*c.Cwd)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "cd %s 2>/dev/null || { echo %s -; exit 1; }; ", quote(dir), word)
	case !a.own:
		fmt.Fprintf(&b, "cd %s 2>/dev/null || cd /; ", quote(a.home))
	}
	if c.Cmd == bash {
		// The SDKs run every command in bash. In an image without it, sh runs most of them.
		fmt.Fprintf(&b, "b=%s; [ -x $b ] || b=/bin/sh; ", bash)
	}
	fmt.Fprintf(&b, "echo %s $$; exec ", word)
	if !a.own {
		// In the same process: su(1) would add one.
		fmt.Fprintf(&b, "setpriv --reuid=%d --regid=%d --init-groups -- ", a.uid, a.gid)
	}
	words := append([]string{c.Cmd}, c.Args...)
	for i, w := range words {
		if strings.ContainsRune(w, 0) {
			return "", invalid("command: contains a NUL byte")
		}
		words[i] = quote(w)
	}
	if c.Cmd == bash {
		words[0] = "$b"
	}
	b.WriteString(strings.Join(words, " "))
	return b.String(), nil
}

// isName reports whether s is a valid name of a shell variable.
func isName(s string) bool {
	for i, c := range s {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') &&
			(i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// begin starts a command whose output goes to l.
func (v *visit) begin(ctx context.Context, c processConfig, tag *string, stdin bool) (p *process,
	l *listener, err error) {
	if c.Cmd == "" {
		return nil, nil, invalid("command: empty")
	}
	if tag != nil && len(*tag) > maxTag {
		return nil, nil, invalid("tag: longer than %d bytes", maxTag)
	}
	release, err := v.reserve()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	word := rand.Text()
	lk, line, err := v.shellCommand(ctx, c, word)
	if err != nil {
		return nil, nil, err
	}
	ch, requests, err := lk.open(ctx)
	if err != nil {
		return nil, nil, unreachable(v.name, err)
	}
	stop := context.AfterFunc(ctx, func() { ch.Close() })
	ok, err := ch.SendRequest(wire.RequestExec, true, wire.Marshal(wire.Exec{Command: line}))
	if err == nil && !ok {
		err = errNoCommand
	}
	if err == nil && !stdin {
		_ = ch.CloseWrite() // fails if the command has already ended
	}
	p = &process{tag: tag, config: c, ch: ch, typing: make(chan struct{}, 1),
		listeners: make(map[*listener]bool)}
	var before []byte
	if err == nil {
		p.pid, before, err = greet(ch, word)
	}
	if !stop() && !errors.Is(err, errNoCommand) {
		err = context.Cause(ctx)
	}
	if err != nil {
		ch.Close()
		why := lk.startError(ch, requests, c, err)
		cause := context.Cause(ctx)
		switch {
		case cause != nil && errors.Is(err, errNoCommand):
			why = cause
		case cause != nil: // the shell was disconnected, perhaps during the command
			why = attach.CutOff(cause, v.places.hub.Public(cause))
		}
		return nil, nil, why
	}
	l = p.listen()
	if len(before) > 0 {
		l.events <- &said{event{Data: &dataEvent{Stdout: before}}}
	}
	if err = v.list(p); err != nil {
		ch.Close()
		go ssh.DiscardRequests(requests) // ends with the channel
		return nil, nil, err             // lost: it has begun
	}
	if at, ok := ctx.Deadline(); ok {
		// Not by ctx: the SDKs disconnect at the deadline, or earlier.
		p.expire = time.AfterFunc(time.Until(at), func() { _ = p.signal("KILL") })
	}
	who := v.who
	v.places.start(func() { defer release(); v.follow(p, requests, who) })
	return p, l, nil
}

// shellCommand returns the shell command for c and the connection to run it on.
func (v *visit) shellCommand(ctx context.Context, c processConfig, word string) (lk *link,
	line string, err error) {
	if lk, err = v.connection(ctx); err != nil {
		return nil, "", err
	}
	a := account{own: true}
	if v.user != "" || c.Cwd != nil && !strings.HasPrefix(*c.Cwd, "/") {
		if lk, a, err = v.asUser(ctx); err != nil {
			return nil, "", err
		}
	}
	if line, err = c.line(a, word); err != nil {
		return nil, "", err
	}
	if len(line) > maxLine {
		return nil, "",
			invalid(
				"command: longer than %d bytes with its variables; write it to a file and run that",
				maxLine)
	}
	return lk, line, nil
}

// list registers p under its number, which comes from the sandbox and is not trusted.
func (v *visit) list(p *process) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.ended:
		return attach.CutOff(lifecycle.ErrClosed, v.places.hub.Public(lifecycle.ErrClosed))
	case p.pid == 0 || p.pid > firstTerminal || v.processes[p.pid] != nil:
		return wire.LostError(wire.LostGuest,
			fmt.Sprintf("sandbox %s: its shell reported process %d, which is invalid or in use",
				v.name, p.pid))
	}
	v.processes[p.pid] = p
	return nil
}

var errNoDir = errors.New("no such directory")

// greet reads up to the line with word and the process number. before is the output of the shell's
// start-up files.
func greet(r io.Reader, word string) (pid uint32, before []byte, err error) {
	var text []byte
	one := make([]byte, 1) // reads no further than the line: the rest is the command's output
	for len(text) < chunk {
		n, err := r.Read(one)
		text = append(text, one[:n]...)
		if n == 1 && one[0] == '\n' {
			if printed, got, ok := strings.Cut(string(text[:len(text)-1]), word+" "); ok {
				if got == "-" {
					return 0, nil, errNoDir
				}
				n, err := strconv.ParseUint(got, 10, 32)
				return uint32(n), []byte(printed), err
			}
		}
		if err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, errors.New("its shell prints endless output")
}

var errNoCommand = errors.New("it does not start commands")

// startError returns why a command did not start; its channel is closed. Unless the sandbox refused
// the command or reported how its shell ended, the command may have run.
func (lk *link) startError(ch ssh.Channel, requests <-chan *ssh.Request, c processConfig,
	err error) error {
	if errors.Is(err, errNoDir) {
		go ssh.DiscardRequests(requests) // ends with the channel
		return invalid("cwd %q does not exist", cutText(*c.Cwd, 200))
	}
	slow := time.AfterFunc(closeWithin, func() { lk.client.Close() })
	defer slow.Stop()
	text, _ := io.ReadAll(io.LimitReader(ch.Stderr(), 1<<10)) // until the other side also closes
	ended := errors.Is(err, errNoCommand)
	for r := range requests { // until the channel is closed
		ended = ended || r.Type == wire.RequestExitStatus || r.Type == wire.RequestExitSignal
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
	if !ended {
		return wire.LostError(wire.LostGuest,
			"the connection to the sandbox ended during the start of the command")
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: strings.TrimSpace(
		"the command did not start: " + cutText(strings.ToValidUTF8(string(text), ""), 300))}
}

// follow sends p's output and end to listeners, and removes p.
func (v *visit) follow(p *process, requests <-chan *ssh.Request, who gateway.Principal) {
	record := v.places.hub.Relay.Recorder(who, v.name)
	var outputs sync.WaitGroup
	var stdout, stderr int64
	outputs.Go(func() {
		stdout = p.pump(p.ch, func(b []byte) *dataEvent { return &dataEvent{Stdout: b} })
	})
	outputs.Go(func() {
		stderr = p.pump(p.ch.Stderr(), func(b []byte) *dataEvent { return &dataEvent{Stderr: b} })
	})
	end := endEvent{Code: -1, Status: "lost",
		Error: "the connection to the sandbox ended before the command did"}
	for r := range requests { // until the channel is closed
		switch r.Type {
		case wire.RequestExitStatus:
			var status wire.ExitStatus
			if wire.Unmarshal(r.Payload, &status) == nil {
				end = exited(int(status.Status))
			}
		case wire.RequestExitSignal:
			var signal wire.ExitSignal
			if wire.Unmarshal(r.Payload, &signal) == nil {
				end = signaled(signal.Signal)
			}
		}
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
	if p.expire != nil {
		p.expire.Stop()
	}
	outputs.Wait()
	v.mu.Lock()
	if v.processes[p.pid] == p {
		delete(v.processes, p.pid)
	}
	v.left = time.Now()
	v.mu.Unlock()
	p.tell(&said{event{End: &end}})
	p.ch.Close()
	record(gateway.ExecEvent{Command: strings.Join(append([]string{p.config.Cmd}, p.config.Args...),
		" "), Exit: end.Code, Bytes: stdout + stderr})
}

func exited(code int) endEvent {
	e := endEvent{Code: code, Exited: true, Status: "exit status " + strconv.Itoa(code)}
	if code != 0 {
		e.Error = e.Status
	}
	return e
}

func signaled(name string) endEvent {
	text := "signal: " + map[string]string{"KILL": "killed", "TERM": "terminated",
		"INT": "interrupt", "HUP": "hangup"}[name]
	if text == "signal: " {
		text += cutText(name, 16)
	}
	return endEvent{Code: -1, Status: text, Error: text}
}

// signal sends a signal to p's process group.
func (p *process) signal(name string) error {
	_, err := p.ch.SendRequest(wire.RequestSignal, false, wire.Marshal(wire.Signal{Name: name}))
	return err
}

// write sends input to p. It returns when all is sent or ctx has ended. In that case the rest may
// still be sent, before any later input.
func (p *process) write(ctx context.Context, data []byte) error {
	select {
	case p.typing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	sent := make(chan error, 1)
	go func() { // until p reads, or ends
		_, err := p.ch.Write(data)
		<-p.typing
		sent <- err
	}()
	select {
	case err := <-sent:
		if err != nil {
			return &apiError{http.StatusNotFound,
				fmt.Sprintf("the input of process %d is closed", p.pid)}
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
