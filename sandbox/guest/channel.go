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

// program is a session channel: at most one command, shell or subsystem, and what was asked for before it.
type program struct {
	c  *client
	g  *Guest
	ch ssh.Channel

	account Account
	env     []string // that the client asked for
	term    string
	tty     string       // name of the terminal; none without pty-req
	pty     *pty         // its master; nil without, and where the daemon has it
	slave   *os.File     // until the program has it
	passed  stdio.Passed // what it runs on instead of what is made here
	agent   string       // socket of the forwarded agent
	display string       // of forwarded X11
	cleanup []func()
	started bool

	proc  *child   // nil unless started as a process of its own
	stdin *os.File // of proc, when it has no terminal

	gone chan struct{} // closed when the client closed the channel or the connection ended
	wg   sync.WaitGroup
}

// serveSession answers the requests of one session channel in their order, and returns when both it and what it started
// have come to an end.
func (c *client) serveSession(nc *sshconn.NewChannel) {
	ch, err := nc.Accept()
	if err != nil {
		return
	}
	p := &program{c: c, g: c.g, ch: ch, gone: make(chan struct{})}
	used := false
	for r := range ch.Requests {
		if !used {
			p.account, used = c.user(), true // as it is now: the channel may have been open for long
		}
		q, ok := p.unwrap(r)
		ok = ok && p.handle(q)
		var follow func()
		if ok && !p.started && (q.Type == wire.RequestShell || q.Type == wire.RequestExec || q.Type == wire.RequestSubsystem) {
			p.started = true
			follow = p.begin(q)
		}
		// The program runs by now: whoever is woken by the answer may take the processor from us, and not from its start.
		reply(r, ok, nil)
		if follow != nil {
			follow() // not before the answer: some clients take data before it for an error
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

// handle carries out a request, except that it only says of a program whether begin would start it.
func (p *program) handle(r *ssh.Request) bool {
	switch r.Type {
	case wire.RequestPty:
		var req wire.PtyReq
		return !p.started && p.tty == "" && wire.Unmarshal(r.Payload, &req) == nil && p.openTerminal(req)
	case wire.RequestEnv:
		var req wire.Env
		if p.started || wire.Unmarshal(r.Payload, &req) != nil || len(p.env) >= maxEnv || !envAllowed(req.Name, req.Value) {
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
		return !p.started && wire.Unmarshal(r.Payload, &req) == nil && !strings.ContainsRune(req.Command, 0)
	case wire.RequestSubsystem:
		var req wire.Subsystem
		if p.started || wire.Unmarshal(r.Payload, &req) != nil {
			return false
		}
		return req.Name == wire.SubsystemSFTP || req.Name == wire.SessionSubsystem && p.c.control.Load()
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
		return p.pty != nil && p.pty.ioctl(func(fd int) error { return unix.IoctlSetInt(fd, unix.TCSBRKP, 0) }) == nil
	}
	return false
}

// openTerminal sets up the terminal that req wants: the one that came for it, or one of ours.
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
	err = errors.Join(resizeTerminal(slave, cols, rows, req.Width, req.Height), updateTerminal(slave, func(m *unix.Termios) { applyModes(m, req.Modes) }))
	if err != nil {
		p.g.log.Warn("pty-req", "err", err)
	}
	if !strings.ContainsRune(req.Term, 0) && len(req.Term) <= 64 {
		p.term = req.Term
	}
	return true
}

// begin starts what r asks for; handle has checked it. What has to do with the channel is left to the function that it returns.
func (p *program) begin(r *ssh.Request) (follow func()) {
	switch r.Type {
	case wire.RequestExec:
		var req wire.Exec
		_ = wire.Unmarshal(r.Payload, &req) // checked
		return p.start(req.Command, true)
	case wire.RequestSubsystem:
		var req wire.Subsystem
		_ = wire.Unmarshal(r.Payload, &req) // checked
		if req.Name == wire.SubsystemSFTP {
			return p.startSFTP()
		}
		return func() {
			p.wg.Go(func() {
				// Only the daemon gets here, so it may say who the parties are.
				if err := p.g.sessions.Serve(p.c.ctx, p.ch, true); err != nil {
					p.g.log.Info("session stream", "err", err)
				}
			})
		}
	}
	return p.start("", false)
}

// start runs a shell, or a command in a shell; in an image without any shell the words of the command itself.
func (p *program) start(line string, isExec bool) (follow func()) {
	shell := shellOf(p.account)
	env := p.environment(shell)
	dir := p.g.startDir(p.account, "")
	cmd := command{path: shell, env: env, dir: dir}
	switch {
	case shell == "" && !isExec:
		return p.fail(127, "this image has no shell; commands can be run by name: ssh … /path/to/program")
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
		// Not a login shell: those replace the image's PATH by the distribution's.
		cmd.argv = []string{base(shell)}
	}
	return p.launch(cmd)
}

func (p *program) startSFTP() (follow func()) {
	env := append(p.environment(shellOf(p.account)), "GOMAXPROCS=2")
	return p.launch(command{path: p.g.exe, argv: []string{Name, "sftp"}, env: env, dir: p.g.startDir(p.account, "")})
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

// launch starts cmd on the channel's terminal or on pipes. What it returns copies until it ends.
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

// fail returns what says on the channel's stderr why nothing runs, and ends it.
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
		// When the client is gone nobody misses it.
		_, _ = io.WriteString(out, "sandboxd: "+text+end)
		p.exit(unix.WaitStatus(status << 8))
	}
}

// startError is the exit status that a shell would give for an error of starting a program.
func startError(err error) uint32 {
	switch {
	case errors.Is(err, unix.ENOENT):
		return 127
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC):
		return 126
	}
	return 255
}

// exit tells how the program ended, and closes: every byte of output has been sent before. (RFC 4254, section 6.10, lets
// the status come earlier; clients that stop reading at it make this order the safe one.)
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
		_, _ = p.ch.SendRequest(wire.RequestExitStatus, false, wire.Marshal(wire.ExitStatus{Status: uint32(ws.ExitStatus())}))
	}
}

// launchPty gives cmd the channel's terminal.
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
		// Input ends with the channel. EOF from the client is not ^D: the terminal stays usable, as with OpenSSH.
		p.wg.Go(func() { _ = copyData(p.pty, p.ch) }) // whichever side ended it, the other one tells
		out := copyOutput(p.pty.File, p.ch)
		p.wg.Go(func() { p.follow(out) })
	}
}

// launchPipes gives cmd three pipes. Not a socketpair: /dev/stdin cannot be opened on a socket.
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
		// Ours alone: the program's end keeps blocking, which is what programs expect.
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
			p.stdin.Close() // the client's EOF, or a program that closed its input
		})
		stdout, stderr := copyOutput(near[1], p.ch), copyOutput(near[2], p.ch.Stderr())
		p.wg.Go(func() { p.follow(stdout, stderr) })
	}
}

// follow waits for the end of the program, or of the channel, and sees to it that everything the program wrote has been sent when its
// status is. What a background child writes later is read and dropped: it must not die of a broken pipe.
func (p *program) follow(outputs ...*output) {
	proc := p.proc
	select {
	case <-proc.done:
	case <-p.gone:
		// What runs without a session ends with its connection; nohup(1) makes exceptions.
		_ = p.g.children.signal(proc, unix.SIGHUP) // has it ended, none is needed
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
	p.stdin.Close() // a write that nobody reads returns
	for _, o := range outputs {
		if proc.ended() {
			p.g.discard(o.file, o.eof)
		} else {
			o.file.Close()
		}
	}
}
