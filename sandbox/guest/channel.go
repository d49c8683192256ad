//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// program is a session channel: at most one command, shell or subsystem, and the requests before
// it.
type program struct {
	c  *client
	g  *Guest
	ch ssh.Channel

	account Account
	env     []string // from the client
	term    string
	tty     string       // name of the terminal; none without pty-req
	pty     *pty         // its master; nil if there is none, or the daemon has it
	slave   *os.File     // until the program starts
	passed  stdio.Passed // descriptors from the daemon, in place of a terminal or pipes of ours
	agent   string       // socket of the forwarded agent
	display string       // of forwarded X11
	cleanup []func()
	started bool

	proc  *child   // nil unless it runs as a process
	stdin *os.File // of proc, when it has no terminal

	gone chan struct{} // closed when the client has closed the channel or the connection has ended
	wg   sync.WaitGroup
}

// serveSession answers the requests of one session channel in order. It returns when the channel
// and its process have ended.
func (c *client) serveSession(nc *sshconn.NewChannel) {
	ch, err := nc.Accept()
	if err != nil {
		return
	}
	p := &program{c: c, g: c.g, ch: ch, gone: make(chan struct{})}
	used := false
	for r := range ch.Requests {
		if !used {
			// The current entry: the channel may have been open for long.
			p.account, used = c.user(), true
		}
		q, ok := p.unwrap(r)
		ok = ok && p.handle(q)
		var follow func()
		if ok && !p.started && (q.Type == wire.RequestShell || q.Type == wire.RequestExec ||
			q.Type == wire.RequestSubsystem) {
			p.started = true
			follow = p.begin(q)
		}
		// The program already runs: the client that this answer wakes up may preempt this
		// goroutine, but not delay the start.
		reply(r, ok, nil)
		if follow != nil {
			follow() // not before the answer: some clients treat earlier data as an error
		}
	}
	close(p.gone)
	p.wg.Wait()
	ch.Close()
	p.passed.Close()
	if p.slave != nil {
		p.slave.Close()
	}
	if p.pty != nil {
		p.pty.Close()
	}
	for _, f := range p.cleanup {
		f()
	}
}

// handle carries out a request. For a request that starts a program, it only checks whether begin
// would start it.
func (p *program) handle(r *ssh.Request) bool {
	switch r.Type {
	case wire.RequestPty:
		var req wire.PtyReq
		return !p.started && p.tty == "" && wire.Unmarshal(r.Payload, &req) == nil &&
			p.openTerminal(req)
	case wire.RequestEnv:
		var req wire.Env
		if p.started || wire.Unmarshal(r.Payload, &req) != nil || len(p.env) >= maxEnv ||
			!envAllowed(req.Name, req.Value) {
			return false
		}
		p.env = append(p.env, req.Name+"="+req.Value)
		return true
	case wire.RequestAgent:
		return !p.started && p.agent == "" && p.forwardAgent()
	case wire.RequestX11:
		return !p.started && p.display == "" && p.forwardX11(r.Payload)
	case wire.RequestShell:
		return !p.started
	case wire.RequestExec:
		var req wire.Exec
		return !p.started && wire.Unmarshal(r.Payload, &req) == nil &&
			!strings.ContainsRune(req.Command, 0)
	case wire.RequestSubsystem:
		var req wire.Subsystem
		if p.started || wire.Unmarshal(r.Payload, &req) != nil {
			return false
		}
		return req.Name == wire.SubsystemSFTP || req.Name == wire.SessionSubsystem &&
			p.c.control.Load()
	case wire.RequestWindowChange:
		var req wire.WindowChange
		if p.pty == nil || wire.Unmarshal(r.Payload, &req) != nil {
			return false
		}
		cols, rows := wire.ClampSize(req.Cols, req.Rows)
		return p.pty.resize(cols, rows, req.Width, req.Height) == nil
	case wire.RequestSignal:
		var req wire.Signal
		if p.proc == nil || wire.Unmarshal(r.Payload, &req) != nil {
			return false
		}
		n := wire.SignalNumber(req.Name)
		return n != 0 && p.g.children.signal(p.proc, syscall.Signal(n)) == nil
	case wire.RequestBreak:
		return p.pty != nil && p.pty.ioctl(
			func(fd int) error { return unix.IoctlSetInt(fd, unix.TCSBRKP, 0) }) == nil
	}
	return false
}

// openTerminal sets up the terminal for req: one that the daemon passed, or a new one.
func (p *program) openTerminal(req wire.PtyReq) bool {
	var slave int
	var err error
	if len(p.passed) > 0 {
		slave, err = p.setUpPassed()
	} else if p.pty, p.slave, err = openPty(&p.g.ptys, p.account); err == nil {
		slave, p.tty = int(p.slave.Fd()), p.pty.name
	}
	if err != nil {
		p.g.log.Warn("pty-req", "err", err)
		return false
	}
	cols, rows := wire.ClampSize(req.Cols, req.Rows)
	err = errors.Join(resizeTerminal(slave, cols, rows, req.Width, req.Height),
		updateTerminal(slave, func(m *unix.Termios) { applyModes(m, req.Modes) }))
	if err != nil {
		p.g.log.Warn("pty-req", "err", err)
	}
	if !strings.ContainsRune(req.Term, 0) && len(req.Term) <= 64 {
		p.term = req.Term
	}
	return true
}

// begin starts the program for r, which handle has checked. It returns a function that does the
// work on the channel.
func (p *program) begin(r *ssh.Request) (follow func()) {
	switch r.Type {
	case wire.RequestExec:
		var req wire.Exec
		_ = wire.Unmarshal(r.Payload, &req) // handle has checked it
		return p.start(req.Command, true)
	case wire.RequestSubsystem:
		var req wire.Subsystem
		_ = wire.Unmarshal(r.Payload, &req) // handle has checked it
		if req.Name == wire.SubsystemSFTP {
			return p.startSFTP()
		}
		return func() {
			p.wg.Go(func() {
				// Only the daemon can reach this, so it may name the principals.
				if err := p.g.sessions.Serve(p.c.ctx, p.ch, true); err != nil {
					p.g.log.Info("session stream", "err", err)
				}
			})
		}
	}
	return p.start("", false)
}

// start runs a shell, or a command in a shell. In an image without a shell it runs the words of the
// command directly.
func (p *program) start(line string, isExec bool) (follow func()) {
	shell := shellOf(p.account)
	env := p.environment(shell)
	dir := p.g.startDir(p.account, "")
	cmd := command{path: shell, env: env, dir: dir}
	switch {
	case shell == "" && !isExec:
		return p.fail(
			127, "this image has no shell; run a program by its path: ssh … /path/to/program")
	case shell == "":
		cmd.argv = splitCommand(line)
		if len(cmd.argv) == 0 {
			return p.fail(127, "this image has no shell, and the command is empty")
		}
		if cmd.path = lookPath(cmd.argv[0], env, dir); cmd.path == "" {
			return p.fail(127, cmd.argv[0]+": not found, and this image has no shell")
		}
	case isExec:
		cmd.argv = []string{base(shell), "-c", line}
	default:
		// Not a login shell: those replace the image's PATH with the distribution's.
		cmd.argv = []string{base(shell)}
	}
	return p.launch(cmd)
}

func (p *program) startSFTP() (follow func()) {
	env := append(p.environment(shellOf(p.account)), "GOMAXPROCS=2")
	return p.launch(command{path: p.g.exe, argv: []string{Name, "sftp"}, env: env,
		dir: p.g.startDir(p.account, "")})
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func (p *program) environment(shell string) []string {
	extra := slices.Clone(p.env)
	if p.tty != "" {
		extra = append(extra, "SSH_TTY="+p.tty)
		if p.term != "" {
			extra = append(extra, "TERM="+p.term)
		}
	}
	if p.agent != "" {
		extra = append(extra, "SSH_AUTH_SOCK="+p.agent)
	}
	if p.display != "" {
		extra = append(extra, "DISPLAY="+p.display)
	}
	return p.g.environment(p.account, shell, extra...)
}

// launch starts cmd on the channel's terminal or on pipes. The returned function copies until the
// program ends.
func (p *program) launch(cmd command) (follow func()) {
	cmd.account = p.g.credential(p.account)
	switch {
	case len(p.passed) > 0:
		return p.launchPassed(cmd)
	case p.pty != nil:
		return p.launchPty(cmd)
	}
	return p.launchPipes(cmd)
}

// fail returns a function that reports text on the channel's stderr and ends the channel.
func (p *program) fail(status uint32, text string) (follow func()) {
	return func() {
		out := io.Writer(p.ch.Stderr())
		end := "\n"
		switch {
		case len(p.passed) > 0:
			out = p.passed
		case p.tty != "":
			out, end = p.ch, "\r\n"
		}
		// An error means that the client has gone; it needs no report.
		_, _ = io.WriteString(out, "sandboxd: "+text+end)
		p.exit(unix.WaitStatus(status << 8))
	}
}

// startError is the exit status that a shell returns for an error of starting a program.
func startError(err error) uint32 {
	switch {
	case errors.Is(err, unix.ENOENT):
		return 127
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC):
		return 126
	}
	return 255
}

// exit sends the program's exit status, after every byte of its output, and closes the channel. RFC
// 4254, section 6.10, allows an earlier status; but some clients stop reading at it, so this order
// is safe.
func (p *program) exit(ws unix.WaitStatus) {
	p.tell(ws)
	_ = p.ch.CloseWrite()
	_ = p.ch.Close()
}

func (p *program) tell(ws unix.WaitStatus) {
	if ws.Signaled() {
		_, _ = p.ch.SendRequest(wire.RequestExitSignal, false, wire.Marshal(wire.ExitSignal{
			Signal: wire.SignalName(int(ws.Signal())), CoreDumped: ws.CoreDump()}))
	} else {
		_, _ = p.ch.SendRequest(wire.RequestExitStatus, false,
			wire.Marshal(wire.ExitStatus{Status: uint32(ws.ExitStatus())}))
	}
}

// launchPty starts cmd on the channel's terminal.
func (p *program) launchPty(cmd command) (follow func()) {
	fd := p.slave.Fd()
	cmd.files, cmd.ctty = []uintptr{fd, fd, fd}, true
	proc, err := p.g.children.start(cmd)
	p.slave.Close()
	p.slave = nil
	if err != nil {
		return p.fail(startError(err), err.Error())
	}
	p.proc = proc
	return func() {
		// Input ends with the channel. EOF from the client is not ^D: the terminal stays usable, as
		// with OpenSSH. An error of either side also shows on the other.
		p.wg.Go(func() { _ = copyData(p.pty, p.ch) })
		out := copyOutput(p.pty.File, p.ch)
		p.wg.Go(func() { p.follow(out) })
	}
}

// launchPipes starts cmd on three pipes. Not on a socketpair: a program cannot open /dev/stdin on a
// socket.
func (p *program) launchPipes(cmd command) (follow func()) {
	var near [3]*os.File
	var far [3]int
	for i := range near {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			for j := range i {
				near[j].Close()
				unix.Close(far[j])
			}
			return p.fail(255, fmt.Sprintf("pipe: %v", err))
		}
		ours, theirs := fds[0], fds[1]
		if i == 0 {
			ours, theirs = fds[1], fds[0]
		}
		// Only our end: the program's end stays blocking, as programs expect.
		_ = unix.SetNonblock(ours, true)
		near[i], far[i] = os.NewFile(uintptr(ours), "pipe"), theirs
	}
	cmd.files = []uintptr{uintptr(far[0]), uintptr(far[1]), uintptr(far[2])}
	proc, err := p.g.children.start(cmd)
	for _, fd := range far {
		unix.Close(fd)
	}
	if err != nil {
		for _, f := range near {
			f.Close()
		}
		return p.fail(startError(err), err.Error())
	}
	p.proc = proc
	p.stdin = near[0]
	return func() {
		p.wg.Go(func() {
			_ = copyData(p.stdin, p.ch)
			p.stdin.Close() // EOF from the client, or the program closed its input
		})
		stdout, stderr := copyOutput(near[1], p.ch), copyOutput(near[2], p.ch.Stderr())
		p.wg.Go(func() { p.follow(stdout, stderr) })
	}
}

// follow waits for the end of the program, or of the channel. It sends the status after everything
// that the program wrote. Later output of background children is read and dropped, so that they do
// not die of a broken pipe.
func (p *program) follow(outputs ...*output) {
	proc := p.proc
	select {
	case <-proc.done:
	case <-p.gone:
		// A process outside a session ends with its connection; nohup(1) makes exceptions.
		_ = p.g.children.signal(proc, unix.SIGHUP) // an ended process needs no signal
	}
	for _, o := range outputs {
		o.finish()
	}
	if proc.ended() {
		p.exit(proc.status)
	}
	if p.pty != nil {
		p.pty.Close() // hangs up
		return
	}
	p.stdin.Close() // ends a write that nobody reads
	for _, o := range outputs {
		if proc.ended() {
			p.g.discard(o.file, o.eof)
		} else {
			o.file.Close()
		}
	}
}
