//go:build linux

package guest

import (
	"os"
	"strconv"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/stdio"
)

// unwrap returns the inner request of r, and takes the descriptors that come with it. It returns
// false if r must be rejected.
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

// setUpPassed sets up the passed terminal, as openPty does, and returns its slave, which p still
// owns. If there is no terminal it closes the passed files.
func (p *program) setUpPassed() (slave int, err error) {
	slave = p.passed.File(0)
	var device uint64
	if p.g.ptys.Add(1) > maxPtys {
		err = ptysError("sessions and channels of the sandbox use all of its " +
			strconv.Itoa(maxPtys))
		// Fails if it is not a terminal.
	} else if err = updateTerminal(slave,
		func(t *unix.Termios) { t.Iflag |= unix.IUTF8 }); err == nil {
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

// launchPassed starts cmd on the passed descriptors.
func (p *program) launchPassed(cmd command) (follow func()) {
	cmd.ctty = p.tty != ""
	for i := range 3 {
		cmd.files = append(cmd.files, uintptr(p.passed.File(i)))
	}
	// Once the daemon has closed its ends, and not before, the guest reads the output of background
	// children.
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

// await waits for the end of a program whose output the daemon reads, or of its channel, and then
// reads the output of background children.
func (p *program) await(drains []int) {
	select {
	case <-p.proc.done:
		p.tell(p.proc.status)
		// The daemon closes the channel when it has read all output so far. If the guest closed
		// first, the SSH library there would answer before that.
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
