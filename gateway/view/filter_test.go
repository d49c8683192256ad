package view

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// filtered returns the terminal's bytes for p, written in two pieces.
func filtered(t testing.TB, p []byte, split int) []byte {
	t.Helper()
	var out bytes.Buffer
	f := NewFilter(&out)
	for _, piece := range [][]byte{p[:split], p[split:]} {
		if n, err := f.Write(piece); n != len(piece) || err != nil {
			t.Fatalf("wrote %d of %d, %v", n, len(piece), err)
		}
	}
	return out.Bytes()
}

// What a Renderer writes passes unchanged.
func TestFilterPassesWhatIsDrawn(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := screen.New(screen.Options{Cols: 30, Rows: 8, Scrollback: 100})
		v := NewRenderer(20+r.IntN(20), 5+r.IntN(8))
		all := bytes.Clone(v.Enter())
		for step := range 10 {
			s.Write([]byte(stream(r, 20, 30, 8)))
			all = append(all, v.Draw(Frame{Screen: s, Status: "status", Driver: step%2 == 0})...)
		}
		all = append(all, v.Leave()...)
		if got := filtered(t, all, r.IntN(len(all))); !bytes.Equal(got, all) {
			t.Fatalf("seed %d: %q became %q", seed, all, got)
		}
	}
}

func TestFilterDropsWhatIsNotListed(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b]52;c;aGk=\x07b":                     "a52;c;aGk=b",
		"\x1b]0;title\x1b\\":                       "0;title",
		"\x1b[5n\x1b[c\x1b[>q\x1b[6n":              "",
		"\x1b[21t\x1b[?1001h\x1b[4h":               "",
		"\x1bc\x1b(0\x1bP+q\x1b\\":                 "0+q",
		"\u009b31m\x9b31m\u009d0;x":                "31m\ufffd31m0;x",
		"\u202e\u2028\x07\x00\b":                   "<U+202E>",
		"\x1b[3\x1b[1mx":                           "\x1b[1mx",
		"\x1b\x1b[1m\x1b[1\r":                      "\x1b[1m\r",
		"\x1b[" + strings.Repeat("1;", 100) + "Hx": strings.Repeat("1;", 100)[1:] + "Hx",
		"\x1b[H\x1b[2J\x1b[3;1H\x1b[Kx":            "\x1b[H\x1b[2J\x1b[3;1H\x1b[Kx",
	} {
		for split := range len(in) + 1 {
			got := string(filtered(t, []byte(in), split))
			if strings.Contains(in, "1;1;1;") {
				if strings.Contains(got, "\x1b") {
					t.Errorf("split at %d: %q", split, got)
				}
				continue
			}
			if got != want {
				t.Errorf("%q, split at %d: got %q, want %q", in, split, got, want)
			}
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add([]byte("a\x1b]52;c;aGk=\x07\x1b[?1049h\x1b[2;3Hb\u202e\xff\x1b[1"), 5)
	f.Add([]byte("\x1b[;5H\x1b[;0H0"), 9)
	f.Fuzz(func(t *testing.T, p []byte, split int) {
		split = min(max(split, 0), len(p))
		got := filtered(t, p, split)
		if whole := filtered(t, p, len(p)); len(p) < maxSequence && !bytes.Equal(got, whole) {
			t.Errorf("split at %d: %q, else %q", split, got, whole)
		}
		if err := allowed(bytes.ReplaceAll(bytes.ReplaceAll(got, []byte("\x1b[2J"), nil),
			[]byte("\x1b[J"), nil)); err != nil {
			t.Error(err)
		}
	})
}

// Close restores everything that a server may have changed, also if it set no mode, or reset the
// one it had set.
func TestFilterGivesBack(t *testing.T) {
	for name, tt := range map[string]struct{ sent, want string }{
		"hidden text":             {"\x1b[8m", "\x1b[m"},
		"region":                  {"\x1b[1;2r", "\x1b[m\x1b7\x1b[r\x1b8\x1b[m"},
		"region, after a program": {"\x1b[?1049h\x1b[1;2r\x1b[?1049l", "\x1b[m\x1b7\x1b[r\x1b8\x1b[m"},
		"keypad":                  {"\x1b=", "\x1b[m\x1b>"},
		"cursor":                  {"\x1b[3 q", "\x1b[m\x1b[0 q"},
		"modes":                   {"\x1b[?1049h\x1b[?25l\x1b[?1003h\x1b[?1006h\x1b[?1006l\x1b[?7h", "\x1b[m\x1b[?1003l\x1b[?1049l\x1b[?25h"},
		"nothing":                 {"text\r\n", ""},
	} {
		var out bytes.Buffer
		f := NewFilter(&out)
		if _, err := f.Write([]byte(tt.sent)); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		if err := f.Close(); err != nil || out.String() != tt.want {
			t.Errorf("%s: got %q, %v; want %q", name, out.String(), err, tt.want)
		}
	}
}
