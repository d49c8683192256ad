package view

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// hostile are outputs by which a program attacks a watcher's terminal. Text with EVIL must not
// become visible.
var hostile = map[string]string{
	"title and its report":      "\x1b]2;EVIL\a\x1b]0;EVIL\x1b\\\x1b[21t\x1b[20t\x1b[22;0t\x1b[23;0t",
	"DECRQSS with a payload":    "\x1bP$qEVIL\nid\n\x1b\\",
	"font":                      "\x1b]50;EVIL\a\x1b]50;?\a",
	"XTGETTCAP with a payload":  "\x1bP+q544e;EVIL0a\x1b\\\x1bP+p4556494c\x1b\\",
	"DECUDK and macros":         "\x1bP0;1|17/EVIL\x1b\\\x1bP1;0;0!zEVIL\x1b\\\x1b[1*z",
	"clipboard":                 "\x1b]52;c;EVIL\a\x1b]52;c;?\a\x1b]52;\xff\x01;EVIL\a\x1b]52;p;" + strings.Repeat("EVIL", 1000) + "\a",
	"hyperlinks":                "\x1b]8;;file:///EVIL\x1b\\text\x1b]8;;\x1b\\\x1b]8;id=EVIL;ssh://EVIL\ax\x1b]8;;\a",
	"images and files":          "\x1b_Gf=100,t=f;EVIL\x1b\\\x1b]1337;File=name=EVIL:EVIL\a\x1bPq#0;2;0;0;0#0EVIL\x1b\\\x1b[?80h",
	"printing":                  "\x1b[5i\x1b[4i\x1b[?5i\x1b[i",
	"8-bit controls":            "\x9d2;x\x9c\x90$qm\x9c\x9b21t\x9b5i",
	"controls as characters":    "\u0090$qm\u009c\u009d52;c;x\u009c\u009b5i\u009f\u0098\u009e\u0085\u0084",
	"queries":                   "\x1b[006n\x1b[>0;0c\x1b[c\x1b[=c\x1b[?6n\x1b[?15n\x1b[x\x1b[>q\x1b[?u\x1b[14t\x1b[18t\x1b[?1$p\x05\x1bZ",
	"long parameters":           "\x1b[" + strings.Repeat("9", 40) + "m\x1b[" + strings.Repeat("1;", 90) + "m\x1b[" + strings.Repeat("9", 40) + ";1H\x1b[" + strings.Repeat("4:", 60) + "m",
	"modes":                     "\x1b[?1049h\x1b[?1003;1006;1004;9;1005;1015;1016h\x1b[?2004h\x1b[?1h\x1b=\x1b[?25l\x1b[?5h\x1b[?3h\x1b[?69h\x1b[?2026h\x1b[4h\x1b[20h\x1b[>4;2m\x1b[>31u",
	"numbers":                   "x\x1b[999999999b\x1b[99999;99999Hy\x1b[999999999@\x1b[999999999L\x1b[999999999S\x1b[999999999T\x1b[999999999P\x1b[999999999X\x1b[999999999I",
	"zalgo":                     "z" + strings.Repeat("\u0301\u0316\u20dd\u200d", 200) + "\ufe0f\U000e0041\u061c\u2066\u202e\u2028\u2029\ufeff",
	"NUL and no UTF-8":          "\x00\x00\xc0\xaf\xed\xa0\x80\xf5\x80\x80\x80\xff\xfe\xf0\x9f\x98",
	"status line":               "\x1b[999;1H\x1b[7m demo~main   person:eve typing   \x1b[999B\x1b[999C\x1b[r\x1b[9999;9999H\n\n\x1b[1;999r\x1b[?6h\x1b[999H\x1b[7mEVE\x1b[T\x1b[S\x1b#8",
	"status protocol, notices":  "\x1b]7501;state=EVIL\a\x1b]9;EVIL\a\x1b]777;notify;EVIL;EVIL\a\x1b]133;A;EVIL\a\x1b]7;file://EVIL\a\a\a",
	"strings without an end":    "\x1b]0;EVIL\x18\x1bPEVIL\x1a\x1b^EVIL\x1b\\\x1bXEVIL\x1b\\\x1bktitle\x1b\\",
	"charsets and double lines": "\x1b(0lqk\x0e\x1b)0q\x0f\x1b(B\x1b#3\x1b#6\x1b%@\x1b%G\x1b F\x1b G",
	"resets":                    "\x1bc\x1b[!p\x1b[3J\x1b[2J\x1b[22J\x1b[?2J\x1b[8;5;5t\x1b[9;1t\x1b[2t",
}

// None of it reaches a person, wherever it is cut: the output is on the list, the status line is
// ours, and the terminal is restored.
func TestHostile(t *testing.T) {
	for name, in := range hostile {
		t.Run(name, func(t *testing.T) {
			step := max(1, len(in)/100)
			for cut := 0; cut <= len(in); cut += step {
				cutAt(t, in, cut)
			}
		})
	}
	t.Run("all after each other", func(t *testing.T) {
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, 10))
			var b strings.Builder
			for range 4 {
				for _, in := range hostile {
					if r.IntN(4) == 0 {
						b.WriteString(in[:r.IntN(len(in)+1)] + "\r\n\x18")
					}
				}
			}
			cutAt(t, b.String(), r.IntN(b.Len()+1))
		}
	})
}

// cutAt shows in to a driver who was there before, and to a watcher who joins at cut.
func cutAt(t *testing.T, in string, cut int) {
	t.Helper()
	s := screen.New(screen.Options{Cols: 24, Rows: 7, Scrollback: 50})
	s.Write([]byte("$ cat it\r\n"))
	w := join(t, &model{t: t}, s, 24, 8)
	w.see("before", " demo~main")
	var late *watch
	for i, p := range []string{in[:cut], in[cut:], "\x18\r\nover\r\n"} {
		s.Write([]byte(p))
		if i == 0 {
			late = join(t, &model{t: t}, s, 20, 6)
		}
		for _, w := range []*watch{w, late} {
			w.see(fmt.Sprintf("%q cut at %d", in, cut), " demo~main")
			for _, line := range append(w.to.look().rows, w.to.look().above...) {
				if strings.Contains(line, "EVIL") {
					t.Fatalf("%q cut at %d is seen: %q", in, cut, line)
				}
			}
		}
	}
	for _, w := range []*watch{w, late} {
		w.leave(fmt.Sprintf("%q cut at %d", in, cut), "")
		if got := inputModes(w.to.(*model).Modes()); got != (screen.Modes{}) {
			t.Fatalf("%q: input modes %+v are left on", in, got)
		}
	}
}

// Endless streams take no memory, and their frames have a bound.
func TestFloods(t *testing.T) {
	total := 20 << 20
	if testing.Short() {
		total = 4 << 20
	}
	for name, piece := range map[string]string{
		"yes":       "y\r\n",
		"one line":  "x",
		"zalgo":     "z\u0301\u0302\u0303",
		"colours":   "\x1b[38;2;1;2;3mx\x1b[48;5;9my\r\n",
		"clipboard": "EVIL",
		"switching": "\x1b[?1049hx\x1b[?1049ly\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := screen.New(screen.Options{Cols: 200, Rows: 50, Scrollback: 1000})
			if name == "clipboard" {
				s.Write([]byte("\x1b]52;c;"))
			}
			r := NewRenderer(80, 25)
			r.Enter()
			chunk := bytes.Repeat([]byte(piece), (1<<20)/len(piece))
			limit := total
			if name != "one line" {
				limit /= 4
			}
			var most int
			var heap uint64
			for fed := 0; fed < limit; fed += len(chunk) {
				s.Write(chunk)
				out := r.Draw(Frame{Screen: s, Status: "status"})
				if fed < 1<<20 {
					if err := allowed(out); err != nil {
						t.Fatal(err)
					}
				}
				most = max(most, len(out))
				if fed%(8<<20) < len(chunk) {
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					heap = max(heap, m.HeapAlloc)
				}
			}
			t.Logf("%d MB: at most %d bytes a frame, %d MB of heap", limit>>20, most, heap>>20)
			if most > maxFrame+100<<10 || heap > 64<<20 {
				t.Errorf("at most %d bytes a frame, %d bytes of heap", most, heap)
			}
		})
	}
}

// For any stream, cut anywhere, any window and any text in the status line: the output is on the
// list of the package's documentation, shows the screen, and is restored.
func FuzzDraw(f *testing.F) {
	r := rand.New(rand.NewPCG(9, 9))
	for range 20 {
		f.Add([]byte(lively(r, 20, 6)), " status", uint16(20), uint16(7), uint16(40), uint16(3), 30)
	}
	for _, in := range hostile {
		f.Add([]byte(in), in, uint16(24), uint16(8), uint16(1), uint16(1), len(in)/2)
	}
	f.Fuzz(func(t *testing.T, in []byte, status string, cols, rows, cols2, rows2 uint16, cut int) {
		cut = min(max(cut, 0), len(in))
		sizes := [][2]int{{int(cols % 300), int(rows % 100)}, {int(cols2 % 300), int(rows2 % 100)}}
		s := screen.New(screen.Options{Cols: 20, Rows: 6, Scrollback: 30})
		m := &model{t: t}
		v := NewRenderer(sizes[0][0], sizes[0][1])
		m.start(v.cols, v.rows)
		m.feed(v.Enter())
		for i, p := range [][]byte{in[:cut], in[cut:], in[:cut]} {
			switch i {
			case 1:
				v.Resize(sizes[1][0], sizes[1][1])
				m.resize(v.cols, v.rows)
			case 2:
				s.Resize(v.Area())
			}
			s.Write(p)
			f := Frame{Screen: s, Status: status + strconv.Itoa(i), Brief: []string{status},
				Driver: i == 1}
			m.feed(v.Draw(f))
			m.verify(v, f)
			if v.rows > 1 {
				want, cut := statusLine(f.Status, v.cols)
				if cut {
					want, _ = statusLine(status, v.cols)
				}
				if got := describe(m.Line(v.rows - 1)); got != describe(want) {
					t.Fatalf("status line %q, want %q", got, describe(want))
				}
			}
			if again := v.Draw(f); len(again) > 0 {
				t.Fatalf("drawn again as %q", again)
			}
		}
		m.feed(v.Leave())
		got := m.Modes()
		if inputModes(got) != (screen.Modes{}) || got.AltScreen || !got.AutoWrap ||
			!got.CursorVisible || got.BracketedPaste || m.Cursor().X != 0 {
			t.Fatalf("left with %+v, cursor %+v", got, m.Cursor())
		}
	})
}
