package view

import (
	"fmt"
	"strings"
	"testing"
)

var kindNames = map[KeyKind]string{
	Take: "take", Give: "give", Detach: "detach", Help: "help", Unknown: "unknown",
	Pan: "pan", Follow: "follow",
}

// story is events in one line: input quoted, neighbouring input joined.
func story(events []KeyEvent) string {
	var parts []string
	var input []byte
	var paste uint64
	flush := func() {
		if input != nil {
			parts = append(parts, fmt.Sprintf("%q", input))
			input = nil
		}
	}
	for _, e := range events {
		if e.Kind == Input {
			if e.Paste != paste {
				flush()
				if paste = e.Paste; paste != 0 {
					parts = append(parts, fmt.Sprintf("paste %d", paste))
				}
			}
			input = append(input, e.Bytes...)
			continue
		}
		flush()
		parts = append(parts, kindNames[e.Kind])
		if e.Kind == Pan {
			parts = append(parts, fmt.Sprintf("%d,%d", e.X, e.Y))
		}
	}
	flush()
	return strings.Join(parts, " ")
}

func TestKeys(t *testing.T) {
	tests := []struct {
		name, in, want string
		focus          bool
		brackets       bool
	}{
		{name: "text", in: "ls -l\r", want: `"ls -l\r"`},
		{name: "every byte", in: "\x00\x01\x7f\x80\xff\xc3\xa9", want: `"\x00\x01\x7f\x80\xffé"`},
		{name: "take", in: "a\x1dtb", want: `"a" take "b"`},
		{name: "give", in: "\x1dg", want: `give`},
		{name: "detach", in: "x\x1dd", want: `"x" detach`},
		{name: "help", in: "\x1d?", want: `help`},
		{name: "twice sends it on", in: "\x1d\x1d", want: `"\x1d"`},
		{name: "unknown key", in: "\x1dxy", want: `unknown "y"`},
		{name: "arrow after the prefix", in: "\x1d\x1b[Ay", want: `pan 0,-1 "y"`},
		{name: "arrows of other modes after the prefix",
			in: "\x1d\x1bOD\x1d\x1b[1;1C\x1d\x1bOB", want: `pan -1,0 pan 1,0 pan 0,1`},
		{name: "another key after the prefix", in: "\x1d\x1b[Hy\x1d\x1bOPz",
			want: `unknown "y" unknown "z"`},
		{name: "follow", in: "\x1dc", want: `follow`},
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
		{name: "paste", in: "x\x1b[200~a\x1dtb\x1b[?62c\x1b[201~y\x1dt", want: `"x" paste 1 "a\x1dtb\x1b[?62c" "y" take`},
		{name: "paste with brackets", in: "\x1b[200~a\x1dtb\x1b[201~\x1dt", brackets: true, want: `paste 1 "\x1b[200~a\x1dtb\x1b[201~" take`},
		{name: "two pastes", in: "\x1b[200~a\x1b[201~\x1b[200~b\x1b[201~", want: `paste 1 "a" paste 2 "b"`},
		{name: "empty paste", in: "\x1b[200~\x1b[201~", want: ``},
		{name: "brackets in a paste", in: "\x1b[200~\x1b[200~\x1b[201~\x1b[201~", want: `paste 1 "\x1b[200~" "\x1b[201~"`},
		{name: "prefix by modifyOtherKeys", in: "\x1b[27;5;93~t\x1b[27;5;93~\x1b[27;5;93~", want: `take "\x1d"`},
		{name: "prefix by kitty", in: "\x1b[93;5ut\x1b[93;5:1ud\x1b[93;6u", want: `take detach "\x1b[93;6u"`},
		{name: "broken sequence", in: "\x1b[1\x1dt", want: `"\x1b[1" take`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := Keys{Focus: tt.focus, Brackets: tt.brackets}
			if got := story(k.Feed([]byte(tt.in))); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// What a key means does not depend on how the network cut it, but for strings that look like Alt
// and a key when cut in the middle.
func TestKeysSplit(t *testing.T) {
	for _, in := range []string{
		"a\x1dtb", "\x1d\x1d", "\x1b[A", "a\x1b[?62;22cb", "\x1b[24;80R.",
		"\x1b[200~\x1dt\x1b[201~\x1dg", "\x1b[Ix", "\x1d\x1b[A", "\x1b[93;5ut",
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
	k := Keys{Prefix: 0x02}
	if got, want := story(k.Feed([]byte("\x1dt\x02t"))), `"\x1dt" take`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	k.Feed([]byte{0x02})
	if !k.Pending() {
		t.Error("the prefix is not pending after its first key")
	}
}

// Who takes the keyboard in the middle of a paste gets nothing of its rest: its pieces say that
// they belong together.
func TestKeysPasteInPieces(t *testing.T) {
	var k Keys
	var got []string
	for i, piece := range []string{"ls\x1b[200~rm -rf x", "\ry", "\r\x1b[20", "1~pwd"} {
		k.Brackets = i > 0 // asked for too late for this one
		for _, e := range k.Feed([]byte(piece)) {
			got = append(got, fmt.Sprintf("%d %q", e.Paste, e.Bytes))
		}
		if want := i < 3; k.Pasting() != want {
			t.Errorf("after %q Pasting = %t", piece, !want)
		}
	}
	if got, want := strings.Join(got, ", "),
		`0 "ls", 1 "rm -rf x", 1 "\ry", 1 "\r", 0 "pwd"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The end of a paste is known wherever it is cut, however long its second half takes, and nothing
// of it is typed where the program wants no brackets.
func TestKeysPasteEndInTwo(t *testing.T) {
	const end = "\x1b[201~"
	for cut := 1; cut < len(end); cut++ {
		for _, brackets := range []bool{false, true} {
			k := Keys{Brackets: brackets}
			var got string
			for _, piece := range []string{"\x1b[200~a", "b\x1b[20c\x1b" + end[:cut],
				end[cut:] + "c"} {
				for _, e := range append(k.Feed([]byte(piece)), k.Flush()...) {
					got += fmt.Sprintf("%d:%s", e.Paste, e.Bytes)
				}
			}
			want := "1:a1:b\x1b[20c\x1b0:c"
			if brackets {
				want = "1:\x1b[200~a1:b\x1b[20c\x1b1:\x1b[201~0:c"
			}
			if got != want || k.Pasting() {
				t.Errorf("cut at %d, brackets %t: %q, want %q; pasting %t", cut, brackets, got,
					want, k.Pasting())
			}
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for name, want := range map[string]byte{"ctrl-]": DefaultPrefix, "^]": DefaultPrefix,
		"C-]": DefaultPrefix, "Ctrl-A": 1, "ctrl+z": 26, "^\\": 0x1c, "^^": 0x1e, "ctrl-_": 0x1f,
		"none": NoPrefix} {
		if got, err := ParsePrefix(name); got != want || err != nil {
			t.Errorf("ParsePrefix(%q) = %#x, %v; want %#x", name, got, err, want)
		}
	}
	for _, name := range []string{"", "]", "ctrl-", "ctrl-ab", "^[", "ctrl-m", "^I", "^J", "^h",
		"^@", "^?", "ctrl-1", "alt-a", "^é", "none!"} {
		if got, err := ParsePrefix(name); err == nil || !strings.Contains(err.Error(), "; use ") {
			t.Errorf("ParsePrefix(%q) = %#x, %v; want an error that names valid keys", name, got,
				err)
		}
	}
	for prefix, want := range map[byte]string{0: "^]", DefaultPrefix: "^]", 1: "^A", 0x1c: "^\\",
		NoPrefix: ""} {
		if got := PrefixName(prefix); got != want {
			t.Errorf("PrefixName(%#x) = %q, want %q", prefix, got, want)
		}
	}
	k := Keys{Prefix: NoPrefix}
	if got, want := story(k.Feed([]byte("\x1dt\xff\x1b[93;5u"))),
		`"\x1dt\xff\x1b[93;5u"`; got != want {
		t.Errorf("without a prefix got %s, want %s", got, want)
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

func FuzzParseChord(f *testing.F) {
	for _, name := range []string{"ctrl-]", "^A", "none", "", "C-\x80"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		prefix, err := ParsePrefix(name)
		switch {
		case err != nil || prefix == NoPrefix:
			return
		case prefix == 0 || prefix >= 0x20:
			t.Fatalf("%q is prefix %#x, no control character", name, prefix)
		}
		if again, err := ParsePrefix(PrefixName(prefix)); again != prefix || err != nil {
			t.Fatalf("%q is %#x, its name %q is %#x, %v", name, prefix, PrefixName(prefix), again,
				err)
		}
	})
}
