package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/descriptors"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// passing is what a connection to a guest of ours needs to start programs on descriptors of this process.
type passing struct {
	files *descriptors.Conn

	answered chan struct{} // closed when the guest has said whether it takes them, or never will
	ptmx     *os.File      // the guest's /dev/pts/ptmx, named and not open; nil if it takes none, or can pass none; set before answered is closed
}

// pass has programs started on descriptors of this process, if the guest takes them.
func (c *Conn) pass(files *descriptors.Conn) {
	c.passing = &passing{files: files, answered: make(chan struct{})}
	go func() { // ends with the connection
		c.offer()
		_ = c.Wait()
		c.passing.end()
	}()
}

// offer asks the guest whether it takes descriptors, and where terminals are opened.
func (c *Conn) offer() {
	p := c.passing
	defer close(p.answered)
	var probe [2]int // of the kind that will be passed: a security module may tell them apart
	if unix.Pipe2(probe[:], unix.O_CLOEXEC) != nil {
		return
	}
	unix.Close(probe[1])
	batch, err := p.files.Pass(probe[0])
	if err != nil {
		return
	}
	ok, answer, err := c.SendRequest(wire.DescriptorsRequest, true, wire.Marshal(wire.Descriptors{Batch: batch}))
	var came wire.Descriptors
	if !ok || err != nil || wire.Unmarshal(answer, &came) != nil { // other servers may say yes to what they do not know
		return
	}
	files := p.files.Take(came.Batch)
	if len(files) == 1 && isPtmx(files[0]) {
		p.ptmx = os.NewFile(uintptr(files[0]), "ptmx")
		return
	}
	descriptors.CloseAll(files...)
}

// end closes what is left when the connection has ended.
func (p *passing) end() {
	p.files.Close()
	if p.ptmx != nil {
		p.ptmx.Close()
	}
}

// checking are the checks of descriptors under way, of which so many may hang.
var checking = make(chan struct{}, 16)

// isPtmx reports whether fd, which a guest has passed, names the file that opens terminals (ptmx(4)): of any other file the opening could do
// harm. A file system in the guest's hands could also keep us waiting here, so that is not done on the caller's time for long.
func isPtmx(fd int) bool {
	select {
	case checking <- struct{}{}:
	default:
		return false
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		<-checking
		return false
	}
	result := make(chan bool, 1)
	go func() { // ends with the file system's answer
		defer func() { <-checking }()
		defer unix.Close(own)
		// First what the kernel knows by itself.
		var st unix.Statx_t
		err := unix.Statx(own, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev_major != 5 || st.Rdev_minor != 2 {
			result <- false
			return
		}
		var fs unix.Statfs_t
		result <- unix.Fstatfs(own, &fs) == nil && fs.Type == unix.DEVPTS_SUPER_MAGIC
	}()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case ok := <-result:
		return ok
	case <-timer.C:
		return false
	}
}

// Program is a session channel at a guest whose program runs on descriptors of this process: what it reads and writes goes by these, its
// signals and how it ended by the channel. Its methods may be called at once, as those of ssh.Channel.
type Program struct {
	ssh.Channel
	conn     *Conn
	held     int64    // counted in the variable held
	far      []int    // what the guest is to have
	passed   bool     // it has that, and far is empty
	in       *os.File // the master, on a terminal
	out, err *output  // err is nil on a terminal
}

// Program makes the descriptors for what channel, a session that has started nothing yet, will start. They go to the guest with the request for the
// terminal, or with that which starts the program. Nil means that the other side takes none – it is no guest of ours, or not on this machine's
// kernel – or that this process has too many, or could not send some, and that the channel is to be used as it is. Whoever has the Program calls Release in the end, once. Where no terminal is
// left the error has code limit_ptys.
func (c *Conn) Program(ctx context.Context, channel ssh.Channel, terminal bool) (*Program, error) {
	p := c.passing
	if p == nil {
		return nil, nil //nolint:nilnil // as said above
	}
	select {
	case <-p.answered:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p.ptmx == nil || !p.files.Able() {
		return nil, nil //nolint:nilnil // as said above
	}
	program := &Program{Channel: channel, conn: c}
	if !program.hold(heldUnpassed) {
		return nil, nil //nolint:nilnil // as said above
	}
	var err error
	if terminal {
		err = program.openTerminal(p.ptmx)
	} else {
		err = program.openPipes()
	}
	if err == nil {
		return program, nil
	}
	program.Release()
	if errors.Is(err, &wire.Error{Code: wire.CodeLimitPtys}) {
		return nil, err
	}
	return nil, nil //nolint:nilnil // what cannot be opened here the guest may be able to
}

// How many descriptors a program has, at most, until the guest has its own, and from then on.
const heldUnpassed, heldPassed = 6, 3

// held is how many descriptors programs have. They may have a quarter of those that this process may have; beyond that a channel is used as it is.
var held atomic.Int64

var maxHeld = sync.OnceValue(func() int64 {
	const share = 4
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int64(min(limit.Cur, 1<<20) / share)
})

// hold counts n descriptors as p's, instead of what it had. False means that this is too many.
func (p *Program) hold(n int64) bool {
	if held.Add(n-p.held) > maxHeld() && n > p.held {
		held.Add(p.held - n)
		return false
	}
	p.held = n
	return true
}

// openTerminal opens a terminal of the sandbox.
func (p *Program) openTerminal(ptmx *os.File) error {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	rc, err := ptmx.SyscallConn()
	if err != nil {
		return err
	}
	var master int
	if cerr := rc.Control(func(fd uintptr) {
		master, err = unix.Open("/proc/self/fd/"+strconv.Itoa(int(fd)), flags|unix.O_NONBLOCK, 0) // anew (proc_pid_fd(5))
	}); cerr != nil {
		return cerr
	}
	switch {
	case errors.Is(err, unix.ENOSPC): // devpts_new_index in the kernel: its mount's max, or kernel.pty.max
		return &wire.Error{Code: wire.CodeLimitPtys, Message: "no terminal is left: programs in the sandbox, or others of the machine, have them all",
			Hint: "end the programs that hold terminals; rescue ends all of the sandbox's"}
	case err != nil:
		return fmt.Errorf("open a terminal: %w", err)
	}
	p.in = os.NewFile(uintptr(master), "/dev/ptmx")
	p.out = &output{file: p.in}
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
func (p *Program) openPipes() error {
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
		// Ours alone: the program's end keeps blocking, which is what programs expect. Whoever it runs as may open that again, as /dev/stdout.
		_, err := unix.FcntlInt(uintptr(ours), unix.F_SETFL, unix.O_NONBLOCK)
		if err == nil {
			err = unix.Fchmod(ours, 0o666)
		}
		near := os.NewFile(uintptr(ours), "pipe")
		switch i {
		case 0:
			p.in = near
		case 1:
			p.out = &output{file: near}
		case 2:
			p.err = &output{file: near}
		}
		if err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
	}
	return nil
}

// Read reads what the program writes: on its standard output, or on its terminal. io.EOF means that nobody has that open any more, or that the
// program has ended and this is all that it wrote.
func (p *Program) Read(b []byte) (int, error) { return p.out.Read(b) }

// Stderr is the program's standard error; on a terminal there is none.
func (p *Program) Stderr() io.ReadWriter {
	if p.err == nil {
		return nothing{}
	}
	return p.err
}

// Write is what the program reads. It blocks while that does not.
func (p *Program) Write(b []byte) (int, error) { return p.in.Write(b) }

// CloseWrite ends the program's standard input. A terminal has no such end: it stays usable.
func (p *Program) CloseWrite() error {
	if p.err == nil {
		return nil
	}
	return p.in.Close()
}

// SendRequest sends a request to the guest, except those about a terminal that are carried out here. Shell, exec, subsystem and pty-req are
// not to be sent at once with others.
func (p *Program) SendRequest(name string, wantReply bool, payload []byte) (bool, error) {
	terminal := p.err == nil
	switch name {
	case wire.RequestPty, wire.RequestShell, wire.RequestExec, wire.RequestSubsystem:
		switch {
		case terminal && p.passed && name != wire.RequestPty:
			return p.Channel.SendRequest(name, wantReply, payload) // it runs on that terminal
		case p.passed, terminal != (name == wire.RequestPty):
			return false, nil
		}
		far := p.far
		p.far, p.passed = nil, true
		p.hold(heldPassed)
		batch, err := p.conn.passing.files.Pass(far...)
		if err != nil {
			return false, err
		}
		return p.Channel.SendRequest(wire.DescriptorsRequest, wantReply, wire.Marshal(wire.Descriptors{Batch: batch, Request: name, Payload: payload}))
	}
	if !terminal {
		return p.Channel.SendRequest(name, wantReply, payload)
	}
	switch name {
	case wire.RequestWindowChange:
		return p.resize(payload) == nil, nil
	case wire.RequestBreak:
		return p.ioctl(func(fd int) error { return unix.IoctlSetInt(fd, unix.TCSBRKP, 0) }) == nil, nil
	}
	return p.Channel.SendRequest(name, wantReply, payload)
}

func (p *Program) resize(payload []byte) error {
	var w wire.WindowChange
	if err := wire.Unmarshal(payload, &w); err != nil {
		return err
	}
	cols, rows := wire.ClampSize(w.Cols, w.Rows)
	return p.ioctl(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(cols), Row: uint16(rows),
			Xpixel: uint16(min(w.Width, 0xffff)), Ypixel: uint16(min(w.Height, 0xffff))})
	})
}

func (p *Program) ioctl(f func(fd int) error) error {
	rc, err := p.in.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}

// Close closes the channel, by which the guest hangs up on the program, and ends a Write that blocks. Read goes on until Ended.
func (p *Program) Close() error {
	if p.err == nil {
		_ = p.in.SetWriteDeadline(time.Unix(1, 0)) // released already, else
	} else {
		p.in.Close() // twice is no matter
	}
	return p.Channel.Close()
}

// Ended says that the program has ended, or its channel: Read and that of Stderr go on to the end of what it has written by now. What others
// write who still have its pipes is for the guest to read. It may be called again.
func (p *Program) Ended() {
	p.out.end()
	if p.err != nil {
		p.err.end()
	}
}

// Release closes all descriptors; a terminal hangs up.
func (p *Program) Release() {
	p.hold(0)
	descriptors.CloseAll(p.far...)
	p.far = nil
	for _, o := range []*output{p.out, p.err} {
		if o != nil {
			o.file.Close()
		}
	}
	if p.in != nil {
		p.in.Close() // on a terminal it is the same
	}
}

// output is what a program writes to one descriptor.
type output struct {
	file  *os.File
	ended atomic.Bool
	rest  *descriptors.Rest // what is left when it has ended; of Read
}

func (o *output) end() {
	if o.ended.Swap(true) {
		return
	}
	_ = o.file.SetReadDeadline(time.Unix(1, 0)) // of one that was released nobody reads
}

func (o *output) Read(p []byte) (int, error) {
	if o.rest == nil {
		n, err := o.file.Read(p)
		if n > 0 || err == nil {
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, io.EOF // closed on the far side, which a terminal calls EIO, or on this one
		}
		if err := o.file.SetReadDeadline(time.Time{}); err != nil {
			return 0, io.EOF
		}
		if o.rest, err = descriptors.NewRest(o.file); err != nil {
			return 0, io.EOF
		}
	}
	return o.rest.Read(p)
}

// Write is there to make it what ssh.Channel.Stderr returns.
func (o *output) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// nothing is the standard error of a program on a terminal.
type nothing struct{}

func (nothing) Read([]byte) (int, error)  { return 0, io.EOF }
func (nothing) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
