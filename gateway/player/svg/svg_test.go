package svg

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// open returns a reader of a record with these events, and log as its bytes.
func open(t testing.TB, log string, events ...wire.Event) *record.Reader {
	t.Helper()
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, e := range events {
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, record.EventsFile), lines.Bytes(), 0o600),
		os.WriteFile(filepath.Join(dir, record.LogFile), []byte(log), 0o600)); err != nil {
		t.Fatal(err)
	}
	r, err := record.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// begin is the first event of a record.
func begin(title string) wire.Event {
	return wire.Event{Kind: record.Begin, TimeUnix: 1000, Cols: 80, Rows: 5, Text: title}
}

func output(ms int64, offset int) wire.Event {
	return wire.Event{Kind: record.Output, TimeUnix: 1000 + ms, Offset: uint64(offset)}
}

func state(ms int64, offset int, s wire.State) wire.Event {
	return wire.Event{Kind: wire.EventState, TimeUnix: 1000 + ms, Offset: uint64(offset), State: &s}
}

func keyboard(ms int64, offset int, who string) wire.Event {
	return wire.Event{Kind: wire.EventKeyboard, TimeUnix: 1000 + ms, Offset: uint64(offset),
		Keyboard: who}
}

// draw returns the SVG of a record; it is well-formed and has nothing that a browser would run or
// fetch.
func draw(t testing.TB, r *record.Reader, o Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(t.Context(), &b, r, o); err != nil {
		t.Fatal(err)
	}
	harmless(t, b.String())
	return b.String()
}

// allowed are the elements and attributes that an SVG of ours has.
var (
	allowedElements   = strings.Fields("svg title style defs rect g text use")
	allowedAttributes = strings.Fields("xmlns space width height viewBox role id class fill " +
		"opacity rx x y transform href textLength lengthAdjust text-anchor")
)

func harmless(t testing.TB, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	d.Strict = true
	style := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			style = token.Name.Local == "style"
			if !slices.Contains(allowedElements, token.Name.Local) {
				t.Errorf("element %s", token.Name.Local)
			}
			for _, a := range token.Attr {
				if !slices.Contains(allowedAttributes, a.Name.Local) {
					t.Errorf("attribute %s", a.Name.Local)
				}
				if a.Name.Local == "href" && !strings.HasPrefix(a.Value, "#") {
					t.Errorf("link to %s", a.Value)
				}
			}
		case xml.EndElement:
			style = false
		case xml.CharData:
			if style && active.Match(token) {
				t.Errorf("style sheet %s", token)
			}
		case xml.Comment, xml.ProcInst, xml.Directive:
			t.Errorf("%T %s", token, token)
		}
	}
}

var (
	active = regexp.MustCompile(`(?i)url|import|<|\\`) // in a style sheet
	step   = regexp.MustCompile(`(?m)^([0-9.]+)%\{transform:translateY\(-?[0-9]+px\)\}$`)
	texts  = regexp.MustCompile(`<text[^>]*>([^<]*)</text>`)
	round  = regexp.MustCompile(`animation:film ([0-9.]+)s`)
)

// steps returns the times at which frames begin, in seconds.
func steps(t *testing.T, svg string) (at []float64) {
	t.Helper()
	m := round.FindStringSubmatch(svg)
	if m == nil {
		t.Fatalf("no animation in %s", svg)
	}
	long, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range step.FindAllStringSubmatch(svg, -1) {
		percent, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, percent*long/100)
	}
	return at
}

func said(svg string) (all []string) {
	for _, m := range texts.FindAllStringSubmatch(svg, -1) {
		all = append(all, m[1])
	}
	return all
}

func TestWriteShowsWhoTypesAndWhatWaits(t *testing.T) {
	log := "$ install\r\nContinue? [Y/n] y\r\n$ "
	r := open(t, log, begin("web~main"),
		keyboard(0, 0, "agent:alice"), output(500, 11),
		output(1000, 27),
		state(1000, 27, wire.State{Phase: wire.PhaseWaiting, Prompt: "Continue? [Y/n] "}),
		keyboard(2500, 27, "person:bob"),
		output(3000, 30), state(3000, 30, wire.State{Phase: wire.PhaseRunning}),
		output(3500, len(log)))
	got := draw(t, r, Options{})
	for _, want := range []string{
		"web~main   agent:alice typing", "web~main   person:bob typing",
		"waiting: Continue? [Y/n] ",
		"$ install", "Continue? [Y/n]", "Continue? [Y/n] y",
	} {
		if !slices.Contains(said(got), want) {
			t.Errorf("no text %q in %q", want, said(got))
		}
	}
	want := []float64{0, .5, 1, 2.5, 3, 3.5}
	if at := steps(t, got); fmt.Sprintf("%.1f", at) != fmt.Sprintf("%.1f", want) {
		t.Errorf("frames at %.1f, want %.1f", at, want)
	}
	if n := strings.Count(got, ">$ install<"); n != 1 {
		t.Errorf("the row is drawn %d times, want once", n)
	}
}

func TestWriteCapsPausesAndDividesBySpeed(t *testing.T) {
	r := open(t, "abc", begin("web~main"), output(0, 1), output(60_000, 2), output(61_000, 3))
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{}, "[0.0 2.0 3.0]"},
		{Options{Idle: 10 * time.Second}, "[0.0 10.0 11.0]"},
		{Options{Idle: 10 * time.Second, Speed: 2}, "[0.0 5.0 5.5]"},
	} {
		if got := fmt.Sprintf("%.1f", steps(t, draw(t, r, tt.o))); got != tt.want {
			t.Errorf("%+v: frames at %s, want %s", tt.o, got, tt.want)
		}
	}
}

func TestWriteJoinsFramesThatAreTooShort(t *testing.T) {
	events := []wire.Event{begin("web~main")}
	for i := range 100 {
		events = append(events, output(int64(20*i), i+1))
	}
	r := open(t, strings.Repeat("x", 100), events...)
	if n := len(steps(t, draw(t, r, Options{}))); n < 15 || n > 21 {
		t.Errorf("%d frames of two seconds, want one in 100 ms", n)
	}
}

func TestWriteLeavesOutWhatNoFrameUses(t *testing.T) {
	small, wide := begin("web~main"), begin("web~main")
	wide.Cols, wide.Rows = 200, 50
	size := regexp.MustCompile(`viewBox="[^"]*"`)
	long := strings.Repeat("x", 70) + "\r\n\n\n\n\n\n\n"
	for _, log := range []string{"$ ls", long, "\x1b[44m      \x1b[m"} {
		want := size.FindString(draw(t, open(t, log, wide, output(0, len(log))), Options{}))
		small.Cols, small.Rows = 75, 10
		got := size.FindString(draw(t, open(t, log, small, output(0, len(log))), Options{}))
		if got != want {
			t.Errorf("%q: %s in a small terminal, %s in a large one", log, got, want)
		}
	}
}

func TestWritePart(t *testing.T) {
	r := open(t, "one\r\ntwo\r\nend\r\n", begin("web~main"),
		output(1000, 5), output(2000, 10), output(3000, 15))
	got := draw(t, r, Options{From: 5, To: 10})
	if want := "[0.0 1.0]"; fmt.Sprintf("%.1f", steps(t, got)) != want {
		t.Errorf("frames at %.1f, want %s", steps(t, got), want)
	}
	shows := func(row string) bool { return slices.Contains(said(got), row) }
	if !shows("one") || !shows("two") || shows("end") {
		t.Errorf("the part shows %q", said(got))
	}
}

func TestWriteRejectsWhatIsTooLong(t *testing.T) {
	events := []wire.Event{begin("web~main")}
	for i := range maxFrames + 10 {
		events = append(events, output(int64(200*i), i+1))
	}
	r := open(t, strings.Repeat("x", maxFrames+10), events...)
	var b bytes.Buffer
	if err := Write(t.Context(), &b, r, Options{}); !errors.Is(err, ErrTooLong) || b.Len() > 0 {
		t.Errorf("error %v after %d bytes, want %v and none", err, b.Len(), ErrTooLong)
	}
}

func TestWriteHidesPrivateModeAndConcealedText(t *testing.T) {
	log := "a\x1b[8msecret\x1b[mb"
	r := open(t, log, begin("web~main"), output(0, len(log)),
		wire.Event{Kind: record.PrivateBegin, Offset: uint64(len(log)), TimeUnix: 2000},
		output(5000, len(log)))
	got := draw(t, r, Options{})
	if strings.Contains(got, "secret") || !strings.Contains(got, "private: not") {
		t.Errorf("shown: %q", said(got))
	}
}

// hostile is text that would be markup, style or script where it is not escaped.
const hostile = `</text></g></svg><script>alert(1)</script>]]><!--"'&#x0;&lt;` +
	`<image href="http://x/">}</style>`

func TestWriteEscapesHostileRecords(t *testing.T) {
	for _, log := range []string{
		hostile,
		"\x1b]0;" + hostile + "\a",
		"\x1b[38;2;1;2;3;48;5;200;4:3m" + hostile,
		"a\u202eb\u2066c\x00\x01\ufffe\uffff\xff\xfe",
		strings.Repeat("x\u0301\u0302", 50), "\u4e16\u754c\U0001f469\u200d\U0001f680",
		"\x1b[?1049h\x1b[31;1mred\x1b[?1049l",
	} {
		prompt := wire.State{Phase: wire.PhaseWaiting, Prompt: log}
		r := open(t, log, begin(hostile), keyboard(0, 0, log), output(0, len(log)),
			state(10, len(log), prompt))
		draw(t, r, Options{})
	}
	r := open(t, "<b>", begin("web~main"), output(0, 3))
	if got := said(draw(t, r, Options{})); !slices.Contains(got, "&lt;b&gt;") {
		t.Errorf("texts %q, want the escaped one", got)
	}
}

func FuzzWrite(f *testing.F) {
	f.Add([]byte(hostile), hostile)
	f.Add([]byte("\x1b[7;31;48;5;17m \x1b[2J\x1b[3;3H<\x1b[8m&"), "web~main")
	f.Fuzz(func(t *testing.T, log []byte, said string) {
		r := open(t, string(log), begin(said), keyboard(0, 0, said), output(0, len(log)/2),
			state(200, len(log)/2, wire.State{Phase: wire.PhaseWaiting, Prompt: said}),
			output(400, len(log)))
		draw(t, r, Options{})
	})
}

func TestColors(t *testing.T) {
	for _, tt := range []struct {
		style  screen.Style
		fg, bg string
	}{
		{screen.Style{}, foreground, ""},
		{screen.Style{Fg: screen.Indexed(1), Bg: screen.Indexed(4)}, basic[1], basic[4]},
		{screen.Style{Fg: screen.Indexed(16)}, "#000000", ""},
		{screen.Style{Fg: screen.Indexed(231)}, "#ffffff", ""},
		{screen.Style{Fg: screen.Indexed(208)}, "#ff8700", ""},
		{screen.Style{Fg: screen.Indexed(255)}, "#eeeeee", ""},
		{screen.Style{Bg: screen.RGB(1, 2, 255)}, foreground, "#0102ff"},
		{screen.Style{Attr: screen.Inverse}, background, foreground},
		{screen.Style{Attr: screen.Inverse, Fg: screen.Indexed(1)}, background, basic[1]},
	} {
		if fg, bg := colors(tt.style); fg != tt.fg || bg != tt.bg {
			t.Errorf("%+v: %s on %s, want %s on %s", tt.style, fg, bg, tt.fg, tt.bg)
		}
	}
	st := screen.Style{
		Attr:      screen.Bold | screen.Faint | screen.Italic | screen.Strike,
		Underline: screen.CurlyUnderline,
	}
	want := "fill:" + foreground + ";font-weight:700;opacity:.6;font-style:italic;" +
		"text-decoration:underline line-through"
	if got := css(st); got != want {
		t.Errorf("css %s, want %s", got, want)
	}
}

// The recording in the README is ours, small enough for a page, and shows the whole scene.
func TestDemoRecording(t *testing.T) {
	demo, err := os.ReadFile("../../../docs/images/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	harmless(t, string(demo))
	if len(demo) > 200<<10 {
		t.Errorf("%d KiB, want at most 200", len(demo)>>10)
	}
	scene := []string{"agent:alice typing", "person:alice typing", "waiting: Do you want"}
	for _, want := range scene {
		if !bytes.Contains(demo, []byte(want)) {
			t.Errorf("the recording does not show %q", want)
		}
	}
}
