package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// FrameType is the byte after a frame's length.
type FrameType byte

// Frames of a session stream. Hello is first in both directions, then attach, answered by attached.
const (
	FrameHello    FrameType = 1 // Hello
	FrameAttach   FrameType = 2 // Attach
	FrameAttached FrameType = 3 // Attached
	FrameOutput   FrameType = 4 // uint64 offset, bytes
	FrameInput    FrameType = 5 // uint64 sequence (bytes sent before these), bytes
	// FrameAccepted has a uint64, the input bytes handled so far; then nothing, or the Error that
	// rejected the last of them.
	FrameAccepted FrameType = 6
	FrameRequest  FrameType = 7 // uint32 id, Request
	FrameReply    FrameType = 8 // uint32 id, Reply
	FrameEvent    FrameType = 9 // Event
)

// MaxFrame is the maximal length of a frame: its type byte and payload.
const MaxFrame = 1 << 20

// Frame is one frame of a session stream.
type Frame struct {
	Type   FrameType
	Offset uint64 // output: offset of Data; input: sequence; accepted: count
	ID     uint32 // request, reply
	Data   []byte // bytes of output and input; JSON of others
}

// AppendFrame appends the encoding of f.
func AppendFrame(dst []byte, f Frame) ([]byte, error) {
	head := 1
	switch f.Type {
	case FrameOutput, FrameInput, FrameAccepted:
		head += 8
	case FrameRequest, FrameReply:
		head += 4
	case FrameHello, FrameAttach, FrameAttached, FrameEvent:
	default:
		return dst, fmt.Errorf("unknown frame type %d", f.Type)
	}
	n := head + len(f.Data)
	if n > MaxFrame {
		return dst, fmt.Errorf("frame of %d bytes exceeds %d", n, MaxFrame)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	dst = append(dst, byte(f.Type))
	switch head {
	case 9:
		dst = binary.BigEndian.AppendUint64(dst, f.Offset)
	case 5:
		dst = binary.BigEndian.AppendUint32(dst, f.ID)
	}
	return append(dst, f.Data...), nil
}

// Conn reads and writes frames. One goroutine may read while others write.
type Conn struct {
	rw io.ReadWriteCloser

	rbuf []byte // buffer of the reader

	wmu  sync.Mutex
	wbuf []byte // guarded by wmu; queued frames
}

// NewConn returns a Conn on rw, which Close closes.
func NewConn(rw io.ReadWriteCloser) *Conn { return &Conn{rw: rw} }

// Close closes the underlying connection. A blocked Read or Write returns.
func (c *Conn) Close() error { return c.rw.Close() }

// Read returns the next frame. Its Data is valid until the next Read. io.EOF means that the peer
// closed the stream between two frames. A frame that is malformed, too long or of an unknown type
// is an error that ends the stream.
func (c *Conn) Read() (Frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.rw, head[:4]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n == 0 || n > MaxFrame {
		return Frame{}, fmt.Errorf("frame of %d bytes is not between 1 and %d", n, MaxFrame)
	}
	// Grow with the received data: a length alone must not allocate a megabyte.
	c.rbuf = c.rbuf[:0]
	for uint32(len(c.rbuf)) < n {
		step := min(n-uint32(len(c.rbuf)), 64<<10)
		at := len(c.rbuf)
		if cap(c.rbuf)-at < int(step) {
			c.rbuf = append(c.rbuf, make([]byte, step)...)
		} else {
			c.rbuf = c.rbuf[:at+int(step)]
		}
		if _, err := io.ReadFull(c.rw, c.rbuf[at:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return Frame{}, err
		}
	}
	return ParseFrame(c.rbuf)
}

// ParseFrame parses a frame without its length. Data aliases b.
func ParseFrame(b []byte) (Frame, error) {
	if len(b) == 0 {
		return Frame{}, fmt.Errorf("empty frame")
	}
	f := Frame{Type: FrameType(b[0]), Data: b[1:]}
	switch f.Type {
	case FrameOutput, FrameInput, FrameAccepted:
		if len(f.Data) < 8 {
			return Frame{}, fmt.Errorf("frame type %d is truncated", f.Type)
		}
		f.Offset, f.Data = binary.BigEndian.Uint64(f.Data), f.Data[8:]
	case FrameRequest, FrameReply:
		if len(f.Data) < 4 {
			return Frame{}, fmt.Errorf("frame type %d is truncated", f.Type)
		}
		f.ID, f.Data = binary.BigEndian.Uint32(f.Data), f.Data[4:]
	case FrameHello, FrameAttach, FrameAttached, FrameEvent:
	default:
		return Frame{}, fmt.Errorf("unknown frame type %d", f.Type)
	}
	return f, nil
}

// batch is how many bytes Queue collects: those of one SSH packet.
const batch = 32 << 10

// Write sends queued frames and f, in one write if they are short. f.Data is not retained.
func (c *Conn) Write(f Frame) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.queueLocked(f); err != nil {
		return err
	}
	return c.flushLocked()
}

// WriteJSON sends a frame of type t with v as JSON. id is used by requests and replies.
func (c *Conn) WriteJSON(t FrameType, id uint32, v any) error {
	b, err := plainJSON(v)
	if err != nil {
		return err
	}
	return c.Write(Frame{Type: t, ID: id, Data: b})
}

// plainJSON returns the JSON of v without escapes of <, > and &, which would make a command up to
// six times longer.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Queue is Write for callers that call Flush after their last frame. Until then, f may be delayed.
func (c *Conn) Queue(f Frame) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.queueLocked(f)
}

// QueueJSON is WriteJSON with Queue.
func (c *Conn) QueueJSON(t FrameType, id uint32, v any) error {
	b, err := plainJSON(v)
	if err != nil {
		return err
	}
	return c.Queue(Frame{Type: t, ID: id, Data: b})
}

// Flush sends queued frames.
func (c *Conn) Flush() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.flushLocked()
}

func (c *Conn) queueLocked(f Frame) error {
	if len(c.wbuf) > 0 && len(c.wbuf)+len(f.Data)+16 > batch {
		if err := c.flushLocked(); err != nil {
			return err
		}
	}
	b, err := AppendFrame(c.wbuf, f)
	c.wbuf = b
	if err == nil && len(b) >= batch {
		err = c.flushLocked()
	}
	return err
}

func (c *Conn) flushLocked() error {
	b := c.wbuf
	if len(b) == 0 {
		return nil
	}
	c.wbuf = b[:0]
	if cap(b) > 64<<10 { // do not retain the memory of a large frame
		c.wbuf = nil
	}
	_, err := c.rw.Write(b)
	return err
}
