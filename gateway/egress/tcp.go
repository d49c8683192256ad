package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// openingTimeout is how long a program may take to say whom it means, counted from the connection's beginning to speak.
const openingTimeout = 15 * time.Second

// acceptTCP serves one connection from its SYN to its end. The sandbox's handshake waits for the real one: a port that is closed is refused
// there too.
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
	}
	if why == (refusal{}) && !s.admit(f) {
		why.why = fmt.Sprintf("%d connections are open already", maxTCP)
	}
	if why != (refusal{}) {
		s.event(Event{Kind: KindRefused, Proto: f.proto, Host: f.host(asked), Addr: asked, Why: why.why, Opens: why.opens})
		r.Complete(true)
		return
	}
	defer s.dismiss(f)
	if f.port == dnsPort {
		if guest, ok := handshake(r); ok {
			s.serveDNS(ctx, gonet.NewTCPConn(&guest.queue, guest.end))
		}
		return
	}
	conn, err := s.open(ctx, f, asked)
	if err != nil {
		r.Complete(true)
		return
	}
	defer s.ended(ctx, f, asked)
	guest, ok := handshake(r)
	if !ok {
		cancel(errors.New("the program had gone"))
		abort(conn)
		return
	}
	s.relay(ctx, f, guest, conn)
}

// admit counts f among the connections, unless there are too many.
func (s *Stack) admit(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flows) >= maxTCP {
		return false
	}
	s.flows[f] = struct{}{}
	return true
}

func (s *Stack) dismiss(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flows, f)
}

// handshake answers the sandbox's SYN, and waits for the rest.
func handshake(r *tcp.ForwarderRequest) (*guestConn, bool) {
	guest := new(guestConn)
	end, err := r.CreateEndpoint(&guest.queue)
	r.Complete(false)
	if err != nil {
		return nil, false
	}
	guest.end = end
	return guest, true
}

// relay moves bytes both ways until both have ended, or one is cut off: that cuts the other off, so that nobody takes a part for the whole.
func (s *Stack) relay(ctx context.Context, f *flow, guest *guestConn, conn net.Conn) {
	defer guest.end.Close()
	defer conn.Close()
	defer onEnd(ctx, func() {
		abort(conn)
		guest.end.Abort()
	})()
	var down sync.WaitGroup
	down.Go(func() {
		if err := download(f, guest, conn); err != nil {
			f.end(err)
		}
	})
	if err := s.upload(f, guest, conn); err != nil {
		f.end(err)
	}
	down.Wait()
}

// upload carries what the program says.
func (s *Stack) upload(f *flow, guest *guestConn, conn net.Conn) error {
	readable, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	guest.queue.EventRegister(&readable)
	defer guest.queue.EventUnregister(&readable)
	s.mu.Lock()
	compare := s.policy.comparesNames(f.name, f.addr)
	s.mu.Unlock()
	send := func(b []byte) error {
		n, err := conn.Write(b)
		f.sent.Add(int64(n))
		return err
	}
	use := send
	var held []byte // what cannot go on before it is clear whom it is for
	var late *time.Timer
	if compare {
		use = func(b []byte) error {
			if late == nil {
				late = time.AfterFunc(openingTimeout, func() { f.end(s.misnamed(f, "", false)) })
			}
			held = append(held, b...)
			switch what, said := readOpening(held); what {
			case openingPartial:
				return nil
			case openingNamed:
				if !s.says(f, said) {
					return s.misnamed(f, said, true)
				}
			case openingUnnamed:
				return s.misnamed(f, "", true)
			case openingOther:
			}
			late.Stop()
			b, held, use = held, nil, send
			return send(b)
		}
	}
	defer func() {
		if late != nil {
			late.Stop()
		}
	}()
	for {
		err := guest.whenReady(ready, func(b []byte) error { return use(b) })
		if errors.Is(err, io.EOF) {
			if len(held) > 0 {
				return s.misnamed(f, "", true)
			}
			return closeWrite(conn)
		}
		if err != nil {
			return err
		}
	}
}

// says notes which name the program says, and whether the policy allows that on f: the one that it asked for, or another that is listed.
func (s *Stack) says(f *flow, said string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.said = said
	return said == f.name || s.policy.listsName(said, f.port)
}

// misnamed tells that f is not for whom it was opened.
func (s *Stack) misnamed(f *flow, said string, whole bool) error {
	why := refusal{why: "TLS or HTTP without a readable name of the server"}
	switch {
	case said != "":
		why = refusal{"it is for " + said + ", which is " + notListed, entryText(said, f.port)}
	case !whole:
		why.why = fmt.Sprintf("said nothing readable in %v", openingTimeout)
	}
	s.event(Event{Kind: KindRefused, Proto: f.proto, Host: f.name, Addr: f.addr, Why: why.why, Opens: why.opens})
	return why
}

// download carries what is said to the program.
func download(f *flow, guest *guestConn, conn net.Conn) error {
	writable, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	guest.queue.EventRegister(&writable)
	defer guest.queue.EventUnregister(&writable)
	for {
		err := whenReady(conn, func(b []byte) error {
			if len(b) == 0 {
				return io.EOF
			}
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

// closeWrite ends what conn is sent. Connections that cannot end one way end both ways, by their Close, later.
func closeWrite(conn net.Conn) error {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// abort closes conn with a reset, where it has such.
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
}

// errGuest is an error of the sandbox's end.
func errGuest(err tcpip.Error) error { return errors.New("the program's end: " + err.String()) }

// whenReady reads as the function of this name does. ready tells when there is something to read.
func (c *guestConn) whenReady(ready <-chan struct{}, use func([]byte) error) error {
	for {
		buf := buffers.Get().(*[copySize]byte)
		into := tcpip.SliceWriter(buf[:])
		result, err := c.end.Read(&into, tcpip.ReadOptions{})
		if err == nil {
			// Written after Read: within it, the endpoint is locked.
			c.end.ModerateRecvBuf(result.Count)
			err := use(buf[:result.Count])
			buffers.Put(buf)
			return err
		}
		buffers.Put(buf)
		switch err.(type) {
		case *tcpip.ErrWouldBlock:
			<-ready // an endpoint that ends says so, too
		case *tcpip.ErrClosedForReceive:
			return io.EOF
		default:
			return errGuest(err)
		}
	}
}

// write writes all of b, or fails. ready tells when there is room.
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
