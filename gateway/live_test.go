package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var main = wire.Target{Sandbox: "demo", Session: "main"}

// recorded is what the record of a session has, with a NUL for each missing byte, and its reader.
func (w *world) recorded(d *daemon, t wire.Target) (string, *record.Reader) {
	w.t.Helper()
	r, err := d.Sessions.OpenRecord(w.ctx(), alice, t, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { r.Close() })
	var out bytes.Buffer
	buf := make([]byte, 64<<10)
	for off := uint64(0); off < r.End(); {
		n, err := r.ReadAt(buf, off)
		out.Write(buf[:n])
		off += uint64(n)
		var gap *record.GapError
		if errors.As(err, &gap) {
			out.WriteString(strings.Repeat("\x00", int(gap.To-off)))
			off = gap.To
		} else if err != nil {
			w.t.Fatal(err)
		}
	}
	return out.String(), r
}

// A daemon that dies while a command runs: the command ends, and the next daemon has its output,
// its exit code, and one record of all of it.
func TestDaemonDiesWhileACommandRuns(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	info := w.create(d, "demo")
	w.run(d, "echo be''fore")
	party, err := d.Sessions.Shared(w.ctx(), robot, main, attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The command goes on when the file is there.
	res, err := party.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, TimeoutMS: 2000,
		Text: "seq 1 500; while [ ! -e go ]; do sleep 0.01; done; seq 1001 4000; echo " +
			"out''age; (exit 5)"})
	if err != nil || res.Result.Ended != wire.Deadline {
		t.Fatalf("the command that runs on: %+v, %v", res.Result, err)
	}
	d.stop()

	// Nobody is here. The sandbox's own ssh is the only way in, and the test takes it.
	peer, err := w.memory.Dial(w.ctx(), sandboxInstance(info))
	if err != nil {
		t.Fatal(err)
	}
	sshRun(t, peer, "touch go")

	d = w.start()
	if got := w.state(d, "demo"); got != lifecycle.Running {
		t.Fatalf("state = %s, want running", got)
	}
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	for gen := l.Generation(); l.State().Phase != wire.PhasePrompt; {
		if gen, err = l.Wait(w.ctx(), gen); err != nil {
			t.Fatal(err)
		}
	}
	if st := l.State(); st.ExitCode == nil || *st.ExitCode != 5 {
		t.Errorf("state = %+v, want exit code 5", st)
	}
	if res := w.run(d, "echo af''ter"); res.Output != "after\n" {
		t.Errorf("output of the next command = %q", res.Output)
	}
	text, r := w.recorded(d, main)
	if strings.Contains(text, "\x00") || len(r.Gaps()) != 0 {
		t.Errorf("the record has gaps: %v", r.Gaps())
	}
	for _, lines := range [][2]int{{1, 500}, {1001, 4000}} {
		if want := numbers(lines[0], lines[1]); strings.Count(text, want) != 1 {
			t.Errorf("the lines %d to %d are %d times in the record, want once", lines[0], lines[1],
				strings.Count(text, want))
		}
	}
	for _, word := range []string{"before\r\n", "outage\r\n", "after\r\n"} {
		if strings.Count(text, word) != 1 {
			t.Errorf("%q is %d times in the record, want once", word, strings.Count(text, word))
		}
	}
	whole, err := everything(w.ctx(), l, 0, l.Len())
	if err != nil || whole != text[:len(whole)] || len(whole) < len(text) {
		t.Errorf("replica and record differ: %d and %d bytes, %v", len(whole), len(text), err)
	}
}

// numbers is what seq prints on a terminal.
func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "%d\r\n", i)
	}
	return b.String()
}

// Control connections that break all the time lose no byte and double none.
func TestOutputIsExactAcrossBrokenConnections(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	info := w.create(d, "demo")
	w.run(d, "true")
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	from := l.Len()
	done := make(chan *wire.Result, 1)
	go func() {
		a, err := d.Sessions.Shared(w.ctx(), robot, main, attach.JoinOptions{})
		if err != nil {
			t.Error(err)
		}
		reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun,
			Text: "for i in $(seq 1 300); do seq $i 3000 | head -100; done; echo e''nd"})
		if err != nil {
			t.Errorf("run: %v", err)
		}
		done <- reply.Result
	}()
	ctx := w.ctx()
	var got strings.Builder
	buf := make([]byte, 4096)
	for off, broken := from, 0; !strings.Contains(got.String(), "end\r\n"); {
		n, err := l.ReadAt(ctx, off, buf)
		if err != nil {
			t.Fatalf("ReadAt(%d): %v", off, err)
		}
		got.Write(buf[:n])
		off += uint64(n)
		if want := got.Len() / 10_000; broken < want && broken < 8 {
			broken++
			d.registry.Connections().Forget(info.ID)
		}
	}
	if res := <-done; res == nil || res.Ended != wire.Done {
		t.Fatalf("result = %+v", res)
	}
	var want strings.Builder
	for i := 1; i <= 300; i++ {
		want.WriteString(numbers(i, i+99))
	}
	want.WriteString("end\r\n")
	if !strings.Contains(got.String(), want.String()) {
		t.Errorf("the output of %d bytes is not in the %d that were read", want.Len(), got.Len())
	}
	if text, _ := w.recorded(d, main); !strings.Contains(text, want.String()) {
		t.Error("the output is not in the record")
	}
}

// A session that existed before anybody looked – an image's entrypoint, or one that the last daemon
// did not live to see – is found by list.
func TestSessionsAreFoundByThemselves(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	info := w.create(d, "demo")
	c, err := d.registry.Connections().Control(w.ctx(), sandboxInstance(info))
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.OpenStream(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	client, err := wire.Open(w.ctx(), s, wire.Attach{Session: "entrypoint", Create: true,
		Start: &wire.Start{Argv: []string{"/bin/sh", "-c", "echo ser''ving; exec sleep 1000"}}},
		wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	l, err := d.Sessions.Live(w.ctx(), alice, wire.Target{Sandbox: "demo", Session: "entrypoint"})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := everything(w.ctx(), l, 0, uint64(len("serving\r\n"))); text != "serving\r\n" {
		t.Errorf("entrypoint printed %q, %v", text, err)
	}
	d.stop()
	d = w.start()
	w.eventually("the session is followed without anybody asking", func() bool {
		info, err := d.Get(w.ctx(), alice, "demo")
		return err == nil && len(info.Sessions) == 1 && info.Sessions[0].Name == "entrypoint"
	})
}

func TestReaderBehindTheReplicaReadsTheRecord(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	res := w.run(d, "seq 1 200000")
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	if res.To-res.From < 1<<20 {
		t.Fatal("the replica may have all of it: nothing has to come from the record")
	}
	text, err := everything(w.ctx(), l, res.From, res.To)
	if err != nil {
		t.Fatal(err)
	}
	if want := numbers(1, 200000); !strings.Contains(text, want) {
		t.Errorf("the %d bytes read are not the %d printed", len(text), len(want))
	}
}

// A record at its quota has dropped its oldest part. A reader that is too far behind learns how
// much it missed, and the session continues.
func TestReaderBehindAFullRecordLags(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.options.RecordQuota = 64 << 10
	d := w.start()
	w.create(d, "demo")
	res := w.run(d, "head -c 12000000 /dev/zero | tr '\\0' x; echo; echo e''nd")
	if res.Ended != wire.Done {
		t.Fatalf("result = %+v", res)
	}
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Recording(); got != "" {
		t.Errorf("Recording() = %q, want nothing", got)
	}
	off, missed, read := res.From, uint64(0), uint64(0)
	buf := make([]byte, 64<<10)
	for off < res.To {
		n, err := l.ReadAt(w.ctx(), off, buf)
		read += uint64(n)
		off += uint64(n)
		var lagged *live.LaggedError
		if errors.As(err, &lagged) {
			if lagged.From != off || lagged.To <= off || lagged.Why != record.WhyRotated {
				t.Fatalf("at %d: %+v", off, lagged)
			}
			missed += lagged.To - lagged.From
			off = lagged.To
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if missed == 0 || read < 16<<10 {
		t.Errorf("missed %d and read %d bytes; want some missed and the newest read", missed, read)
	}
	text, r := w.recorded(d, main)
	if r.Stopped() != "" || !strings.Contains(text, "\nend\r\n") {
		t.Errorf("stopped %q, and the record ends in %.60q; want nothing, and the newest bytes",
			r.Stopped(), text[max(0, len(text)-60):])
	}
}

// drawn is what a terminal shows that saw the whole record up to offset end.
func (w *world) drawn(d *daemon, t wire.Target, end uint64) string {
	w.t.Helper()
	text, r := w.recorded(d, t)
	s := screen.New(screen.Options{Cols: r.Begin().Cols, Rows: r.Begin().Rows})
	at := uint64(0)
	for e, err := range r.Events() {
		if err != nil {
			w.t.Fatal(err)
		}
		if e.Kind == wire.EventResize && e.Offset <= end {
			s.Write([]byte(text[at:e.Offset]))
			s.Resize(e.Cols, e.Rows)
			at = e.Offset
		}
	}
	s.Write([]byte(text[at:end]))
	return s.Text()
}

func TestScreenIsThatOfTheWholeLog(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, `printf '\033[2J\033[3;5Hcorner'; seq 1 3`)
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	var size [2]int
	check := func(l *live.Session) {
		t.Helper()
		var got string
		var at uint64
		least := l.Len()
		if err := l.Screen(func(s *screen.Screen, off uint64) {
			got, at = s.Text(), off
			size[0], size[1] = s.Size()
		}); err != nil {
			t.Fatal(err)
		}
		if want := w.drawn(d, main, at); got != want || at < least || !strings.Contains(got,
			"corner") {
			t.Errorf("the screen at %d of %d shows %q, want %q", at, least, got, want)
		}
	}
	a := w.join(d, alice, main, attach.JoinOptions{Cols: 100, Rows: 30})
	if err := a.Take(w.ctx()); err != nil {
		t.Fatal(err)
	}
	w.eventually("the size is the driver's", func() bool {
		c, r := l.Size()
		return c == 100 && r == 30
	})
	check(l)
	if size != [2]int{100, 30} {
		t.Errorf("size = %v, want 100×30", size)
	}
	// A daemon that comes later shows the same, and follows.
	d.stop()
	d = w.start()
	if l, err = d.Sessions.Live(w.ctx(), alice, main); err != nil {
		t.Fatal(err)
	}
	check(l)
	a = w.join(d, alice, main, attach.JoinOptions{Cols: 100, Rows: 30})
	w.eventually("the keyboard of the lost party is free", func() bool {
		return a.Input(w.ctx(), []byte("echo mo''re\r")) == nil
	})
	w.shows(l, 0, "more\r\n")
	check(l)
}

func TestWaitIsLevelTriggered(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, "true")
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	gen := l.Generation()
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	if _, err := l.Wait(ctx, gen+1); err != nil {
		t.Errorf("Wait for what has been: %v", err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if next, err := l.Wait(w.ctx(), gen); err != nil || next == gen {
				t.Errorf("Wait = %d, %v", next, err)
			}
		})
	}
	w.run(d, "echo x")
	wg.Wait()
	if err := d.Sessions.Close(w.ctx(), alice, main); err != nil {
		t.Fatal(err)
	}
	for {
		if gen, err = l.Wait(w.ctx(), gen); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n, err := l.ReadAt(w.ctx(), l.Len(), make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("ReadAt at the end = %d, %v, want EOF", n, err)
	}
}
