package guest

import (
	"os"
	"strconv"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/stdio"
)

// unwrap returns the request that r is, and takes the descriptors that come with it. False means
// that r is to be refused.
func (p *program) unwrap(r *ssh.Request) (*ssh.Request, bool) {
	q, files, ok := p.c.socket.Unwrap(r)
	switch {
	case !ok, files == nil:
		return q, ok
	case p.started, p.tty != "", len(p.passed) > 0:
		files.Close()
		return nil, false
	}
	p.passed = files
	return q, true
}

// setUpPassed sets up the terminal that came, as openPty does, and returns its slave, which stays p's. Without one it closes what came.
func (p *program) setUpPassed() (slave int, err error) {
	slave = p.passed.File(0)
	var device uint64
	if p.g.ptys.Add(1) > maxPtys {
		err = ptysError("the sandbox's sessions and channels have all of its " + strconv.Itoa(maxPtys))
	} else if err = updateTerminal(slave, func(t *unix.Termios) { t.Iflag |= unix.IUTF8 }); err == nil { // else it is no terminal
		device, err = giveTerminal(slave, p.account)
	}
	if err != nil {
		p.g.ptys.Add(-1)
		p.passed.Close()
		return 0, err
	}
	p.cleanup = append(p.cleanup, func() { p.g.ptys.Add(-1) })
	p.tty = "/dev/pts/" + strconv.Itoa(int(unix.Minor(device)))
	return slave, nil
}

// launchPassed gives cmd what came for it.
func (p *program) launchPassed(cmd command) (follow func()) {
	cmd.ctty = p.tty != ""
	for i := range 3 {
		cmd.files = append(cmd.files, uintptr(p.passed.File(i)))
	}
	// The guest reads what background children write once the daemon has let go, and not before.
	var drains []int
	if p.tty == "" {
		var err error
		if drains, err = p.passed.Drains(); err != nil {
			return p.fail(255, err.Error())
		}
	}
	proc, err := p.g.children.start(cmd)
	if err != nil {
		stdio.CloseAll(drains...)
		return p.fail(startError(err), err.Error())
	}
	p.proc = proc
	p.passed.Close()
	return func() { p.wg.Go(func() { p.await(drains) }) }
}

// await waits for the end of a program whose output the daemon reads, or of its channel, and takes
// over what background children write.
func (p *program) await(drains []int) {
	select {
	case <-p.proc.done:
		p.tell(p.proc.status)
		// The daemon closes when it has read what was written by now. Were we to close first, the
		// library there would answer before that.
		<-p.gone
		for _, fd := range drains {
			if stdio.Abandoned(fd) {
				unix.Close(fd)
			} else {
				p.g.discard(os.NewFile(uintptr(fd), "pipe"), false)
			}
		}
	case <-p.gone:
		_ = p.g.children.signal(p.proc, unix.SIGHUP) // as follow does
		stdio.CloseAll(drains...)
	}
}
