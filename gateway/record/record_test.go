package record

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begun = time.UnixMilli(1_700_000_000_000)

func create(t *testing.T, o Options) (*Writer, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "main")
	if o.Begun.IsZero() {
		o.Begun = begun
	}
	w, err := Create(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w, dir
}

func reopen(t *testing.T, dir string, o Options) *Writer {
	t.Helper()
	w, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func appendAll(t *testing.T, w *Writer, off uint64, p string) {
	t.Helper()
	if err := w.Append(off, []byte(p)); err != nil {
		t.Fatalf("Append(%d, %q): %v", off, p, err)
	}
}

// content returns the readable bytes, with a ~ for each missing one.
func content(t *testing.T, r interface {
	ReadAt([]byte, uint64) (int, error)
}) string {
	t.Helper()
	var all []byte
	buf := make([]byte, 7) // small, so that reads end anywhere
	for off := uint64(0); ; {
		n, err := r.ReadAt(buf, off)
		var gap *GapError
		switch {
		case errors.Is(err, io.EOF):
			return string(all)
		case errors.As(err, &gap):
			all = append(all, bytes.Repeat([]byte("~"), int(gap.To-gap.From))...)
			off = gap.To
		case err != nil:
			t.Fatalf("ReadAt(%d): %v", off, err)
		case n == 0:
			t.Fatalf("ReadAt(%d): nothing, and no error", off)
		default:
			all = append(all, buf[:n]...)
			off += uint64(n)
		}
	}
}

func kinds(t *testing.T, dir string) string {
	t.Helper()
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var words []string
	for e, err := range r.Events() {
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, string(e.Kind))
	}
	return strings.Join(words, " ")
}

func TestBytesAreExactAndPositionIsOffset(t *testing.T) {
	w, dir := create(t, Options{})
	appendAll(t, w, 0, "hello \x00\xff")
	appendAll(t, w, 4, "o \x00\xffworld") // four bytes again
	appendAll(t, w, 0, "hello")           // all again
	if got, want := w.End(), uint64(13); got != want {
		t.Errorf("End = %d, want %d", got, want)
	}
	want := "hello \x00\xffworld"
	if got := content(t, w); got != want {
		t.Errorf("content = %q, want %q", got, want)
	}
	b, err := os.ReadFile(filepath.Join(dir, LogFile))
	if err != nil || string(b) != want {
		t.Errorf("%s = %q, %v, want %q", LogFile, b, err, want)
	}
}

func TestEventComesAfterTheBytesBeforeIt(t *testing.T) {
	w, dir := create(t, Options{})
	appendAll(t, w, 0, "abc")
	state := wire.State{Phase: wire.PhasePrompt, Basis: []wire.Basis{}}
	// The record's offset is that of the log, not that of the guest.
	for _, e := range []wire.Event{{Seq: 7, Kind: wire.EventState, Offset: 1 << 63, State: &state},
		{Seq: 7, Kind: wire.EventState}} {
		if err := w.Event(e); err != nil {
			t.Fatal(err)
		}
	}
	appendAll(t, w, 3, "def")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []wire.Event
	for e, err := range r.Events() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := []wire.Event{{Kind: Begin, Cols: wire.DefaultCols, Rows: wire.DefaultRows},
		{Kind: Output, Offset: 3},
		{Seq: 7, Kind: wire.EventState, Offset: 3, State: &state}, {Kind: Output, Offset: 6}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(wire.Event{}, "TimeUnix")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if w := reopen(t, dir, Options{}); w.Seq() != 7 || w.End() != 6 {
		t.Errorf("after opening: Seq %d, End %d, want 7, 6", w.Seq(), w.End())
	}
}

func TestOffsetsOutOfRangeAreRefused(t *testing.T) {
	w, _ := create(t, Options{})
	if err := w.Append(1<<63, []byte("x")); err == nil {
		t.Error("Append beyond any file succeeded")
	}
	if err := w.Skip(1<<63, WhyLagged); err == nil {
		t.Error("Skip beyond any file succeeded")
	}
	if w.End() != 0 {
		t.Errorf("End = %d, want 0", w.End())
	}
}

func TestQuotaStopsTheRecordAndNotTheSession(t *testing.T) {
	w, dir := create(t, Options{Quota: 1000, Whole: true})
	appendAll(t, w, 0, "abc")
	if err := w.Append(3, make([]byte, 1000)); !errors.Is(err, ErrStopped) {
		t.Fatalf("Append over the quota: %v, want ErrStopped", err)
	}
	if err := w.Append(1003, []byte("x")); !errors.Is(err, ErrStopped) {
		t.Fatalf("Append after it: %v, want ErrStopped", err)
	}
	if err := w.Event(wire.Event{Seq: 1, Kind: wire.EventCommand}); !errors.Is(err, ErrStopped) {
		t.Fatalf("Event after it: %v, want ErrStopped", err)
	}
	if got, want := w.End(), uint64(1004); got != want {
		t.Errorf("End = %d, want %d", got, want)
	}
	if err := w.Finish(wire.State{Phase: wire.PhaseDead}); err != nil {
		t.Fatal(err)
	}
	if got, want := kinds(t, dir), "begin output stopped gap finish"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Stopped() != WhyQuota || r.End() != 1004 || !r.Finished() {
		t.Errorf("stopped %q, end %d, finished %v; want quota, 1004, true", r.Stopped(), r.End(),
			r.Finished())
	}
}

func TestRecovery(t *testing.T) {
	const begin = `{"seq":0,"kind":"begin","offset":0,"time_unix_ms":1700000000000,"cols":80,"rows":24}` + "\n"
	const out3 = `{"seq":0,"kind":"output","offset":3,"time_unix_ms":1700000001000}` + "\n"
	const state4 = `{"seq":4,"kind":"state","offset":3,"time_unix_ms":1700000002000}` + "\n"
	for _, tt := range []struct {
		name, events, log string
		content, kinds    string
		seq               uint64
	}{
		{"whole", begin + out3 + state4, "abc", "abc", "begin output state", 4},
		{"torn last line", begin + out3 + state4[:20], "abc", "abc", "begin output", 0},
		{"last line without its newline", begin + out3 + state4[:len(state4)-1], "abc", "abc", "begin output", 0},
		{"bytes beyond the last event", begin + out3, "abcdef", "abcdef", "begin output output", 0},
		{"bytes and no event", begin, "abcdef", "abcdef", "begin output", 0},
		{"bytes that were lost", begin + out3, "a", "a~~", "begin output gap", 0},
		{"garbage in between", begin + "\x00\x00\x00\n" + out3, "abc", "abc", "begin output", 0},
		{"nothing", "", "abc", "abc", "begin output", 0},
		{"gap at the end", begin + out3 + `{"kind":"gap","offset":3,"missed":2,"text":"lagged"}` + "\n", "abc", "abc~~", "begin output gap", 0},
		{"gap over bytes", begin + out3 + `{"kind":"gap","offset":1,"missed":1}` + "\n", "abc", "a~c", "begin output gap", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(dir, EventsFile), []byte(tt.events),
				0o600),
				os.WriteFile(filepath.Join(dir, LogFile), []byte(tt.log), 0o600)); err != nil {
				t.Fatal(err)
			}
			w := reopen(t, dir, Options{})
			if got := content(t, w); got != tt.content {
				t.Errorf("content = %q, want %q", got, tt.content)
			}
			if w.Seq() != tt.seq {
				t.Errorf("Seq = %d, want %d", w.Seq(), tt.seq)
			}
			if got := kinds(t, dir); got != tt.kinds {
				t.Errorf("events: %s, want %s", got, tt.kinds)
			}
			appendAll(t, w, w.End(), "more")
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if got, want := content(t, reopen(t, dir, Options{})), tt.content+"more"; got != want {
				t.Errorf("content after going on = %q, want %q", got, want)
			}
		})
	}
}

func TestNewRunKeepsTheOldOnes(t *testing.T) {
	w, dir := create(t, Options{Title: "first"})
	if err := w.Finish(wire.State{Phase: wire.PhaseDead}); err != nil {
		t.Fatal(err)
	}
	for _, title := range []string{"second", "third"} {
		w, err := Create(dir, Options{Title: title, Begun: begun.Add(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := List(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[int]string)
	for _, i := range list {
		got[i.Run] = i.Session + " " + i.Title
	}
	if diff := cmp.Diff(map[int]string{1: "main first", 2: "main second", 0: "main third"},
		got); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	if list[0].Ended == nil || list[0].State == nil {
		t.Errorf("the finished one has no end: %+v", list[0])
	}
}

func TestFinishedRecordTakesNoMore(t *testing.T) {
	w, dir := create(t, Options{})
	appendAll(t, w, 0, "abc")
	for range 2 {
		if err := w.Finish(wire.State{Phase: wire.PhaseDead}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Append(3, []byte("x")); !errors.Is(err, ErrFinished) {
		t.Errorf("Append: %v, want ErrFinished", err)
	}
	if got := content(t, w); got != "abc" {
		t.Errorf("content = %q, want abc", got)
	}
	again := reopen(t, dir, Options{})
	if !again.Finished() || again.Event(wire.Event{Kind: wire.EventCommand}) == nil {
		t.Error("an opened record that was finished takes events")
	}
	if got, want := kinds(t, dir), "begin output finish"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
}

func TestIdleRecordHoldsNoFiles(t *testing.T) {
	w, _ := create(t, Options{})
	appendAll(t, w, 0, "abc")
	if got := content(t, w); got != "abc" {
		t.Fatalf("content = %q", got)
	}
	if err := w.Tidy(0); err != nil {
		t.Fatal(err)
	}
	w.wmu.Lock()
	w.mu.RLock()
	if w.log != nil || w.events != nil || w.read != nil {
		t.Error("files are open after Tidy(0)")
	}
	w.mu.RUnlock()
	w.wmu.Unlock()
	appendAll(t, w, 3, "def")
	if got := content(t, w); got != "abcdef" {
		t.Errorf("content = %q, want abcdef", got)
	}
}

// While one goroutine writes and one tidies, a reader reads what was written, in order, and never
// more.
func TestReadersFollowWhileFilesAreClosed(t *testing.T) {
	w, _ := create(t, Options{})
	var want bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			p := []byte(strings.Repeat(string(rune('a'+i%26)), i%50))
			want.Write(p)
			if err := w.Append(w.End(), p); err != nil {
				t.Error(err)
			}
		}
	}()
	tidied := make(chan struct{})
	go func() {
		defer close(tidied)
		for {
			select {
			case <-done:
				return
			default:
				if err := w.Tidy(0); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	var got []byte
	buf := make([]byte, 1000)
	for finished := false; ; {
		n, err := w.ReadAt(buf, uint64(len(got)))
		got = append(got, buf[:n]...)
		if errors.Is(err, io.EOF) {
			if finished {
				break
			}
			select {
			case <-done:
				finished = true
			default:
			}
		} else if err != nil {
			t.Fatal(err)
		}
	}
	<-tidied
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("read %d bytes that differ from the %d written", len(got), want.Len())
	}
}

func TestTimeIndex(t *testing.T) {
	dir := t.TempDir()
	events := `{"kind":"begin","time_unix_ms":1000}
{"kind":"output","offset":3,"time_unix_ms":2000}
{"kind":"output","offset":6,"time_unix_ms":4000}
`
	if err := errors.Join(os.WriteFile(filepath.Join(dir, EventsFile), []byte(events), 0o600),
		os.WriteFile(filepath.Join(dir, LogFile), []byte("abcdef"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for ms, want := range map[int64]uint64{0: 0, 1999: 0, 2000: 3, 3999: 3, 4000: 6, 9000: 6} {
		if got := r.At(time.UnixMilli(ms)); got != want {
			t.Errorf("At(%d) = %d, want %d", ms, got, want)
		}
	}
	for off, want := range map[uint64]int64{0: 2000, 2: 2000, 3: 4000, 5: 4000, 6: 4000} {
		if got := r.Time(off).UnixMilli(); got != want {
			t.Errorf("Time(%d) = %d, want %d", off, got, want)
		}
	}
}

// TestMarksAreWrittenAfterwards: Mark, or the next call, writes the time of bytes, after their
// readers have them.
func TestMarksAreWrittenAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, dir := create(t, Options{})
		lines := func() int {
			b, err := os.ReadFile(filepath.Join(dir, EventsFile))
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Count(b, []byte("\n"))
		}
		for i, mark := range []bool{true, true, true, false, false, true} {
			before := lines()
			appendAll(t, w, uint64(i), "x")
			if mark && i > 0 && lines() != before && i != 5 {
				t.Errorf("byte %d: the one before was marked first", i)
			}
			if mark {
				w.Mark()
			}
			<-time.After(time.Second)
		}
		if got, want := lines(), 1+5; got != want {
			t.Errorf("%d lines, want %d", got, want)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := kinds(t, dir), "begin"+strings.Repeat(" output", 6); got != want {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}
