package expect

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExpectTakesTheShortestMatch(t *testing.T) {
	w := NewWindow(0)
	w.Write(0, []byte("login: alice\r\nPassword: \r\nWelcome"))
	for _, step := range []struct {
		pattern, text string
		from, to      uint64
	}{
		{"login: ", "login: ", 0, 7},
		{"Password: ", "alice\r\nPassword: ", 7, 24},
		{"Wel", "\r\nWel", 24, 29},
	} {
		got, err := w.Expect(t.Context(), Text(step.pattern))
		if err != nil {
			t.Fatal(err)
		}
		if want := (Match{Text: step.text, From: step.from, To: step.to}); got != want {
			t.Errorf("Expect(%q) = %+v, want %+v", step.pattern, got, want)
		}
	}
}

func TestExpectWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(0)
		found := make(chan Match)
		go func() {
			m, err := w.Expect(context.Background(), regexp.MustCompile(`[0-9]+ files`))
			if err != nil {
				t.Error(err)
			}
			found <- m
		}()
		w.Write(0, []byte("copied 1"))
		synctest.Wait()
		w.Write(8, []byte("2 fi"))
		synctest.Wait()
		w.Write(12, []byte("les\r\n"))
		if got := (<-found).Text; got != "copied 12 files" {
			t.Errorf("matched %q", got)
		}
	})
}

func TestExpectEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := w.Expect(ctx, Text("x")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("timeout: got %v", err)
		}
		if _, err := w.Expect(context.Background()); err == nil {
			t.Error("no pattern: no error")
		}
		w.Close(io.ErrUnexpectedEOF)
		if _, err := w.Expect(context.Background(), Text("x")); !errors.Is(
			err,
			io.ErrUnexpectedEOF,
		) {
			t.Errorf("closed: got %v", err)
		}
	})
}

func TestWindowIsBounded(t *testing.T) {
	w := NewWindow(16)
	w.Write(0, []byte(strings.Repeat("a", 100)+"end"))
	got, err := w.Expect(t.Context(), Text("end"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Match{Text: strings.Repeat("a", 13) + "end", From: 87, To: 103,
		Missed: 87}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWriteGapsAndRepeats(t *testing.T) {
	w := NewWindow(0)
	w.Write(10, []byte("abc"))
	w.Write(10, []byte("abcdef")) // a resumed stream repeats what we have
	w.Write(11, []byte("b"))
	got, err := w.Expect(t.Context(), Text("f"))
	if err != nil || got.Text != "abcdef" || got.From != 10 {
		t.Fatalf("got %+v, %v", got, err)
	}
	w.Write(16, []byte("pass"))
	w.Write(30, []byte("word"))
	w.Write(34, []byte("!"))
	got, err = w.Expect(t.Context(), Text("!"))
	if err != nil || got.Text != "word!" || got.Missed != 14 {
		t.Errorf("across a gap: got %+v, %v", got, err)
	}
}

func TestExpectSaysWhichPattern(t *testing.T) {
	w := NewWindow(0)
	w.Write(0, []byte("a b c"))
	for _, want := range []Match{{Index: 1, Text: "a b", To: 3},
		{Index: 0, Text: " c", From: 3, To: 5}} {
		got, err := w.Expect(t.Context(), Text("c"), Text("b"))
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func FuzzExpect(f *testing.F) {
	f.Add([]byte("hello world"), []byte("o w"), 3)
	f.Fuzz(func(t *testing.T, stream, pattern []byte, chunk int) {
		if len(pattern) == 0 || chunk <= 0 || !bytes.Contains(stream, pattern) {
			return
		}
		w := NewWindow(len(stream) + 1)
		for at := 0; at < len(stream); at += chunk {
			w.Write(uint64(at), stream[at:min(at+chunk, len(stream))])
			if chunk > len(stream)-at {
				break
			}
		}
		got, err := w.Expect(context.Background(), Text(pattern))
		if err != nil {
			t.Fatal(err)
		}
		if end := bytes.Index(stream, pattern) + len(pattern); int(got.To) < end ||
			int(got.To) > end+3 {
			t.Errorf("match ends at %d, want %d", got.To, end)
		}
	})
}
