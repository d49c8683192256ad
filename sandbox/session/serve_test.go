package session

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		s := m.lookup("main")
		for i := range 200 {
			m.last().print(strings.Repeat("x", i*7%50+1))
			synctest.Wait()
			s.mu.Lock()
			s.events.emitLocked(wire.Event{Kind: wire.EventCommand, Text: fmt.Sprint(i)})
			s.mu.Unlock()
		}
		r, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
		if err != nil || r.Screen == nil {
			t.Fatal(err)
		}
		// The reply came after all events, and each event at its position in the output.
		at, seq := uint64(0), uint64(0)
		for _, x := range alice.log {
			switch x := x.(type) {
			case uint64:
				at = x
			case wire.Event:
				if x.Offset != at {
					t.Errorf("event %d of offset %d after byte %d", x.Seq, x.Offset, at)
				}
				if seq != 0 && x.Seq != seq+1 {
					t.Errorf("event %d after %d", x.Seq, seq)
				}
				seq = x.Seq
			}
		}
		if n := len(alice.events(wire.EventCommand)); n != 200 {
			t.Errorf("%d events before the reply, want 200", n)
		}
		alice.leave()
		m.close()
	})
}

func TestAttachFrom(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	first := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
	defer first.leave()
	if !first.Attached().Created {
		t.Error("not created")
	}
	m.last().print("0123456789")
	s := m.lookup("main")
	if err := s.display.sync(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		from   wire.Offset
		after  uint64
		offset uint64
		events bool
	}{
		{"now", wire.Offset{}, 0, 10, false},
		{"start", wire.Offset{Word: wire.FromStart}, 0, 0, true},
		{"a number", wire.At(4), 0, 4, true},
		{"beyond the end", wire.At(1000), 0, 10, true},
		{"now, with events", wire.Offset{}, 1, 10, true},
	} {
		c := m.dial(
			wire.Attach{Session: "main", Party: human("bob"), From: tt.from, After: tt.after},
		)
		if got := c.Attached().Offset; got != tt.offset || c.Attached().Created {
			t.Errorf("%s: offset %d, want %d", tt.name, got, tt.offset)
		}
		// A reply comes after the frames that were sent before it.
		if _, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbScreen}); err != nil {
			t.Fatal(err)
		}
		if got := len(c.events(wire.EventJoin)) > 0; got != tt.events {
			t.Errorf("%s: earlier events %v, want %v", tt.name, got, tt.events)
		}
		c.leave()
	}
	quiet := m.dial(
		wire.Attach{
			Session: "main",
			Party:   human("carl"),
			From:    wire.Offset{Word: wire.FromStart},
			Quiet:   true,
		},
	)
	if _, err := quiet.Request(t.Context(), wire.Request{Verb: wire.VerbList}); err != nil {
		t.Fatal(err)
	}
	if got := quiet.text(); got != "" {
		t.Errorf("a quiet stream got %q", got)
	}
	quiet.leave()
}

func TestReaderThatLags(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	first := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice"), Quiet: true})
	defer first.leave()

	near, far := pipe() // the other side does not read for now
	served := make(chan error, 1)
	go func() { served <- m.Serve(context.Background(), far, true) }()
	conn := wire.NewConn(near)
	for _, f := range []struct {
		t wire.FrameType
		v any
	}{{wire.FrameHello, wire.Hello{Versions: []int{1}}},
		{wire.FrameAttach, wire.Attach{Session: "main", Party: watcher("eve")}}} {
		if err := conn.WriteJSON(f.t, 0, f.v); err != nil {
			t.Fatal(err)
		}
	}
	s := m.lookup("main")
	joined := func() bool { return len(s.parties.all) == 2 }
	if err := s.until(t.Context(), joined); err != nil {
		t.Fatal(err)
	}
	// No caller waits for it.
	chunk := strings.Repeat("0123456789abcdef", 4096)
	for range 3 * logSize / len(chunk) {
		m.last().print(chunk)
	}
	if err := s.display.sync(t.Context(), 3*logSize); err != nil {
		t.Fatal(err)
	}
	var at, missed uint64
	for at < 3*logSize {
		f, err := conn.Read()
		if err != nil {
			t.Fatal(err)
		}
		switch f.Type {
		case wire.FrameOutput:
			if f.Offset != at {
				t.Fatalf("output at %d after %d", f.Offset, at)
			}
			if want := "0123456789abcdef"[at%16]; f.Data[0] != want {
				t.Fatalf("offset %d is %q", at, f.Data[0])
			}
			at += uint64(len(f.Data))
		case wire.FrameEvent:
			var e wire.Event
			if err := json.Unmarshal(f.Data, &e); err != nil {
				t.Fatal(err)
			}
			if e.Kind == wire.EventLagged {
				if e.Offset != at+e.Missed {
					t.Fatalf("%d missed at %d go on at %d", e.Missed, at, e.Offset)
				}
				at, missed = e.Offset, missed+e.Missed
			}
		}
	}
	if missed < logSize {
		t.Errorf("missed %d bytes of %d with a log of %d", missed, 3*logSize, logSize)
	}
	near.Close()
	<-served
}

func TestUntrustedStream(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	if _, err := m.try(wire.Attach{Session: "main", Create: true, Party: human("root")},
		false); codeOf(
		err,
	) != wire.CodeDenied {
		t.Errorf("a client that says who it is: %v", err)
	}
	c, err := m.try(wire.Attach{Session: "main", Create: true}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.leave()
	if _, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbTake,
		Party: human("root")}); codeOf(
		err,
	) != wire.CodeDenied {
		t.Errorf("a request that says who it is from: %v", err)
	}
	if r, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil ||
		r.Keyboard != "agent:local" {
		t.Errorf("take: %+v, %v", r, err)
	}
}

func TestNames(t *testing.T) {
	m := newMemorySet(t, Options{MaxSessions: 3})
	defer m.close()
	for _, tt := range []struct {
		name string
		a    wire.Attach
		code wire.Code
	}{
		{"missing", wire.Attach{Session: "main"}, wire.CodeNotFound},
		{"no name", wire.Attach{Session: "Main!", Create: true}, wire.CodeUsage},
		{"path", wire.Attach{Session: "../x", Create: true}, wire.CodeUsage},
		{"reserved", wire.Attach{Session: "new", Create: true}, wire.CodeUsage},
		{"created", wire.Attach{Session: "main", Create: true}, ""},
		{"found", wire.Attach{Session: "main", Create: true}, ""},
		{"fresh, but taken", wire.Attach{Session: "main", Fresh: true}, wire.CodeExists},
		{"fresh", wire.Attach{Session: "build", Fresh: true}, ""},
		{"generated", wire.Attach{Session: "new", Fresh: true}, ""},
		{"one too many", wire.Attach{Session: "fourth", Create: true}, wire.CodeLimitSessions},
		{"a kind that is none", wire.Attach{Session: "main",
			Party: &wire.Party{Name: "x", Kind: "god", Rights: wire.RightDrive}}, wire.CodeUsage},
		{"rights that are none", wire.Attach{Session: "main",
			Party: &wire.Party{Name: "x", Kind: wire.Agent}}, wire.CodeUsage},
		{"nobody", wire.Attach{Session: "main",
			Party: &wire.Party{Kind: wire.Agent, Rights: wire.RightDrive}}, wire.CodeUsage},
	} {
		if tt.a.Party == nil {
			tt.a.Party = agent("alice")
		}
		c, err := m.try(tt.a, true)
		if got := codeOf(err); got != tt.code || err != nil && tt.code == "" {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.code)
		}
		if err == nil {
			if tt.name == "generated" {
				contains(t, c.Attached().Session, "t-")
			}
			c.leave()
		}
	}
	if got := len(m.List()); got != 3 {
		t.Errorf("%d sessions", got)
	}
	// A dead session leaves room until its shell is restarted.
	m.last().die(Exit{Code: 3})
	c, err := m.try(wire.Attach{Session: "main", Party: agent("alice")}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.leave()
	list := m.List()
	for late := time.Now().Add(time.Minute); list[2].State.Phase != wire.PhaseDead &&
		time.Now().Before(late); {
		time.Sleep(time.Millisecond)
		list = m.List()
	}
	if st := list[2].State; st.Phase != wire.PhaseDead || *st.ExitCode != 3 {
		t.Fatalf("state %+v", st)
	}
	d, err := m.try(wire.Attach{Session: "fourth", Create: true, Party: agent("alice")}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer d.leave()
	if _, err := m.try(wire.Attach{Session: list[2].Name, Create: true, Party: agent("alice")},
		true); codeOf(
		err,
	) != wire.CodeLimitSessions {
		t.Errorf("starting a dead one beyond the limit: %v", err)
	}
}

func TestClose(t *testing.T) { synctest.Test(t, testClose) }

func testClose(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
	defer alice.leave()
	eve := m.dial(wire.Attach{Session: "main", Party: watcher("eve")})
	defer eve.leave()
	if _, err := eve.Request(t.Context(), wire.Request{Verb: wire.VerbClose}); codeOf(
		err,
	) != wire.CodeDenied {
		t.Errorf("a watcher closes: %v", err)
	}
	waiting := make(chan *wire.Result, 1)
	go func() {
		r, _ := alice.Request(t.Context(), wire.Request{Verb: wire.VerbWait})
		waiting <- r.Result // nil after an error
	}()
	synctest.Wait()
	control := m.dial(wire.Attach{})
	defer control.leave()
	if _, err := control.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); codeOf(
		err,
	) != wire.CodeUsage {
		t.Errorf("take without attachment: %v", err)
	}
	if _, err := control.Request(t.Context(), wire.Request{Verb: wire.VerbClose,
		Session: "none"}); codeOf(
		err,
	) != wire.CodeNotFound {
		t.Errorf("close of none: %v", err)
	}
	if _, err := control.Request(t.Context(), wire.Request{Verb: wire.VerbClose,
		Session: "main"}); err != nil {
		t.Fatal(err)
	}
	if r := <-waiting; r == nil || r.Ended != wire.Dead {
		t.Errorf("the wait ended with %+v", r)
	}
	for _, c := range []*side{alice, eve} {
		<-c.Done()
		if e := c.events(wire.EventEnded); len(e) != 1 || e[0].State == nil ||
			e[0].State.Reason != "closed" {
			t.Errorf("event %+v", e)
		}
	}
	if r, err := control.Request(t.Context(), wire.Request{Verb: wire.VerbList}); err != nil ||
		len(r.Sessions) != 0 {
		t.Errorf("list: %+v, %v", r.Sessions, err)
	}
}

func TestProgram(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	start := &wire.Start{Argv: []string{"htop"}, Bare: true, Cols: 90, Rows: 20}
	c := m.dial(wire.Attach{Session: "top", Create: true, Party: agent("alice"), Start: start})
	defer c.leave()
	r, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: "ls"})
	if err != nil || r.Result.Ended != wire.Refused || r.Result.Error.Code != wire.CodeNotPrompt {
		t.Errorf("run: %+v, %v", r.Result, err)
	}
	m.last().print("bye")
	m.last().die(Exit{Code: 4})
	r, err = c.Request(t.Context(), wire.Request{Verb: wire.VerbWait})
	if err != nil || r.Result.Ended != wire.Dead || *r.Result.ExitCode != 4 {
		t.Errorf("wait: %+v, %v", r.Result, err)
	}
	if got := m.List()[0]; got.State.Phase != wire.PhaseDead || got.Cols != 90 ||
		got.Argv[0] != "htop" {
		t.Errorf("listed %+v", got)
	}
	if err := c.Input(t.Context(), []byte("x")); codeOf(err) != wire.CodeUnavailable {
		t.Errorf("input to the dead: %v", err)
	}
	again := m.dial(wire.Attach{Session: "top", Create: true, Party: agent("alice")})
	defer again.leave()
	if got := again.Attached(); got.State.Phase != wire.PhaseRunning || got.Created {
		t.Errorf("attached with create: %+v", got)
	}
	if got := len(m.term); got != 2 {
		t.Errorf("%d terminals", got)
	}
}

// TestInputOnceOnResume sends the same input again, as a client does that does not know how much
// arrived.
func TestInputOnceOnResume(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
	if err := alice.Input(t.Context(), []byte("abc")); err != nil {
		t.Fatal(err)
	}
	alice.leave()
	near, far := pipe()
	served := make(chan error, 1)
	go func() { served <- m.Serve(context.Background(), far, true) }()
	conn := wire.NewConn(near)
	conn.WriteJSON(wire.FrameHello, 0, wire.Hello{Versions: []int{1}})
	conn.WriteJSON(
		wire.FrameAttach,
		0,
		wire.Attach{Resume: alice.Attached().Resume, Party: agent("alice")},
	)
	conn.Write(wire.Frame{Type: wire.FrameInput, Offset: 0, Data: []byte("abcdef")})
	for {
		f, err := conn.Read()
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == wire.FrameAccepted {
			if f.Offset != 6 || len(f.Data) != 0 {
				t.Errorf("accepted %d, %s", f.Offset, f.Data)
			}
			break
		}
	}
	if got := string(<-m.last().in) + string(<-m.last().in); got != "abcdef" {
		t.Errorf("the program reads %q", got)
	}
	// A gap is the client's mistake.
	conn.Write(wire.Frame{Type: wire.FrameInput, Offset: 100, Data: []byte("x")})
	if err := <-served; err == nil ||
		!strings.Contains(err.Error(), "input at 100 instead of 6") {
		t.Errorf("served: %v", err)
	}
}

func TestVersions(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	near, far := pipe()
	served := make(chan error, 1)
	go func() { served <- m.Serve(context.Background(), far, true) }()
	conn := wire.NewConn(near)
	conn.WriteJSON(wire.FrameHello, 0, wire.Hello{Versions: []int{99}})
	f, err := conn.Read()
	var hello wire.Hello
	if err != nil || json.Unmarshal(f.Data, &hello) != nil || len(hello.Versions) == 0 {
		t.Errorf("hello: %+v, %v", hello, err)
	}
	if err := <-served; err == nil {
		t.Error("an unknown version is served")
	}
}

// FuzzServe sends any bytes to a Set. It must answer or end the stream, and its sessions must stay
// alive.
func FuzzServe(f *testing.F) {
	frame := func(fr wire.Frame) []byte {
		b, err := wire.AppendFrame(nil, fr)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	hello := frame(wire.Frame{Type: wire.FrameHello, Data: []byte(`{"versions":[1]}`)})
	attach := frame(
		wire.Frame{
			Type: wire.FrameAttach,
			Data: []byte(`{"session":"main","create":true,"from":0}`),
		},
	)
	join := func(frames ...[]byte) (b []byte) {
		for _, fr := range frames {
			b = append(b, fr...)
		}
		return b
	}
	request := func(id uint32, text string) []byte {
		return frame(wire.Frame{Type: wire.FrameRequest, ID: id, Data: []byte(text)})
	}
	f.Add(join(hello, attach, frame(wire.Frame{Type: wire.FrameInput, Data: []byte("ls\n")})))
	f.Add(
		join(
			hello,
			attach,
			request(1, `{"verb":"wait","timeout_ms":1}`),
			request(1, `{"verb":"take"}`),
		),
	)
	f.Add(
		join(
			hello,
			attach,
			request(
				1,
				`{"verb":"keys","keys":["Up","^C"],"timeout_ms":1,"op":"00000000000000000000000000000000"}`,
			),
			request(2, `{"verb":"cancel","cancel":1}`),
		),
	)
	f.Add(
		join(
			hello,
			attach,
			request(1, `{"verb":"resize","cols":5000,"rows":-1}`),
			request(2, `{"verb":"interrupt"}`),
			request(3, `{"verb":"close"}`),
		),
	)
	f.Add(join(hello, request(9, `{"verb":"list"}`), attach, attach))
	f.Add(join(hello, frame(wire.Frame{Type: wire.FrameAttach, Data: []byte(`{"resume":"x"}`)})))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Add(binary.BigEndian.AppendUint32(nil, 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMemorySet(t, Options{MaxSessions: 4})
		near, far := pipe()
		served := make(chan error, 1)
		go func() { served <- m.Serve(t.Context(), far, false) }()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			conn := wire.NewConn(near)
			for {
				f, err := conn.Read()
				if err != nil {
					return
				}
				if f.Type == wire.FrameInput || f.Type == wire.FrameRequest ||
					f.Type == wire.FrameAttach {
					t.Errorf("the session sends frame type %d", f.Type)
				}
			}
		}()
		_, _ = near.Write(data)
		near.(*pipeEnd).w.close() // it has sent everything
		<-served
		near.Close()
		<-drained
		good := m.dial(wire.Attach{Session: "good", Create: true, Party: agent("alice")})
		if _, err := good.Request(t.Context(), wire.Request{Verb: wire.VerbList}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		good.leave()
		m.close()
	})
}
