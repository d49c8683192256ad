package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// errHeld means that this process holds too many descriptors of programs.
var errHeld = errors.New("too many descriptors")

// passed is a session channel whose program runs on descriptors of this process: input and output
// use these, everything else uses the channel.
type passed struct {
	ssh.Channel
	socket   *Socket
	held     int64    // number counted in the variable held
	far      []int    // descriptors for the guest, until they are passed
	sent     bool     // they were passed
	in       *os.File // the master, on a terminal
	out, err *output  // err is nil on a terminal

	released, gone chan struct{} // closed by release, and when the guest has closed the channel
}

func newPassed(of *Programs, channel ssh.Channel, kind Kind) (*passed, error) {
	p := &passed{Channel: channel, socket: of.socket, released: make(chan struct{}),
		gone: make(chan struct{})}
	if !p.hold(heldUnpassed) {
		return nil, errHeld
	}
	open := p.openPipes
	if kind == Terminal {
		open = func() error { return p.openTerminal(of.ptmx) }
	}
	if err := open(); err != nil {
		p.closeAll()
		return nil, err
	}
	return p, nil
}

// hold makes p hold n descriptors instead of its earlier number. It reports whether it may.
func (p *passed) hold(n int64) bool {
	if held.Add(n-p.held) > maxHeld() && n > p.held {
		held.Add(p.held - n)
		return false
	}
	p.held = n
	return true
}

// openTerminal opens a terminal of the sandbox.
func (p *passed) openTerminal(ptmx *os.File) error {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	var master int
	err := control(ptmx, func(fd int) (err error) {
		// A new description (proc_pid_fd(5)).
		master, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_NONBLOCK, 0)
		return err
	})
	switch {
	// devpts_new_index in the kernel: the max option of the mount, or kernel.pty.max.
	case errors.Is(err, unix.ENOSPC):
		return &wire.Error{Code: wire.CodeLimitPtys,
			Message: "no terminal is available: programs in the sandbox or elsewhere on the " +
				"machine use all of them",
			Hint: "end the programs that hold terminals; rescue ends all of the sandbox's"}
	case err != nil:
		return fmt.Errorf("open a terminal: %w", err)
	}
	p.in = os.NewFile(uintptr(master), "/dev/ptmx")
	p.out = newOutput(p.in)
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock a terminal: %w", err)
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return fmt.Errorf("open the slave of a terminal: %w", errno)
	}
	p.far = []int{int(slave)}
	return nil
}

// openPipes makes three pipes.
func (p *passed) openPipes() error {
	for i := range 3 {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
		ours, theirs := fds[0], fds[1]
		if i == 0 {
			ours, theirs = fds[1], fds[0]
		}
		p.far = append(p.far, theirs)
		// Only our end: the program's end stays blocking, as programs expect. The program's user
		// may open that again, as /dev/stdout.
		_, err := unix.FcntlInt(uintptr(ours), unix.F_SETFL, unix.O_NONBLOCK)
		if err == nil {
			err = unix.Fchmod(ours, 0o666)
		}
		near := os.NewFile(uintptr(ours), "pipe")
		switch i {
		case 0:
			p.in = near
		case 1:
			p.out = newOutput(near)
		case 2:
			p.err = newOutput(near)
		}
		if err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
	}
	return nil
}

// Read reads the program's standard output, or its terminal. io.EOF means that no process has it
// open, or that the program has ended and all its output was read.
func (p *passed) Read(b []byte) (int, error) { return p.out.Read(b) }

// Stderr is the program's standard error; on a terminal it is empty.
func (p *passed) Stderr() io.ReadWriter {
	if p.err == nil {
		return nothing{}
	}
	return p.err
}

// Write writes to the program's input. It blocks while the program does not read.
func (p *passed) Write(b []byte) (int, error) { return p.in.Write(b) }

// CloseWrite ends the program's standard input. It does not affect a terminal, which stays usable.
func (p *passed) CloseWrite() error {
	if p.err == nil {
		return nil
	}
	return p.in.Close()
}

// SendRequest sends a request to the guest, except those about a terminal that this process carries
// out. Shell, exec, subsystem and pty-req must not be sent concurrently.
func (p *passed) SendRequest(name string, wantReply bool, payload []byte) (bool, error) {
	terminal := p.err == nil
	switch name {
	case wire.RequestPty, wire.RequestShell, wire.RequestExec, wire.RequestSubsystem:
		switch {
		case terminal && p.sent && name != wire.RequestPty: // its program runs on that terminal
		case p.sent, terminal != (name == wire.RequestPty):
			return false, nil
		default:
			return p.pass(name, wantReply, payload)
		}
	case wire.RequestWindowChange:
		if terminal {
			return p.resize(payload) == nil, nil
		}
	case wire.RequestBreak:
		if terminal {
			return control(p.in, func(fd int) error {
				return unix.IoctlSetInt(fd, unix.TCSBRKP, 0)
			}) == nil, nil
		}
	}
	return p.Channel.SendRequest(name, wantReply, payload)
}

// pass sends a request with the program's descriptors.
func (p *passed) pass(name string, wantReply bool, payload []byte) (bool, error) {
	far := p.far
	p.far, p.sent = nil, true
	p.hold(heldPassed)
	batch, err := p.socket.Pass(far...)
	if err != nil {
		return false, err
	}
	return p.Channel.SendRequest(wire.DescriptorsRequest, wantReply,
		wire.Marshal(wire.Descriptors{Batch: batch, Request: name, Payload: payload}))
}

func (p *passed) resize(payload []byte) error {
	var w wire.WindowChange
	if err := wire.Unmarshal(payload, &w); err != nil {
		return err
	}
	cols, rows := wire.ClampSize(w.Cols, w.Rows)
	return control(p.in, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
			&unix.Winsize{Col: uint16(cols), Row: uint16(rows),
				Xpixel: uint16(min(w.Width, 0xffff)), Ypixel: uint16(min(w.Height, 0xffff))})
	})
}

// control calls f with the descriptor of a file, which stays open meanwhile.
func control(file *os.File, f func(fd int) error) error {
	rc, err := file.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}

// Close closes the channel, at which the guest hangs up on the program, and ends a blocked Write.
// Read continues until the guest has closed the channel, too.
func (p *passed) Close() error {
	if p.err == nil {
		_ = p.in.SetWriteDeadline(time.Unix(1, 0)) // fails after release
	} else {
		p.in.Close() // CloseWrite may have closed it
	}
	return p.Channel.Close()
}

// follow passes on the guest's requests and orders the end of the program: the rest of its output,
// its exit status, the end of the requests. The guest reads output of other processes that still
// have its pipes. The channel itself ends later: the guest waits for Close.
func (p *passed) follow(in <-chan *ssh.Request, out chan<- *ssh.Request) {
	defer close(p.gone)
	for q := range in {
		exit := isExit(q)
		if exit {
			p.finish()
			for _, o := range p.outputs() {
				<-o.drained
			}
		}
		select {
		case out <- q:
		case <-p.released:
			_ = q.Reply(false, nil)
		}
		if exit {
			break
		}
	}
	p.finish()
	close(out)
	ssh.DiscardRequests(in)
}

// isExit reports whether q is an exit status or signal.
func isExit(q *ssh.Request) bool {
	switch q.Type {
	case wire.RequestExitStatus:
		return wire.Unmarshal(q.Payload, new(wire.ExitStatus)) == nil
	case wire.RequestExitSignal:
		return wire.Unmarshal(q.Payload, new(wire.ExitSignal)) == nil
	}
	return false
}

// outputs returns the program's one or two outputs.
func (p *passed) outputs() []*output {
	if p.err == nil {
		return []*output{p.out}
	}
	return []*output{p.out, p.err}
}

// finish ends the outputs after their remaining bytes: the program has ended, or its channel.
func (p *passed) finish() {
	for _, o := range p.outputs() {
		o.finish()
	}
}

// release closes the descriptors and waits until the guest has closed the channel.
func (p *passed) release() {
	close(p.released)
	p.closeAll()
	<-p.gone
}

// closeAll closes all descriptors.
func (p *passed) closeAll() {
	p.hold(0)
	CloseAll(p.far...)
	p.far = nil
	for _, o := range []*output{p.out, p.err} {
		if o != nil {
			o.close()
		}
	}
	if p.in != nil {
		p.in.Close() // on a terminal it is the same file
	}
}

// output is a program's output on one descriptor.
type output struct {
	file     *os.File
	finished atomic.Bool
	rest     *Rest         // used by Read; the remaining bytes when the program has ended
	drained  chan struct{} // closed when Read has returned io.EOF, or the reader has gone
	over     atomic.Bool   // drained is closed
}

func newOutput(file *os.File) *output { return &output{file: file, drained: make(chan struct{})} }

// finish makes Read end after all bytes that the program has written by now.
func (o *output) finish() {
	if !o.finished.Swap(true) {
		_ = o.file.SetReadDeadline(time.Unix(1, 0)) // fails after close
	}
}

func (o *output) close() {
	o.file.Close()
	o.drain()
}

func (o *output) drain() {
	if !o.over.Swap(true) {
		close(o.drained)
	}
}

func (o *output) Read(p []byte) (int, error) {
	n, err := o.read(p)
	if err != nil {
		o.drain()
	}
	return n, err
}

func (o *output) read(p []byte) (int, error) {
	if o.rest == nil {
		n, err := o.file.Read(p)
		if n > 0 || err == nil {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			// Closed by the far side, which a terminal reports as EIO, or by this one.
			return 0, io.EOF
		}
		if err := o.file.SetReadDeadline(time.Time{}); err != nil {
			return 0, io.EOF
		}
		if o.rest, err = NewRest(o.file); err != nil {
			return 0, io.EOF
		}
	}
	return o.rest.Read(p)
}

// Write exists because ssh.Channel.Stderr returns an io.ReadWriter.
func (o *output) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// nothing is the standard error of a program on a terminal.
type nothing struct{}

func (nothing) Read([]byte) (int, error)  { return 0, io.EOF }
func (nothing) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
