package guest

import (
	"os"
	"strconv"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/descriptors"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// passed is what the daemon passed for a program to run on: the slave of a terminal, or what standard input, output and error are. The daemon has the
// other ends, and what the program reads and writes does not come by here. Empty before that, and when the program has them.
type passed []int

// serveDescriptors is the global request. It names what terminals are opened by and does not open it: whoever opens that has a terminal
// of their own, whose flags nobody here can change.
func (c *client) serveDescriptors(r *ssh.Request) {
	var req wire.Descriptors
	if c.files == nil || wire.Unmarshal(r.Payload, &req) != nil {
		reply(r, false, nil)
		return
	}
	files := c.files.Take(req.Batch)
	if len(files) != 1 {
		descriptors.CloseAll(files...)
		reply(r, false, nil)
		return
	}
	descriptors.CloseAll(files...)
	batch := uint64(wire.NoDescriptors)
	if fd, err := unix.Open("/dev/pts/ptmx", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		if batch, err = c.files.Pass(fd); err != nil {
			batch = wire.NoDescriptors
		}
	}
	reply(r, true, wire.Marshal(wire.Descriptors{Batch: batch}))
}

// unwrap returns the request that r is: that which it names, where it comes with descriptors, which are taken. Nil means to refuse it.
func (p *program) unwrap(r *ssh.Request) *ssh.Request {
	if r.Type != wire.DescriptorsRequest {
		return r
	}
	var req wire.Descriptors
	if p.c.files == nil || wire.Unmarshal(r.Payload, &req) != nil {
		return nil
	}
	files := p.c.files.Take(req.Batch)
	var want int
	switch req.Request {
	case wire.RequestPty:
		want = 1
	case wire.RequestShell, wire.RequestExec, wire.RequestSubsystem:
		want = 3
	}
	if p.started || p.tty != "" || len(p.passed) > 0 || len(files) != want {
		descriptors.CloseAll(files...)
		return nil
	}
	p.passed = files
	return &ssh.Request{Type: req.Request, Payload: req.Payload}
}

// setUpPassed sets up the terminal that came, as openPty does, and returns its slave, which stays p's. Without one it closes what came.
func (p *program) setUpPassed() (slave int, err error) {
	slave = p.passed[0]
	var device uint64
	if p.g.ptys.Add(1) > maxPtys {
		err = ptysError("the sandbox's sessions and channels have all of its " + strconv.Itoa(maxPtys))
	} else if err = updateTerminal(slave, func(t *unix.Termios) { t.Iflag |= unix.IUTF8 }); err == nil { // else it is no terminal
		device, err = giveTerminal(slave, p.account)
	}
	if err != nil {
		p.g.ptys.Add(-1)
		p.passed.close()
		return 0, err
	}
	p.cleanup = append(p.cleanup, func() { p.g.ptys.Add(-1) })
	p.tty = "/dev/pts/" + strconv.Itoa(int(unix.Minor(device)))
	return slave, nil
}

// Write says something where the program would say it.
func (d passed) Write(b []byte) (int, error) { return unix.Write(d[len(d)-1], b) }

func (d *passed) close() {
	descriptors.CloseAll(*d...)
	*d = nil
}

// launchPassed gives cmd what came for it.
func (p *program) launchPassed(cmd command) (follow func()) {
	cmd.ctty = p.tty != ""
	for i := range 3 {
		cmd.files = append(cmd.files, uintptr(p.passed[min(i, len(p.passed)-1)]))
	}
	// What background children write when the daemon has let go is for us to read. Not before: it is the daemon's.
	var drains []int
	if p.tty == "" {
		for _, fd := range p.passed[1:] {
			drain, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // anew (proc_pid_fd(5))
			if err != nil {
				descriptors.CloseAll(drains...)
				return p.fail(255, "pipe: "+err.Error())
			}
			drains = append(drains, drain)
		}
	}
	proc, err := p.g.children.start(cmd)
	if err != nil {
		descriptors.CloseAll(drains...)
		return p.fail(startError(err), err.Error())
	}
	p.proc = proc
	p.passed.close()
	return func() { p.wg.Go(func() { p.await(drains) }) }
}

// await waits for the end of a program whose output the daemon reads, or of its channel, and takes over what background children write.
func (p *program) await(drains []int) {
	select {
	case <-p.proc.done:
		p.tell(p.proc.status)
		// The daemon closes when it has read what was written by now. A CLOSE of ours the library there would answer before that.
		<-p.gone
		for _, fd := range drains {
			if descriptors.Abandoned(fd) {
				unix.Close(fd)
			} else {
				p.g.discard(os.NewFile(uintptr(fd), "pipe"), false)
			}
		}
	case <-p.gone:
		_ = p.g.children.signal(p.proc, unix.SIGHUP) // as follow does
		descriptors.CloseAll(drains...)
	}
}
