package egress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
)

const (
	offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4
	// IFF_NO_PI cannot be checked: TUNGETIFF uses the same bit for "no filter". Packets of a device
	// without it do not begin with an IP header, and are dropped.
	requiredFlags  = unix.IFF_TUN | unix.IFF_VNET_HDR
	forbiddenFlags = unix.IFF_TAP
)

// readSizes are the buffers that a packet is read into. Unused ones serve the next packet. So small
// packets use little memory, and all buffers together hold any packet.
var readSizes = [...]int{2048, 4096, 8192, 16384, 65536}

// device reads and writes packets of a TUN device. The sandbox may have a copy of the descriptor
// and change the file's flags. Therefore no call relies on O_NONBLOCK, which could block it
// indefinitely.
type device struct {
	file *os.File // a duplicate, in the poller
	raw  syscall.RawConn

	mu      sync.RWMutex // held for reading during a write
	fd      int          // guarded by mu; -1 when closed
	dropped atomic.Int64 // packets that the device did not accept
	turn    turn
}

// turn is the state of read.
type turn struct {
	mu     sync.Mutex
	taking bool          // read is looking for a packet, or has one
	over   chan struct{} // closed when taking ends; nil without waiters
}

func (t *turn) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taking = true
}

func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taking = false
	if t.over != nil {
		close(t.over)
		t.over = nil
	}
}

// openDevice takes ownership of tun, also on an error.
func openDevice(tun *os.File) (*device, error) {
	defer tun.Close()
	conn, err := tun.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("egress: descriptor: %w", err)
	}
	fd := -1
	var failed error
	err = conn.Control(func(old uintptr) {
		if failed = checkDevice(int(old)); failed == nil {
			fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("egress: descriptor: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("egress: descriptor: %w", err)
	}
	d := &device{file: os.NewFile(uintptr(fd), "tun"), fd: fd}
	if d.raw, err = d.file.SyscallConn(); err != nil {
		_ = d.file.Close()
		return nil, fmt.Errorf("egress: descriptor: %w", err)
	}
	return d, nil
}

// checkDevice returns an error unless fd is a TUN device as Start requires. The sandbox passed it
// and is not trusted.
func checkDevice(fd int) error {
	request, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, request); err != nil {
		return fmt.Errorf("not an attached TUN device: %w", err)
	}
	flags := request.Uint16()
	if flags&requiredFlags != requiredFlags || flags&forbiddenFlags != 0 {
		return fmt.Errorf("device %q has flags %#x: want TUN with VNET_HDR", request.Name(), flags)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeaderLen); err != nil {
		return fmt.Errorf("device %q: size of headers: %w", request.Name(), err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return fmt.Errorf("device %q: offloads: %w", request.Name(), err)
	}
	return nil
}

// read calls deliver for each packet until the device is closed or gone. deliver owns the packet.
func (d *device) read(deliver func(buffer.Buffer)) error {
	var (
		header [vnetHeaderLen]byte
		views  [len(readSizes)]*buffer.View
		iovecs [len(readSizes) + 1]unix.Iovec
		n      int
		errno  syscall.Errno
	)
	defer func() {
		for _, v := range views {
			if v != nil {
				v.Release()
			}
		}
	}()
	iovecs[0].Base = &header[0]
	iovecs[0].SetLen(len(header))
	defer d.turn.end()
	ready := func(fd uintptr) bool {
		d.turn.begin()
		for {
			n, errno = vector(unix.SYS_PREADV2, unix.SYS_READV, fd, iovecs[:])
			switch errno {
			case unix.EINTR:
			case unix.EAGAIN:
				d.turn.end()
				return false
			default:
				return true
			}
		}
	}
	for {
		d.turn.end()
		for i := range views {
			if views[i] == nil {
				views[i] = buffer.NewViewSize(readSizes[i])
				iovecs[i+1].Base = views[i].BasePtr()
				iovecs[i+1].SetLen(readSizes[i])
			}
		}
		if err := d.raw.Read(ready); err != nil {
			return err
		}
		if errno != 0 {
			return errno
		}
		if n <= vnetHeaderLen || n > vnetHeaderLen+maxPacket {
			continue
		}
		var packet buffer.Buffer
		for i, left := 0, n-vnetHeaderLen; left > 0; i++ {
			if left < readSizes[i] {
				views[i].CapLength(left)
			}
			left -= readSizes[i]
			_ = packet.Append(views[i]) // accepts any view
			views[i] = nil
		}
		deliver(packet)
	}
}

// write sends one packet in pieces. A packet that the device does not accept at once is lost, as on
// any network.
func (d *device) write(h vnetHeader, pieces [][]byte) {
	var (
		header [vnetHeaderLen]byte
		fixed  [12]unix.Iovec
	)
	h.put(&header)
	iovecs := append(fixed[:0], unix.Iovec{Base: &header[0]})
	iovecs[0].SetLen(len(header))
	for _, piece := range pieces {
		if len(piece) > 0 {
			iovecs = append(iovecs, unix.Iovec{Base: &piece[0]})
			iovecs[len(iovecs)-1].SetLen(len(piece))
		}
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return
	}
	if _, errno := vector(unix.SYS_PWRITEV2, unix.SYS_WRITEV, uintptr(d.fd), iovecs); errno != 0 {
		d.dropped.Add(1)
	}
}

// vector makes one vectored call that does not block. Kernels without RWF_NOWAIT here get the plain
// call, which depends on O_NONBLOCK.
func vector(now, plain, fd uintptr, iovecs []unix.Iovec) (int, syscall.Errno) {
	const atPosition = ^uintptr(0) // -1: the current position
	n, _, errno := unix.Syscall6(now, fd, uintptr(unsafe.Pointer(&iovecs[0])), uintptr(len(iovecs)),
		atPosition, atPosition, unix.RWF_NOWAIT)
	if errno != unix.EOPNOTSUPP && errno != unix.ENOSYS {
		return int(n), errno
	}
	n, _, errno = unix.Syscall(plain, fd, uintptr(unsafe.Pointer(&iovecs[0])), uintptr(len(iovecs)))
	return int(n), errno
}

// settle waits until read has delivered all packets that the sandbox sent before the call, the
// device is closed, or ctx ends.
func (d *device) settle(ctx context.Context) {
	for range queueLen {
		d.turn.mu.Lock()
		if !d.turn.taking && !d.readable() {
			d.turn.mu.Unlock()
			return
		}
		if d.turn.over == nil {
			d.turn.over = make(chan struct{})
		}
		over := d.turn.over
		d.turn.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return
		}
	}
}

// readable reports whether the device holds a packet.
func (d *device) readable() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && fds[0].Revents == unix.POLLIN
		}
	}
}

// close wakes read. When it returns, only read may still use the descriptor, and its caller waits
// for that.
func (d *device) close() {
	d.mu.Lock()
	d.fd = -1
	d.mu.Unlock()
	_ = d.file.Close()
}
