package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// openingTimeout is how long a program may take to name its server, from its first data on.
const openingTimeout = 15 * time.Second

// acceptTCP serves one connection from its SYN to its end. The sandbox's handshake waits for the
// real one, so that a closed port is closed inside, too.
func (s *Stack) acceptTCP(ctx context.Context, r *tcp.ForwarderRequest) {
	if !s.begin() {
		r.Complete(true)
		return
	}
	defer s.wg.Done()
	asked := addrPort(r.ID().LocalAddress, r.ID().LocalPort)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &flow{proto: "tcp", port: asked.Port(), end: cancel}
	var why refusal
	if f.port != dnsPort {
		f.name, why = s.target(asked)
		f.brokered = s.current().isBound(f.name, f.port)
	}
	if why == (refusal{}) {
		why = s.admit(f)
	}
	if why != (refusal{}) {
		s.event(Event{Kind: KindRefused, Proto: f.proto, Host: f.host(asked), Addr: asked,
			Why: why.why, Opens: why.opens, Limit: why.limit})
		r.Complete(true)
		return
	}
	defer s.dismiss(f)
	if f.port == dnsPort {
		if guest, ok := s.handshake(r); ok {
			s.serveDNS(ctx, gonet.NewTCPConn(&guest.queue, guest.end))
		}
		return
	}
	if f.brokered {
		if guest, ok := s.handshake(r); ok {
			defer onEnd(ctx, guest.end.Abort)()
			s.broker(ctx, f, gonet.NewTCPConn(&guest.queue, guest.end))
		}
		return
	}
	conn, err := s.open(ctx, f, asked)
	if err != nil {
		r.Complete(true)
		return
	}
	defer s.ended(ctx, f, asked)
	guest, ok := s.handshake(r)
	if !ok {
		cancel(errors.New("the program has left"))
		abort(conn)
		return
	}
	s.relay(ctx, f, guest, conn)
}

// handshake answers the sandbox's SYN, and waits for the rest.
func (s *Stack) handshake(r *tcp.ForwarderRequest) (*guestConn, bool) {
	share := s.shareOut()
	guest := &guestConn{small: &s.crowded}
	end, err := r.CreateEndpoint(&guest.queue)
	r.Complete(false)
	if err != nil {
		return nil, false
	}
	if share < bufferDefault { // the size that the forwarder set
		end.SocketOptions().SetReceiveBufferSize(int64(share), false)
	}
	guest.end = end
	return guest, true
}

// relay copies bytes in both directions until both have ended, or one fails. A failure resets the
// other side, so that it does not take a part for the whole.
func (s *Stack) relay(ctx context.Context, f *flow, guest *guestConn, conn net.Conn) {
	defer guest.end.Close()
	defer conn.Close()
	defer onEnd(ctx, func() {
		abort(conn)
		guest.end.Abort()
	})()
	inspection := s.inspect(f, ctx.Done())
	defer inspection.close()
	var down sync.WaitGroup
	down.Go(func() {
		if err := download(f, guest, conn, inspection); err != nil {
			f.end(err)
		}
	})
	if err := upload(guest, conn, inspection); err != nil {
		f.end(err)
	}
	down.Wait()
}

// upload copies data of the program to the server.
func upload(guest *guestConn, conn net.Conn, inspection *inspection) error {
	readable, ready := waiter.NewChannelEntry(
		waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	guest.queue.EventRegister(&readable)
	defer guest.queue.EventUnregister(&readable)
	for {
		err := guest.whenReady(ready, func(b []byte) error { return inspection.write(conn, b) })
		if errors.Is(err, io.EOF) {
			if err := inspection.atEnd(); err != nil {
				return err
			}
			return closeWrite(conn)
		}
		if err != nil {
			return err
		}
	}
}

// download copies data of the server to the program.
func download(f *flow, guest *guestConn, conn net.Conn, inspection *inspection) error {
	defer inspection.hear(nil)
	writable, ready := waiter.NewChannelEntry(
		waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	guest.queue.EventRegister(&writable)
	defer guest.queue.EventUnregister(&writable)
	for {
		err := whenReady(conn, guest.small, func(b []byte) error {
			if len(b) == 0 {
				return io.EOF
			}
			inspection.hear(b)
			n, err := guest.write(ready, b)
			f.received.Add(int64(n))
			return err
		})
		if errors.Is(err, io.EOF) {
			return guest.closeWrite()
		}
		if err != nil {
			return err
		}
	}
}

// closeWrite ends the data sent to conn. A connection without half-close ends with its Close.
func closeWrite(conn net.Conn) error {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// abort closes conn, with a reset if it supports that.
func abort(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = conn.Close()
}

// guestConn is the sandbox's end of a connection.
type guestConn struct {
	end   tcpip.Endpoint
	queue waiter.Queue
	small *atomic.Bool // whether copies use small buffers
}

// errGuest is an error of the sandbox's end.
func errGuest(err tcpip.Error) error { return errors.New("the program's end: " + err.String()) }

// whenReady reads as the function of this name does. ready signals that there is something to read.
func (c *guestConn) whenReady(ready <-chan struct{}, use func([]byte) error) error {
	for {
		buf := lend(c.small)
		into := tcpip.SliceWriter(*buf)
		result, err := c.end.Read(&into, tcpip.ReadOptions{})
		if err == nil {
			// After Read: within it, the endpoint is locked.
			c.end.ModerateRecvBuf(result.Count)
			err := use((*buf)[:result.Count])
			giveBack(buf)
			return err
		}
		giveBack(buf)
		switch err.(type) {
		case *tcpip.ErrWouldBlock:
			<-ready // also signalled when the endpoint ends
		case *tcpip.ErrClosedForReceive:
			return io.EOF
		default:
			return errGuest(err)
		}
	}
}

// write writes all of b, or fails. ready signals that there is room.
func (c *guestConn) write(ready <-chan struct{}, b []byte) (n int, err error) {
	for n < len(b) {
		written, err := c.end.Write(bytes.NewReader(b[n:]), tcpip.WriteOptions{})
		n += int(written)
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-ready
		default:
			return n, errGuest(err)
		}
	}
	return n, nil
}

func (c *guestConn) closeWrite() error {
	if err := c.end.Shutdown(tcpip.ShutdownWrite); err != nil {
		return errGuest(err)
	}
	return nil
}
