package view

import (
	"fmt"
	"strings"
	"testing"
)

var kindNames = map[KeyKind]string{
	Take: "take", Give: "give", Detach: "detach", Help: "help", Unknown: "unknown",
}

// story is events in one line: input quoted, neighbouring input joined.
func story(events []KeyEvent) string {
	var parts []string
	var input []byte
	flush := func() {
		if input != nil {
			parts = append(parts, fmt.Sprintf("%q", input))
			input = nil
		}
	}
	for _, e := range events {
		if e.Kind == Input {
			input = append(input, e.Bytes...)
			continue
		}
		flush()
		parts = append(parts, kindNames[e.Kind])
	}
	flush()
	return strings.Join(parts, " ")
}

func TestKeys(t *testing.T) {
	tests := []struct {
		name, in, want string
		focus          bool
	}{
		{name: "text", in: "ls -l\r", want: `"ls -l\r"`},
		{name: "every byte", in: "\x00\x01\x7f\x80\xff\xc3\xa9", want: `"\x00\x01\x7f\x80\xffé"`},
		{name: "take", in: "a\x1dtb", want: `"a" take "b"`},
		{name: "give", in: "\x1dg", want: `give`},
		{name: "detach", in: "x\x1dd", want: `"x" detach`},
		{name: "help", in: "\x1d?", want: `help`},
		{name: "twice sends it on", in: "\x1d\x1d", want: `"\x1d"`},
		{name: "unknown key", in: "\x1dxy", want: `unknown "y"`},
		{name: "arrow after the chord", in: "\x1d\x1b[Ay", want: `unknown "y"`},
		{name: "arrow keys", in: "\x1b[A\x1bOB\x1b[1;5C", want: `"\x1b[A\x1bOB\x1b[1;5C"`},
		{name: "escape key", in: "\x1b", want: `"\x1b"`},
		{name: "alt keys", in: "\x1bf\x1b]\x1b\x1b[A", want: `"\x1bf\x1b]\x1b\x1b[A"`},
		{name: "device attributes", in: "a\x1b[?62;22cb\x1b[>1;277;0cc\x1b[=cd", want: `"abcd"`},
		{name: "cursor position", in: "a\x1b[24;80Rb\x1b[?3;4Rc", want: `"abc"`},
		{name: "modified F3", in: "\x1b[1;5R\x1b[1;16R", want: `"\x1b[1;5R\x1b[1;16R"`},
		{name: "status, modes, window", in: "\x1b[0n\x1b[?2026;2$y\x1b[8;24;80ta", want: `"a"`},
		{name: "focus not asked for", in: "\x1b[Ia\x1b[O", want: `"a"`},
		{name: "focus asked for", in: "\x1b[Ia\x1b[O", focus: true, want: `"\x1b[Ia\x1b[O"`},
		{name: "colours", in: "a\x1b]11;rgb:0000/0000/0000\x1b\\b\x1b]10;rgb:0/0/0\ac", want: `"abc"`},
		{name: "dcs answers", in: "a\x1bP>|XTerm(370)\x1b\\b\x1bP1$r0m\x1b\\c", want: `"abc"`},
		{name: "mouse", in: "\x1b[<0;3;4M\x1b[<0;3;4m", want: `"\x1b[<0;3;4M\x1b[<0;3;4m"`},
		{name: "paste", in: "\x1b[200~a\x1dtb\x1b[?62c\x1b[201~\x1dt", want: `"\x1b[200~a\x1dtb\x1b[?62c\x1b[201~" take`},
		{name: "broken sequence", in: "\x1b[1\x1dt", want: `"\x1b[1" take`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := Keys{Focus: tt.focus}
			if got := story(k.Feed([]byte(tt.in))); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// What a key means does not depend on how the network cut it, but for strings that look like Alt and a key when cut in the middle.
func TestKeysSplit(t *testing.T) {
	for _, in := range []string{
		"a\x1dtb", "\x1d\x1d", "\x1b[A", "a\x1b[?62;22cb", "\x1b[24;80R.", "\x1b[200~\x1dt\x1b[201~\x1dg", "\x1b[Ix",
	} {
		var whole Keys
		want := story(whole.Feed([]byte(in)))
		for cut := 1; cut < len(in); cut++ {
			var k Keys
			got := story(append(k.Feed([]byte(in[:cut])), k.Feed([]byte(in[cut:]))...))
			// A lone ESC has gone to the program already: it may be the key.
			if in[cut-1] == 0x1b {
				got = strings.Replace(got, `\x1b`, "", 1)
				want := strings.Replace(want, `\x1b`, "", 1)
				if strings.Trim(got, `" `) != strings.Trim(want, `" `) {
					t.Errorf("%q cut at %d: got %s, want %s", in, cut, got, want)
				}
				continue
			}
			if got != want {
				t.Errorf("%q cut at %d: got %s, want %s", in, cut, got, want)
			}
		}
	}
}

func TestKeysFlush(t *testing.T) {
	var k Keys
	if got := story(k.Feed([]byte("\x1b["))); got != "" {
		t.Errorf("an unfinished sequence went on: %s", got)
	}
	if got, want := story(k.Flush()), `"\x1b["`; got != want {
		t.Errorf("Flush = %s, want %s", got, want)
	}
	if got, want := story(k.Feed([]byte("A"))), `"A"`; got != want {
		t.Errorf("after Flush got %s, want %s", got, want)
	}
}

func TestKeysOtherChord(t *testing.T) {
	k := Keys{Chord: 0x02}
	if got, want := story(k.Feed([]byte("\x1dt\x02t"))), `"\x1dt" take`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	k.Feed([]byte{0x02})
	if !k.Pending() {
		t.Error("the chord is not pending after its first key")
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("a\x1dt\x1b[?62c\x1b[200~x\x1b[201~"), 3)
	f.Add([]byte("\x1b]11;rgb\x1b\\"), 1)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		var k Keys
		cut = min(max(cut, 0), len(in))
		sent := 0
		for _, p := range [][]byte{in[:cut], in[cut:]} {
			for _, e := range k.Feed(p) {
				if (e.Kind == Input) != (len(e.Bytes) > 0) {
					t.Fatalf("event %v with %d bytes", e.Kind, len(e.Bytes))
				}
				sent += len(e.Bytes)
			}
		}
		if sent += len(k.held); sent > len(in) {
			t.Fatalf("%d bytes came out of %d", sent, len(in))
		}
		if len(k.held) > maxHeld {
			t.Fatalf("%d bytes held", len(k.held))
		}
	})
}
