package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Channels of a stream to a container (v5.channel.k8s.io).
const (
	channelIn     = 0
	channelOut    = 1
	channelErr    = 2
	channelStatus = 3
	channelClose  = 255 // followed by the number of the channel that has ended
)

// maxMessage bounds a message of a stream, in bytes. Servers send at most 32 KiB at a time.
const maxMessage = 1 << 20

// stream is a connection to a container or to a port of a pod, by WebSocket. It is a net.Conn whose
// expired deadlines close it.
type stream struct {
	ws       *websocket.Conn
	pod      string
	ctx      context.Context //nolint:containedctx // ends with the connection
	cancel   context.CancelFunc
	in, out  byte // channels
	errors   byte // channel of error texts
	forwards bool // channels begin with the number of the port

	rmu  sync.Mutex
	rest []byte      // guarded by rmu; received and not read
	seen [2]bool     // guarded by rmu; the channels whose first message has come
	said []byte      // guarded by rmu; text of the error channel, bounded
	end  *exitStatus // guarded by rmu; how the program ended
	dmu  sync.Mutex  //
	read *time.Timer // guarded by dmu
	pens *time.Timer // guarded by dmu; of writes
}

// exitStatus is the last message of a program or an attachment.
type exitStatus struct {
	Status, Reason, Message string
}

// Attach attaches to the standard input of a container's first process. The caller closes the
// connection; CloseWrite ends the input, if the container was made so.
func (c *Client) Attach(ctx context.Context, pod, container string) (Stream, error) {
	return c.stream(ctx, pod, "attach",
		url.Values{"stdin": {"true"}, "container": {container}})
}

// Exec runs a program in a container. The stream is its standard input and output. Read returns an
// error with the last of its standard error if it fails.
func (c *Client) Exec(ctx context.Context, pod, container string, argv ...string) (Stream, error) {
	return c.stream(ctx, pod, "exec", url.Values{"stdin": {"true"},
		"stdout": {"true"}, "stderr": {"true"}, "container": {container}, "command": argv})
}

func (c *Client) stream(ctx context.Context, pod, verb string, q url.Values) (Stream, error) {
	s, err := c.dial(ctx, pod, verb, q, "v5.channel.k8s.io")
	if err != nil {
		return nil, err
	}
	s.in, s.out, s.errors = channelIn, channelOut, channelErr
	return s, nil
}

// Forward connects to a TCP port on the loopback address of a pod.
func (c *Client) Forward(ctx context.Context, pod string, port int) (Stream, error) {
	s, err := c.dial(ctx, pod, "portforward",
		url.Values{"ports": {strconv.Itoa(port)}}, "v4.channel.k8s.io")
	if err != nil {
		return nil, err
	}
	s.in, s.out, s.errors, s.forwards = 0, 0, 1, true
	return s, nil
}

// Stream is a connection through the API server.
type Stream interface {
	net.Conn
	// CloseWrite ends the input of a program. A port has no such end.
	CloseWrite() error
}

// dial opens a WebSocket.
func (c *Client) dial(ctx context.Context, pod, verb string, q url.Values, protocol string) (
	*stream, error) {
	ws, res, err := websocket.Dial(ctx, c.url(c.Path("pods", pod, verb), q), //nolint:bodyclose // the library does it
		&websocket.DialOptions{HTTPClient: c.http, Subprotocols: []string{protocol}})
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if res != nil && res.StatusCode >= 300 { // the library keeps the beginning of the body
			return nil, statusOf(res)
		}
		if errors.As(err, new(*credentialError)) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if ws.Subprotocol() != protocol {
		_ = ws.CloseNow()
		return nil, fmt.Errorf("the API server does not know %s: it is too old", protocol)
	}
	ws.SetReadLimit(maxMessage)
	s := &stream{ws: ws, pod: pod}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// maxWrite bounds a message that is sent, in bytes: servers have limits such as 32 KiB.
const maxWrite = 32<<10 - 1

func (s *stream) Write(p []byte) (int, error) {
	sent := 0
	for len(p) > 0 {
		part := p[:min(len(p), maxWrite)]
		message := append(append(make([]byte, 0, len(part)+1), s.in), part...)
		if err := s.ws.Write(s.ctx, websocket.MessageBinary, message); err != nil {
			return sent, err
		}
		sent += len(part)
		p = p[len(part):]
	}
	return sent, nil
}

func (s *stream) CloseWrite() error {
	if s.forwards {
		return errors.ErrUnsupported
	}
	return s.ws.Write(s.ctx, websocket.MessageBinary, []byte{channelClose, s.in})
}

func (s *stream) Read(p []byte) (int, error) {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	for len(s.rest) == 0 {
		_, message, err := s.ws.Read(s.ctx)
		if err != nil {
			return 0, s.ended(err)
		}
		if err := s.take(message); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// take takes a message of the server. The caller holds rmu.
func (s *stream) take(message []byte) error {
	if len(message) == 0 {
		return nil
	}
	channel, data := message[0], message[1:]
	if s.forwards && int(channel) < len(s.seen) && !s.seen[channel] {
		if len(data) < 2 {
			return errors.New("port forward: short message")
		}
		s.seen[channel] = true
		_ = binary.LittleEndian.Uint16(data) // the port
		data = data[2:]
	}
	switch {
	case channel == s.out:
		s.rest = data
	case channel == s.errors:
		s.said = append(s.said, data[:min(len(data), maxText-len(s.said))]...)
		if s.forwards && len(s.said) > 0 {
			return fmt.Errorf("port forward: %s", Printable(string(s.said)))
		}
	case channel == channelStatus && !s.forwards:
		s.end = new(exitStatus)
		if err := json.Unmarshal(data, s.end); err != nil {
			return fmt.Errorf("status of a stream: %w", err)
		}
	}
	return nil
}

// ended returns the error of the end of a stream. The caller holds rmu.
func (s *stream) ended(err error) error {
	if s.end != nil && s.end.Status == "Failure" {
		text := Printable(s.end.Message)
		if len(s.said) > 0 {
			text += ": " + Printable(string(s.said))
		}
		return errors.New(text)
	}
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure || errors.Is(err, io.EOF) {
		return io.EOF
	}
	if s.ctx.Err() != nil {
		return net.ErrClosed
	}
	return err
}

func (s *stream) Close() error {
	s.cancel()
	_ = s.SetDeadline(time.Time{})
	return s.ws.CloseNow()
}

// SetDeadline implements net.Conn. A deadline that has passed closes the connection.
func (s *stream) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn, as SetDeadline.
func (s *stream) SetReadDeadline(t time.Time) error { return s.deadline(&s.read, t) }

// SetWriteDeadline implements net.Conn, as SetDeadline.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.deadline(&s.pens, t) }

func (s *stream) deadline(timer **time.Timer, t time.Time) error {
	s.dmu.Lock()
	defer s.dmu.Unlock()
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	if !t.IsZero() {
		*timer = time.AfterFunc(time.Until(t), s.cancel)
	}
	return nil
}

// address is the name of a pod: the API server hides the real addresses.
type address string

func (address) Network() string  { return "kubernetes" }
func (a address) String() string { return string(a) }

// LocalAddr implements net.Conn. It is empty.
func (*stream) LocalAddr() net.Addr { return address("") }

// RemoteAddr returns the name of the pod.
func (s *stream) RemoteAddr() net.Addr { return address(s.pod) }
