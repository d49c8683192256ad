package player

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// model is a Screen that draws nothing.
type model struct {
	*screen.Screen
	wrote int
}

func (m *model) Write(p []byte) (int, error) {
	m.wrote += len(p)
	return m.Screen.Write(p)
}
func (m *model) Status(string) {}
func (m *model) Hold()         {}
func (m *model) Show() error   { return nil }
func (m *model) Close() error  { return nil }
func (m *model) Jump(snapshot []byte, cols, rows int) (err error) {
	s := screen.New(screen.Options{Cols: cols, Rows: rows})
	if snapshot != nil {
		if s, err = screen.Restore(snapshot, 0); err != nil {
			return err
		}
	}
	m.Screen = s
	return nil
}

func (m *model) shown() string {
	var b strings.Builder
	cols, rows := m.Size()
	fmt.Fprintln(&b, cols, rows, m.Cursor(), m.Modes(), m.Title())
	for y := range rows {
		fmt.Fprintln(&b, m.Wrapped(y), m.Line(y))
	}
	return b.String()
}

// noise returns output that leaves a screen in all kinds of states.
func noise(r *rand.Rand, n int) []byte {
	var b []byte
	for len(b) < n {
		switch r.IntN(12) {
		case 0:
			b = fmt.Appendf(b, "\x1b[%d;%dH", r.IntN(30), r.IntN(90))
		case 1:
			b = fmt.Appendf(b, "\x1b[%d;%dm", 30+r.IntN(8), r.IntN(8))
		case 2:
			b = fmt.Appendf(b, "\x1b[%d%c", r.IntN(5), "JKLMPXST@ABCD"[r.IntN(13)])
		case 3:
			b = append(b, []string{"\x1b[?1049h", "\x1b[?1049l", "\x1b7", "\x1b8", "\x1b[?6h",
				"\x1b[?6l", "\x1b[?7l", "\x1b[?7h", "\x1b(0", "\x1b(B", "\x1b[4h",
				"\x1b[4l"}[r.IntN(12)]...)
		case 4:
			b = fmt.Appendf(b, "\x1b[%d;%dr", r.IntN(20), r.IntN(30))
		case 5:
			b = append(b, "e\u0301世界👍🏽"...)
		case 6:
			b = fmt.Appendf(b, "\x1b]2;title %d\a", r.IntN(100))
		case 7:
			b = append(b, byte(r.IntN(256)))
		default:
			for range r.IntN(200) {
				b = append(b, byte('a'+r.IntN(26)))
			}
			b = append(b, "\r\n"...)
		}
	}
	return b[:n]
}

// noisy makes a record of size bytes of noise, with changes of size and gaps.
func noisy(t testing.TB, seed uint64, size int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "main")
	w, err := record.Create(dir, record.Options{Cols: 80, Rows: 24, Quota: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 3))
	chunk := noise(r, 1<<20)
	for int(w.End()) < size {
		from := r.IntN(len(chunk) / 2)
		if err := w.Append(w.End(), chunk[from:from+1+r.IntN(16<<10)]); err != nil {
			t.Fatal(err)
		}
		switch r.IntN(40) {
		case 0:
			err = w.Event(wire.Event{Kind: wire.EventResize, Cols: 20 + r.IntN(100),
				Rows: 5 + r.IntN(40)})
		case 1:
			err = w.Skip(w.End()+uint64(r.IntN(5000)), record.WhyLagged)
		case 2:
			err = w.Event(wire.Event{Kind: record.Private, By: "person:bob"})
			_ = w.Append(w.End(), []byte("secret"))
			if err == nil {
				err = w.Event(wire.Event{Kind: wire.EventResize, Cols: 20 + r.IntN(100),
					Rows: 5 + r.IntN(40)})
			}
			if err == nil {
				err = w.EndPrivate()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openPlayer(t testing.TB, dir string) (*Player, *model) {
	t.Helper()
	r, err := record.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	m := &model{Screen: screen.New(screen.Options{Cols: r.Begin().Cols, Rows: r.Begin().Rows})}
	return New(r, m, Options{}), m
}

// A place shows the same whether it was reached by playing or by jumps in any order, with keyframes
// that are present, missing or damaged.
func TestSeekShowsWhatPlayingShows(t *testing.T) {
	const every, size = 128 << 10, 1 << 20
	for seed := range uint64(4) {
		dir := noisy(t, seed, size)
		played, m := openPlayer(t, dir)
		r := rand.New(rand.NewPCG(seed, 4))
		places := []uint64{0, 1, every - 1, every, every + 1, played.r.End()}
		for _, s := range played.r.Sizes() {
			places = append(places, s.Offset)
		}
		places = places[:min(len(places), 20)]
		for range 20 {
			places = append(places, uint64(r.Int64N(int64(played.r.End()))))
		}
		slices.Sort(places)
		want := make(map[uint64]string)
		for _, at := range places {
			if err := played.feed(t.Context(), at, nil); err != nil {
				t.Fatal(err)
			}
			want[at] = m.shown()
		}
		for round := range 3 {
			p, m := openPlayer(t, dir)
			p.every = every
			file := filepath.Join(dir, record.KeyframesFile)
			switch round {
			case 1:
				b, err := os.ReadFile(file)
				if err != nil || len(b) == 0 {
					t.Fatalf("jumps left no keyframes: %d bytes, %v", len(b), err)
				}
			case 2:
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				b[len(b)-10] ^= 1
				if err := os.WriteFile(file, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, i := range r.Perm(len(places)) {
				at := places[i]
				m.wrote = 0
				if err := p.Seek(t.Context(), at); err != nil {
					t.Fatal(err)
				}
				if got := m.shown(); got != want[at] {
					t.Fatalf("seed %d, round %d, at %d: shown by a jump:\n%s\nby playing:\n%s",
						seed, round, at, got, want[at])
				}
				if round == 1 && m.wrote > every {
					t.Errorf("a jump to %d showed %d bytes, more than lie between keyframes", at,
						m.wrote)
				}
			}
		}
	}
}

// hour makes the record of an hour of work: output every 15 ms, the resolution of records, of size
// bytes in total, and a command every ten seconds. Every piece prints its time on the last line of
// the screen.
func hour(t testing.TB, size int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "main")
	w, err := record.Create(dir, record.Options{Begun: hourBegan, Quota: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(dir, record.LogFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	events, err := os.OpenFile(filepath.Join(dir, record.EventsFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	const pieces = int(time.Hour / hourStep)
	out, told := bufio.NewWriterSize(log, 1<<20), bufio.NewWriterSize(events, 1<<20)
	text := noise(rand.New(rand.NewPCG(1, 1)), 1<<20)
	at := 0
	for i := range pieces {
		now := hourBegan.Add(time.Duration(i+1) * hourStep).UnixMilli()
		// A reset, so that the line is there whatever came before.
		last := fmt.Sprintf("\x1bc\x1b[24;1H%d\x1b[H", i+1)
		n := max(0, (i+1)*(size/pieces)-at-len(last))
		from := i * 997 % (len(text) - n)
		fmt.Fprint(out, string(text[from:from+n]), last)
		at += n + len(last)
		if i%666 == 0 {
			fmt.Fprintf(
				told, `{"seq":0,"kind":"begun","offset":%d,"time_unix_ms":%d,"by":"person:bob"}`+
					"\n", at-len(last), now)
		}
		fmt.Fprintf(told, `{"seq":0,"kind":"output","offset":%d,"time_unix_ms":%d}`+"\n", at, now)
		if i%666 == 665 {
			fmt.Fprintf(told, `{"seq":0,"kind":"over","offset":%d,"time_unix_ms":%d,"exit_code":0}`+
				"\n", at, now)
		}
	}
	if err := errors.Join(out.Flush(), told.Flush()); err != nil {
		t.Fatal(err)
	}
	return dir
}

var hourBegan = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const hourStep = 15 * time.Millisecond

// A jump in a long record shows the target, reads only what follows the last keyframe, and finds
// commands.
func TestSeekInAnHour(t *testing.T) {
	dir := hour(t, 0) // only the times
	p, m := openPlayer(t, dir)
	p.every = 512 << 10
	if n, d := len(p.commands), p.r.Last().Sub(hourBegan); n != 361 || d != time.Hour {
		t.Fatalf("%d commands in %v", n, d)
	}
	if err := p.Seek(t.Context(), p.r.End()); err != nil { // as a daemon does while it records
		t.Fatal(err)
	}
	for _, from := range []string{"59m59s", "30m", "12m30s", "45m0.015s", "15ms", "1h"} {
		m.wrote = 0
		d, _ := time.ParseDuration(from)
		if err := p.do(t.Context(), Order{Key: "seek", At: d}); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.TrimSpace(m.LineText(23)),
			fmt.Sprint(int(d/hourStep)); got != want {
			t.Errorf("at %s the screen is of piece %s, want %s", from, got, want)
		}
		if m.wrote > int(p.every) {
			t.Errorf("a jump to %s showed %d bytes", from, m.wrote)
		}
		if got := p.now().Sub(hourBegan); got != d {
			t.Errorf("at %s the clock says %v", from, got)
		}
	}
	if c := p.commands[180]; time.UnixMilli(c.Started).Sub(hourBegan) != (180*666+1)*hourStep {
		t.Errorf("command 181: %+v", c)
	}
}

// BenchmarkSeek jumps in the record of an hour, of 240 MB and a quarter of a million events.
func BenchmarkSeek(b *testing.B) {
	dir := hour(b, 240_000_000)
	p, _ := openPlayer(b, dir)
	if err := p.Seek(context.Background(), p.r.End()); err != nil { // makes the keyframes
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(2, 2))
	b.Run("jump", func(b *testing.B) {
		for b.Loop() {
			p, _ := openPlayer(b, dir)
			if err := p.Seek(context.Background(), uint64(r.Int64N(int64(p.r.End())))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first", func(b *testing.B) { // of a record without keyframes, to its end
		for b.Loop() {
			if err := os.Remove(filepath.Join(dir, record.KeyframesFile)); err != nil {
				b.Fatal(err)
			}
			p, _ := openPlayer(b, dir)
			if err := p.Seek(context.Background(), p.r.End()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			openPlayer(b, dir)
		}
	})
}

// printed is output of a record, and when it came.
type printed struct {
	after time.Duration
	text  string
}

// made returns the directory of a record of output.
func made(t *testing.T, all ...printed) (dir string) {
	t.Helper()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	dir = filepath.Join(t.TempDir(), "main")
	w, err := record.Create(dir, record.Options{Begun: began, Quota: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var log, events strings.Builder
	for _, p := range all {
		log.WriteString(p.text)
		fmt.Fprintf(&events, `{"seq":0,"kind":"output","offset":%d,"time_unix_ms":%d}`+"\n",
			log.Len(), began.Add(p.after).UnixMilli())
	}
	for name, text := range map[string]string{record.LogFile: log.String(),
		record.EventsFile: events.String()} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A jump into a pause stays at its target; keys count from what is shown, and playing continues
// with the next output.
func TestSeekIntoPause(t *testing.T) {
	p, _ := openPlayer(t, made(t, printed{time.Second, "one"}, printed{time.Minute, "two"}))
	for _, c := range []struct {
		name  string
		order Order
		at    time.Duration
		shown uint64
	}{
		{"a jump into the pause", Order{Key: "seek", At: 30 * time.Second}, 30 * time.Second, 3},
		{"forth", Order{Key: "."}, time.Minute, 6},
		{"back into the pause", Order{Key: "seek", At: 20 * time.Second}, 20 * time.Second, 3},
		{"back", Order{Key: ","}, 0, 0},
		{"beyond the end", Order{Key: "seek", At: time.Hour}, time.Minute, 6},
	} {
		if err := p.do(t.Context(), c.order); err != nil {
			t.Fatal(err)
		}
		if at := p.place().At; at != c.at || p.at != c.shown {
			t.Errorf("%s: at %v with %d bytes shown, want %v with %d", c.name, at, p.at, c.at,
				c.shown)
		}
	}
}
