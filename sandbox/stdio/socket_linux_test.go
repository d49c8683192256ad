package stdio

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both sides of a connection.
func pair(t *testing.T) (near, far *Socket) { return pairWith(t, false) }

// pairWith returns a connection; far may be wary.
func pairWith(t *testing.T, wary bool) (near, far *Socket) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*Socket
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f) // a duplicate
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if conns[i] = NewSocket(c.(*net.UnixConn)); wary && i == 1 {
			conns[i] = NewWarySocket(c.(*net.UnixConn))
		}
		t.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

// open returns the number of descriptors of this process.
func open(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// numbered returns the read end of a pipe that contains only n.
func numbered(t *testing.T, n uint64) int {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fds[1], binary.BigEndian.AppendUint64(nil, n)); err != nil {
		t.Fatal(err)
	}
	unix.Close(fds[1])
	return fds[0]
}

// Batches arrive whole, under their numbers, and no later than their announcement, whatever other
// goroutines write in between; and every byte arrives.
func TestBatches(t *testing.T) {
	before := open(t)
	near, far := pair(t)
	const batches, noise = 300, 20
	var writing sync.Mutex // as in SSH, for whole packets
	message := func(kind byte, n uint64, rest []byte) error {
		writing.Lock()
		defer writing.Unlock()
		m := binary.BigEndian.AppendUint64([]byte{kind}, n)
		m = binary.BigEndian.AppendUint32(m, uint32(len(rest)))
		_, err := near.Write(append(m, rest...))
		return err
	}
	var all sync.WaitGroup
	large := make([]byte, 300<<10) // more than a socket accepts in one write
	rand.Read(large)
	for i := range 4 {
		all.Go(func() {
			for j := range noise {
				if err := message('n', 0, large[:len(large)*j/noise]); err != nil {
					t.Error(i, err)
				}
			}
		})
		all.Go(func() {
			for range batches / 4 {
				batch, err := near.Pass(numbered(t, 1), numbered(t, 2), numbered(t, 3))
				if err == nil {
					err = message('b', batch, large[:int(batch)*100])
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for got := 0; got < batches+4*noise; got++ {
			var head [13]byte
			if _, err := io.ReadFull(far, head[:]); err != nil {
				t.Error(err)
				return
			}
			rest := make([]byte, binary.BigEndian.Uint32(head[9:]))
			if _, err := io.ReadFull(far, rest); err != nil ||
				!bytes.Equal(rest, large[:len(rest)]) {
				t.Errorf("a message of %d bytes is not what was sent, %v", len(rest), err)
				return
			}
			if head[0] != 'b' {
				continue
			}
			files := far.Take(binary.BigEndian.Uint64(head[1:]))
			if len(files) != 3 {
				t.Errorf("batch %d has %d descriptors", binary.BigEndian.Uint64(head[1:]),
					len(files))
			}
			for i, fd := range files {
				var n [8]byte
				if _, err := unix.Read(fd, n[:]); err != nil ||
					binary.BigEndian.Uint64(n[:]) != uint64(i)+1 {
					t.Errorf("descriptor %d says %v, %v", i, n, err)
				}
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil ||
					flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d is not closed on exec: %v", i, err)
				}
			}
			CloseAll(files...)
		}
	})
	all.Wait()
	near.Close()
	far.Close()
	if now := open(t); now > before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
}

// Batches that are not taken are closed: with the connection, and beyond a limit when they arrive.
// The numbers stay right.
func TestUntaken(t *testing.T) {
	before := open(t)
	near, far := pair(t)
	var b [1]byte
	for i := range uint64(maxUntaken + 10) {
		batch, err := near.Pass(numbered(t, i))
		if err == nil {
			_, err = near.Write([]byte{byte(batch)})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, b[:]); err != nil || b[0] != byte(i) {
			t.Fatalf("got %v, %v, want batch %d announced", b, err, i)
		}
	}
	// Two for the sockets, and two for the network poller.
	if now := open(t); now > before+2+2+maxUntaken {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
	if files := far.Take(maxUntaken); len(files) != 0 {
		t.Errorf("beyond the bound came %d", len(files))
	}
	files := far.Take(3)
	var n [8]byte
	if len(files) != 1 {
		t.Fatalf("batch 3 has %d descriptors", len(files))
	}
	if _, err := unix.Read(files[0], n[:]); err != nil || binary.BigEndian.Uint64(n[:]) != 3 {
		t.Errorf("batch 3 is %v, %v", n, err)
	}
	CloseAll(files...)
	if again := far.Take(3); len(again) != 0 {
		t.Errorf("taken again: %d", len(again))
	}
	// One batch was never written, and one never read.
	if _, err := near.Pass(numbered(t, 0)); err != nil {
		t.Error(err)
	}
	near.Close()
	far.Close()
	if _, err := near.Pass(numbered(t, 0)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection: got %v", err)
	}
	if now := open(t); now > before+1 {
		t.Errorf("%d descriptors are open in the end, %d were before", now, before)
	}
}

// Too many descriptors, and control messages of other types, are not batches and leave nothing
// open.
func TestUnwanted(t *testing.T) {
	near, far := pair(t)
	before := open(t)
	var many []int
	for i := range uint64(200) {
		many = append(many, numbered(t, i))
	}
	if _, _, err := near.WriteMsgUnix([]byte("x"), unix.UnixRights(many...), nil); err != nil {
		t.Fatal(err)
	}
	CloseAll(many...)
	if _, _, err := near.WriteMsgUnix([]byte("y"),
		unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()),
			Gid: uint32(os.Getgid())}), nil); err != nil {
		t.Fatal(err)
	}
	var b [2]byte
	if _, err := io.ReadFull(far, b[:]); err != nil || string(b[:]) != "xy" {
		t.Fatalf("got %q, %v", b, err)
	}
	if files := far.Take(0); len(files) != 0 {
		t.Errorf("got %d of too many", len(files))
	}
	if now := open(t); now > before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
	// The next batch is intact, and so is the second: unrequested credentials are not a batch.
	if _, err := near.Pass(numbered(t, 7)); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("z")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, b[:1]); err != nil {
		t.Fatal(err)
	}
	files := far.Take(1)
	if len(files) != 1 {
		t.Errorf("the batch after it has %d descriptors", len(files))
	}
	CloseAll(files...)
}

// Errors return no bytes, as with any connection.
func TestErrors(t *testing.T) {
	near, far := pair(t)
	if _, err := near.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if err := far.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, err := far.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: got %d, %v", n, err)
	}
	far.Close() // with unread data: the peer gets a reset
	if n, err := near.Read(b); n != 0 || err == nil {
		t.Errorf("reset: got %d, %v", n, err)
	}
	if _, err := near.Pass(numbered(t, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := near.Write(b); n != 0 || err == nil {
		t.Errorf("write: got %d, %v", n, err)
	}
	near, far = pair(t)
	near.Close()
	if n, err := far.Read(b); n != 0 || err != io.EOF { //nolint:errorlint // exactly that: callers compare it
		t.Errorf("at the end: got %d, %v", n, err)
	}
}

// A write carries as many batches as it can, and a further Pass waits for the next write.
func TestManyBatchesAtOnce(t *testing.T) {
	near, far := pair(t)
	passed := make(chan uint64, 3*maxUnsent)
	for i := range 3 * maxUnsent {
		go func() {
			batch, err := near.Pass(numbered(t, uint64(i)))
			if err != nil {
				t.Error(err)
			}
			passed <- batch
		}()
	}
	packet := make([]byte, 28)
	known := make(map[uint64]bool)
	for len(known) < 3*maxUnsent {
		for len(known) < 3*maxUnsent && (len(known)%maxUnsent != 0 || len(known) == 0 ||
			len(passed) > 0) {
			known[<-passed] = true // all batches of one write
			if len(known)%maxUnsent == 0 {
				break
			}
		}
		if _, err := near.Write(packet); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, packet); err != nil {
			t.Fatal(err)
		}
		for batch := range known {
			if !known[batch] {
				continue
			}
			if files := far.Take(batch); len(files) != 1 {
				t.Errorf("batch %d has not come with the write after it", batch)
			} else {
				CloseAll(files...)
			}
			known[batch] = false
		}
	}
	// A Pass that waits on a connection returns when it is closed.
	for range maxUnsent {
		if _, err := near.Pass(numbered(t, 0)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() {
		_, err := near.Pass(numbered(t, 0))
		done <- err
	}()
	near.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// If a batch cannot be sent the bytes still are, and no further batch is accepted.
func TestUnable(t *testing.T) {
	near, far := pair(t)
	if !near.Able() {
		t.Error("unable from the start")
	}
	if _, err := near.Pass(1 << 20); err != nil { // not a descriptor
		t.Fatal(err)
	}
	if n, err := near.Write([]byte("hello")); n != 5 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
	if files := far.Take(0); len(files) != 0 {
		t.Errorf("%d descriptors came", len(files))
	}
	if near.Able() {
		t.Error("able, though a batch could not be sent")
	}
	before := open(t)
	if _, err := near.Pass(numbered(t, 0)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	if now := open(t); now > before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
}

// A wary connection keeps the first batch, unless it has too many descriptors.
func TestWary(t *testing.T) {
	near, far := pairWith(t, true)
	before := open(t)
	b := make([]byte, 1)
	pass := func(n int) {
		t.Helper()
		var files []int
		for i := range uint64(n) {
			files = append(files, numbered(t, i))
		}
		if _, _, err := near.WriteMsgUnix(b, unix.UnixRights(files...), nil); err != nil {
			t.Fatal(err)
		}
		CloseAll(files...)
		if _, err := io.ReadFull(far, b); err != nil {
			t.Fatal(err)
		}
	}
	pass(1)
	if now := open(t); now != before+1 {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
	for _, n := range []int{1, 2, MaxBatch + 1, 200, maxRights} {
		pass(n)
	}
	if now := open(t); now != before+1 {
		t.Errorf("after unwanted messages: %d descriptors are open, %d were before", now, before)
	}
	files := far.Take(0)
	if len(files) != 1 {
		t.Errorf("the first batch has %d descriptors", len(files))
	}
	CloseAll(files...)
	for batch := range uint64(7) {
		if files := far.Take(batch); len(files) != 0 {
			t.Errorf("batch %d has %d descriptors", batch, len(files))
		}
	}
}

// Descriptors from a hostile peer are closed without blocking, also a socket that would send its
// data first.
func TestLinger(t *testing.T) {
	near, far := pairWith(t, true)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range 3 { // the first is kept until the connection is closed
		full, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.AcceptTCP() // reads nothing
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		if err := errors.Join(full.SetLinger(60),
			full.SetWriteDeadline(time.Now().Add(200*time.Millisecond))); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = full.Write(make([]byte, 1<<20))
		}
		var own int
		rc, err := full.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if cerr := rc.Control(func(fd uintptr) {
			own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		}); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		full.Close() // not the last reference
		if _, _, err := near.WriteMsgUnix([]byte{byte(i)}, unix.UnixRights(own), nil); err != nil {
			t.Fatal(err)
		}
		unix.Close(own) // nor this: it is in transit
	}
	began := time.Now()
	b := make([]byte, 3)
	if _, err := io.ReadFull(far, b); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("reading and closing took %v", took)
	}
}
