package stdio

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Programs makes the Programs of one connection to a guest. A nil *Programs makes Programs that use
// the channel for all bytes.
type Programs struct {
	conn   *sshconn.Conn
	socket *Socket
	// Closed when the guest has answered whether it accepts descriptors, or never will.
	answered chan struct{}
	// The guest's /dev/pts/ptmx, named and not open; nil if it accepts none; set before answered is
	// closed.
	ptmx *os.File
}

// NewPrograms returns the Programs of conn, which runs on socket. The caller must call Run.
func NewPrograms(conn *sshconn.Conn, socket *Socket) *Programs {
	return &Programs{conn: conn, socket: socket, answered: make(chan struct{})}
}

// Run asks the guest whether it accepts descriptors, and returns when the connection has ended.
func (p *Programs) Run() {
	p.offer()
	close(p.answered)
	_ = p.conn.Wait()
	p.socket.Close()
	if p.ptmx != nil {
		p.ptmx.Close()
	}
}

// offer asks the guest whether it accepts descriptors, and for the file that opens terminals.
func (p *Programs) offer() {
	// Of the same types as later ones: a security module may treat them differently.
	var probe [2]int
	if unix.Pipe2(probe[:], unix.O_CLOEXEC) != nil {
		return
	}
	unix.Close(probe[1])
	batch, err := p.socket.Pass(probe[0])
	if err != nil {
		return
	}
	ok, answer, err := p.conn.SendRequest(wire.DescriptorsRequest, true,
		wire.Marshal(wire.Descriptors{Batch: batch}))
	var came wire.Descriptors
	// Other servers may accept unknown requests.
	if !ok || err != nil || wire.Unmarshal(answer, &came) != nil {
		return
	}
	files := p.socket.Take(came.Batch)
	if len(files) == 1 && isPtmx(files[0]) {
		p.ptmx = os.NewFile(uintptr(files[0]), "ptmx")
		return
	}
	CloseAll(files...)
}

// Program makes a Program of channel, a session that has not started a program yet, and owns it. On
// an error it closes the channel. The caller must call Release in the end.
//
// The bytes use the channel if the guest accepts no descriptors – because it is another program, or
// runs on another kernel – or if this process holds too many. Errors: the cause of ctx, which
// bounds the wait for the guest's answer, and a *wire.Error with code limit_ptys if no terminal is
// available.
func (p *Programs) Program(ctx context.Context, channel *sshconn.Channel, kind Kind) (*Program,
	error) {
	plain := &Program{Channel: channel, release: channel.Drain}
	if p == nil {
		return plain, nil
	}
	select {
	case <-p.answered:
	case <-ctx.Done():
		return nil, drop(channel, context.Cause(ctx))
	}
	if p.ptmx == nil || !p.socket.Able() {
		return plain, nil
	}
	passed, err := newPassed(p, channel.Channel, kind)
	switch {
	case errors.Is(err, &wire.Error{Code: wire.CodeLimitPtys}):
		return nil, drop(channel, err)
	case err != nil:
		return plain, nil //nolint:nilerr // the guest may be able to open it
	}
	requests := make(chan *ssh.Request)
	go passed.follow(channel.Requests, requests) // ends with the channel
	return &Program{Channel: &sshconn.Channel{Channel: passed, Requests: requests,
		Closed: channel.Closed}, release: passed.release}, nil
}

// drop closes an unused channel, and returns err.
func drop(channel *sshconn.Channel, err error) error {
	_ = channel.Close()
	go channel.Drain() // ends with the channel
	return err
}

// checking limits concurrent checks of descriptors, which may hang.
var checking = make(chan struct{}, 16)

// isPtmx reports whether fd, from a guest, is the file that opens terminals (ptmx(4)). Opening
// another file could do harm. A file system that the guest controls could also block the check, so
// the caller waits at most a second.
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
		// First, checks that the kernel answers without the file system.
		var st unix.Statx_t
		err := unix.Statx(own, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev_major != 5 ||
			st.Rdev_minor != 2 {
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

// The number of descriptors of a program, at most, before the guest has its own, and afterwards.
const heldUnpassed, heldPassed = 6, 3

// held is the number of descriptors of programs. They may use a quarter of this process's limit;
// beyond that bytes use the channel.
var held atomic.Int64

var maxHeld = sync.OnceValue(func() int64 {
	const share = 4
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int64(min(limit.Cur, 1<<20) / share)
})
