package gateway_test

import (
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

// A daemon that dies while a command runs: the command ends, and the next daemon has its output,
// its exit code, and one record of all of it.
func TestDaemonDiesWhileACommandRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	w.Run(d, "echo be''fore")
	party, err := d.Sessions.Shared(w.Ctx(), robot, main, attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The command goes on when the file is there.
	res, err := party.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, TimeoutMS: 2000,
		Text: "seq 1 500; while [ ! -e go ]; do sleep 0.01; done; seq 1001 4000; echo " +
			"out''age; (exit 5)"})
	if err != nil || res.Result.Ended != wire.Deadline {
		t.Fatalf("the command that runs on: %+v, %v", res.Result, err)
	}
	d.End()

	// Nobody is here. The sandbox's own ssh is the only way in, and the test takes it.
	peer, err := w.Memory.Dial(w.Ctx(), instanceOf(info))
	if err != nil {
		t.Fatal(err)
	}
	sshRun(t, peer, "touch go")

	d = w.Start()
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Fatalf("state = %s, want running", got)
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	for gen := l.Generation(); l.State().Phase != wire.PhasePrompt; {
		if gen, err = l.Wait(w.Ctx(), gen); err != nil {
			t.Fatal(err)
		}
	}
	if st := l.State(); st.ExitCode == nil || *st.ExitCode != 5 {
		t.Errorf("state = %+v, want exit code 5", st)
	}
	if res := w.Run(d, "echo af''ter"); res.Output != "after\n" {
		t.Errorf("output of the next command = %q", res.Output)
	}
	text, r := w.Recorded(d, main)
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
	whole, err := readTo(w.Ctx(), l, 0, l.Len())
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

// A session that existed before anybody looked – an image's entrypoint, or one that the last daemon
// did not live to see – is found by list.
func TestSessionsAreFoundByThemselves(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	s, err := w.Control(instanceOf(info)).OpenStream(w.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	client, err := wire.Open(w.Ctx(), s, wire.Attach{Session: "entrypoint", Create: true,
		Start: &wire.Start{Argv: []string{"/bin/sh", "-c", "echo ser''ving; exec sleep 1000"}}},
		wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	l, err := d.Sessions.Live(w.Ctx(), alice, wire.Target{Sandbox: "demo", Session: "entrypoint"})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := readTo(w.Ctx(), l, 0, uint64(len("serving\r\n"))); text != "serving\r\n" {
		t.Errorf("entrypoint printed %q, %v", text, err)
	}
	d.End()
	d = w.Start()
	w.Eventually("the session is followed without anybody asking", func() bool {
		info, err := d.Get(w.Ctx(), alice, "demo")
		return err == nil && len(info.Sessions) == 1 && info.Sessions[0].Name == "entrypoint"
	})
}

func TestReaderBehindTheReplicaReadsTheRecord(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	res := w.Run(d, "seq 1 200000")
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	if res.To-res.From < 1<<20 {
		t.Fatal("the replica may have all of it: nothing has to come from the record")
	}
	text, err := readTo(w.Ctx(), l, res.From, res.To)
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
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	w.Options.RecordQuota = 64 << 10
	d := w.Start()
	w.Create(d, "demo")
	res := w.Run(d, "head -c 12000000 /dev/zero | tr '\\0' x; echo; echo e''nd")
	if res.Ended != wire.Done {
		t.Fatalf("result = %+v", res)
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Recording(); got != "" {
		t.Errorf("Recording() = %q, want nothing", got)
	}
	off, missed, read := res.From, uint64(0), uint64(0)
	buf := make([]byte, 64<<10)
	for off < res.To {
		n, err := l.ReadAt(w.Ctx(), off, buf)
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
	text, r := w.Recorded(d, main)
	if r.Stopped() != "" || !strings.Contains(text, "\nend\r\n") {
		t.Errorf("stopped %q, and the record ends in %.60q; want nothing, and the newest bytes",
			r.Stopped(), text[max(0, len(text)-60):])
	}
}

// drawn is what a terminal shows that saw the whole record up to offset end.
func (w *world) drawn(d *daemon, t wire.Target, end uint64) string {
	w.T.Helper()
	text, r := w.Recorded(d, t)
	s := screen.New(screen.Options{Cols: r.Begin().Cols, Rows: r.Begin().Rows})
	at := uint64(0)
	for e, err := range r.Events() {
		if err != nil {
			w.T.Fatal(err)
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
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, `printf '\033[2J\033[3;5Hcorner'; seq 1 3`)
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
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
	a := w.Join(d, alice, main, attach.JoinOptions{Cols: 100, Rows: 30})
	if err := a.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the size is the driver's", func() bool {
		c, r := l.Size()
		return c == 100 && r == 30
	})
	check(l)
	if size != [2]int{100, 30} {
		t.Errorf("size = %v, want 100×30", size)
	}
	// A daemon that comes later shows the same, and follows.
	d.End()
	d = w.Start()
	if l, err = d.Sessions.Live(w.Ctx(), alice, main); err != nil {
		t.Fatal(err)
	}
	check(l)
	a = w.Join(d, alice, main, attach.JoinOptions{Cols: 100, Rows: 30})
	w.Eventually("the keyboard of the lost party is free", func() bool {
		return a.Input(w.Ctx(), []byte("echo mo''re\r")) == nil
	})
	w.Shows(l, 0, "more\r\n")
	check(l)
}

func TestWaitIsLevelTriggered(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	gen := l.Generation()
	ctx, cancel := context.WithCancel(w.Ctx())
	cancel()
	if _, err := l.Wait(ctx, gen+1); err != nil {
		t.Errorf("Wait for what has been: %v", err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if next, err := l.Wait(w.Ctx(), gen); err != nil || next == gen {
				t.Errorf("Wait = %d, %v", next, err)
			}
		})
	}
	w.Run(d, "echo x")
	wg.Wait()
	if err := d.Sessions.Close(w.Ctx(), alice, main); err != nil {
		t.Fatal(err)
	}
	for {
		if gen, err = l.Wait(w.Ctx(), gen); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n, err := l.ReadAt(w.Ctx(), l.Len(), make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("ReadAt at the end = %d, %v, want EOF", n, err)
	}
}
