package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// duplex joins a reader and a writer.
type duplex struct {
	io.Reader
	io.Writer
}

func (duplex) Close() error { return nil }

func TestFramesRoundTrip(t *testing.T) {
	frames := []Frame{
		{Type: FrameHello, Data: []byte(`{"versions":[1]}`)},
		{Type: FrameOutput, Offset: 1 << 40, Data: bytes.Repeat([]byte{0xff, 0}, 70_000)},
		{Type: FrameInput, Offset: 7, Data: []byte("y\r")},
		{Type: FrameAccepted, Offset: 9, Data: []byte{}},
		{Type: FrameRequest, ID: 1, Data: []byte(`{}`)},
		{Type: FrameReply, ID: 1<<32 - 1, Data: []byte(`{}`)},
		{Type: FrameEvent, Data: []byte(`{}`)},
	}
	var buf bytes.Buffer
	conn := NewConn(duplex{&buf, &buf})
	for _, f := range frames {
		if err := conn.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range frames {
		got, err := conn.Read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := conn.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want EOF", err)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byte
		want error // nil means any but EOF
	}{
		{"empty stream", nil, io.EOF},
		{"half a length", []byte{0, 0}, io.ErrUnexpectedEOF},
		{"length 0", []byte{0, 0, 0, 0}, nil},
		{"length over the limit", []byte{0, 16, 0, 1, 1}, nil},
		{"length of 4 GiB", []byte{0xff, 0xff, 0xff, 0xff, 1}, nil},
		{"unknown type", []byte{0, 0, 0, 1, 99}, nil},
		{"type 0", []byte{0, 0, 0, 1, 0}, nil},
		{"output without offset", []byte{0, 0, 0, 3, byte(FrameOutput), 1, 2}, nil},
		{"request without id", []byte{0, 0, 0, 2, byte(FrameRequest), 1}, nil},
		{"cut in the payload", []byte{0, 0, 0, 9, byte(FrameEvent), '{'}, io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewConn(duplex{bytes.NewReader(c.in), io.Discard}).Read()
			if err == nil || c.want != nil && !errors.Is(err, c.want) ||
				c.want == nil && errors.Is(err, io.EOF) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	conn := NewConn(duplex{new(bytes.Buffer), io.Discard})
	if err := conn.Write(Frame{Type: 99}); err == nil {
		t.Error("unknown type: no error")
	}
	if err := conn.Write(Frame{Type: FrameOutput, Data: make([]byte, MaxFrame)}); err == nil {
		t.Error("too long: no error")
	}
}

// A length alone must not make the reader allocate memory.
func TestReadAllocatesWhatArrives(t *testing.T) {
	in := binary.BigEndian.AppendUint32(nil, MaxFrame)
	in = append(in, byte(FrameEvent))
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			_, _ = NewConn(duplex{bytes.NewReader(in), io.Discard}).Read()
		}
	}).AllocedBytesPerOp()
	if allocated > 200<<10 {
		t.Errorf("a frame that never came cost %d bytes", allocated)
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte{byte(FrameOutput), 0, 0, 0, 0, 0, 0, 0, 1, 'x'})
	f.Add([]byte{byte(FrameRequest), 0, 0, 0, 1, '{', '}'})
	f.Add([]byte{byte(FrameEvent)})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ParseFrame(b)
		if err != nil || len(b) > MaxFrame {
			return
		}
		again, err := AppendFrame(nil, frame)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again[4:], b) {
			t.Errorf("%x came back as %x", b, again[4:])
		}
	})
}

func FuzzPayloads(f *testing.F) {
	f.Add(Marshal(PtyReq{Term: "xterm", Cols: 80, Rows: 24}))
	f.Add(Marshal(DirectTCP{Host: "localhost", Port: 80}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(PtyReq), new(WindowChange), new(Env), new(Exec), new(Subsystem),
			new(Signal), new(ExitStatus), new(ExitSignal),
			new(DirectTCP), new(DirectUnix), new(ForwardedUnix), new(TCPForward),
			new(UnixForward)} {
			if err := Unmarshal(b, v); err != nil {
				continue
			}
			// Not the same bytes: any boolean but 0 is true (RFC 4251, section 5).
			if again := Marshal(v); len(again) != len(b) || Unmarshal(again, v) != nil ||
				!bytes.Equal(Marshal(v), again) {
				t.Errorf("%T: %x came back as %x", v, b, again)
			}
		}
	})
}

// writes counts writes.
type writes struct {
	bytes.Buffer
	n int
}

func (w *writes) Write(p []byte) (int, error) {
	w.n++
	return w.Buffer.Write(p)
}

func TestQueuedFramesGoOutTogether(t *testing.T) {
	var out writes
	conn := NewConn(duplex{&out, &out})
	var want []Frame
	send := func(send func(Frame) error, size int) {
		t.Helper()
		f := Frame{
			Type:   FrameOutput,
			Offset: uint64(len(want)),
			Data:   bytes.Repeat([]byte{'x'}, size),
		}
		want = append(want, f)
		if err := send(f); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, n int) {
		t.Helper()
		if out.n != n {
			t.Errorf("%s: %d writes so far, want %d", what, out.n, n)
		}
	}
	for range 3 {
		send(conn.Queue, 10)
	}
	check("short frames", 0)
	send(conn.Write, 10)
	check("one that is not queued", 1)
	send(conn.Queue, 10)
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	check("flush", 2)
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	check("flush of nothing", 2)
	send(conn.Queue, 10)
	send(conn.Queue, batch)
	check("a long one", 4)
	if err := conn.Queue(Frame{Type: 99}); err == nil {
		t.Error("a type that is not known was queued")
	}
	for _, f := range want {
		got, err := conn.Read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Error(diff)
		}
	}
}
