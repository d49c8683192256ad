// Package stdio carries what programs of a sandbox read and write between the daemon and the guest.
// There are two ways, and users of a Program need not know which it goes: by the SSH channel, or
// past the guest, by pipes and terminals of which the daemon holds one end and passes the other
// along the guest's unix socket (SCM_RIGHTS, unix(7)). Signals, exit statuses and all other
// requests always go by the channel.
//
// Use Programs in the daemon and Socket.Offered and Socket.Unwrap in the guest. The package starts
// no process, and knows neither accounts nor sandboxes.
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

// Kind is what a program runs on.
type Kind int

// Kinds.
const (
	Pipes    Kind = iota // three, for standard input, output and error
	Terminal             // one, of the sandbox's own
)

// Programs makes the Programs of one connection to a guest. A nil *Programs makes those whose bytes
// go by the channel.
type Programs struct {
	conn     *sshconn.Conn
	socket   *Socket
	answered chan struct{} // closed when the guest has said whether it takes descriptors, or never will
	ptmx     *os.File      // the guest's /dev/pts/ptmx, named and not open; nil if it takes none; set before answered is closed
}

// NewPrograms returns the Programs of conn, which runs on socket. The caller has Run called.
func NewPrograms(conn *sshconn.Conn, socket *Socket) *Programs {
	return &Programs{conn: conn, socket: socket, answered: make(chan struct{})}
}

// Run asks the guest whether it takes descriptors, and returns when the connection has ended.
func (p *Programs) Run() {
	p.offer()
	close(p.answered)
	_ = p.conn.Wait()
	p.socket.Close()
	if p.ptmx != nil {
		p.ptmx.Close()
	}
}

// offer asks the guest whether it takes descriptors, and where terminals are opened.
func (p *Programs) offer() {
	var probe [2]int // of the kind that will be passed: a security module may tell them apart
	if unix.Pipe2(probe[:], unix.O_CLOEXEC) != nil {
		return
	}
	unix.Close(probe[1])
	batch, err := p.socket.Pass(probe[0])
	if err != nil {
		return
	}
	ok, answer, err := p.conn.SendRequest(wire.DescriptorsRequest, true, wire.Marshal(wire.Descriptors{Batch: batch}))
	var came wire.Descriptors
	if !ok || err != nil || wire.Unmarshal(answer, &came) != nil { // other servers may grant what they do not know
		return
	}
	files := p.socket.Take(came.Batch)
	if len(files) == 1 && isPtmx(files[0]) {
		p.ptmx = os.NewFile(uintptr(files[0]), "ptmx")
		return
	}
	CloseAll(files...)
}

// Program makes a Program of channel, a session that has started nothing yet, and owns it. On an
// error the channel is closed. The caller calls Release in the end.
//
// Where the guest takes no descriptors – it is no guest of ours, or not on this machine's kernel –
// or this process has too many, the bytes go by the channel. Errors: the cause of ctx, which bounds
// the wait for the guest's answer, and a *wire.Error with code limit_ptys where no terminal is left.
func (p *Programs) Program(ctx context.Context, channel *sshconn.Channel, kind Kind) (*Program, error) {
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
		return plain, nil //nolint:nilerr // what cannot be opened here the guest may be able to
	}
	requests := make(chan *ssh.Request)
	go passed.follow(channel.Requests, requests) // ends with the channel
	return &Program{Channel: &sshconn.Channel{Channel: passed, Requests: requests, Closed: channel.Closed}, release: passed.release}, nil
}

// drop closes a channel that nobody wants, and returns err.
func drop(channel *sshconn.Channel, err error) error {
	_ = channel.Close()
	go channel.Drain() // ends with the channel
	return err
}

// Program is a session channel and what its program reads and writes. Output comes to its end
// before an exit status that was sent after it, and Requests end after that.
type Program struct {
	*sshconn.Channel
	release func()
}

// Release closes the channel and all descriptors, on which a terminal hangs up, and returns when
// the guest has closed the channel, too. It is called once, when nothing else is any more.
func (p *Program) Release() {
	_ = p.Close()
	p.release()
}

// checking are the checks of descriptors under way, of which so many may hang.
var checking = make(chan struct{}, 16)

// isPtmx reports whether fd, which a guest has passed, names the file that opens terminals
// (ptmx(4)). Opening any other file could do harm. A file system in the guest's hands could also
// keep the check waiting, so the caller waits for it no longer than a second.
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

// How many descriptors a program has, at most, until the guest has its own, and from then on.
const heldUnpassed, heldPassed = 6, 3

// held is how many descriptors programs have. They may have a quarter of those that this process
// may have; beyond that their bytes go by the channel.
var held atomic.Int64

var maxHeld = sync.OnceValue(func() int64 {
	const share = 4
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int64(min(limit.Cur, 1<<20) / share)
})
