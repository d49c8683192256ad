package marks

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var testNonce = Nonce{0xde, 0xad, 15: 1}

// write returns a mark with testNonce, and the given kind, counter and fields.
func write(kind string, counter int, fields string) string {
	s := fmt.Sprintf("\x1b]7337;%s;%s;%d%s", kind, testNonce, counter, fields)
	if kind == "A" {
		s += ";" + testNonce.String()
	}
	return s + "\a"
}

// cycle returns one command as bash prints it.
func cycle(n int, out string, exit int) string {
	return write("C", n, "") + out + write("D", n, fmt.Sprintf(";%d", exit)) +
		write("A", n+1, fmt.Sprintf(";%d;0;/tmp", exit)) + "$ " + write("B", n+1, "")
}

func TestParser(t *testing.T) {
	n := testNonce.String()
	first := write("A", 1, ";0;0;/") + "$ " + write("B", 1, "")
	firstMarks := []Mark{{Kind: PromptStart, Cwd: "/"}, {Kind: PromptEnd, At: 2}}
	tests := []struct {
		name, in, out string
		marks         []Mark
	}{
		{"nothing", "", "", nil},
		{"ordinary output", "a\x1b[1mb\x00\xff\r\n", "a\x1b[1mb\x00\xff\r\n", nil},
		{"a prompt", first, "$ ", firstMarks},
		{"a command", first + "ls\r\n" + cycle(1, "x\r\n", 3), "$ ls\r\nx\r\n$ ",
			append(firstMarks[:2:2],
				Mark{Kind: CommandStart, At: 6}, Mark{Kind: CommandEnd, Exit: 3, At: 9},
				Mark{Kind: PromptStart, Exit: 3, Cwd: "/tmp", At: 9}, Mark{Kind: PromptEnd, At: 11})},
		{"ST for BEL", strings.ReplaceAll(first, "\a", "\x1b\\"), "$ ", firstMarks},
		{"no command end", first + write("C", 1, "") + "x" + write("A", 2, ";4;0;/"), "$ x",
			append(firstMarks[:2:2],
				Mark{Kind: CommandStart, At: 2}, Mark{Kind: CommandEnd, Exit: 4, At: 3}, Mark{Kind: PromptStart, Exit: 4, Cwd: "/", At: 3})},
		{"no command", first + write("D", 1, ";130") + write("A", 2, ";130;0;/"), "$ ",
			append(firstMarks[:2:2],
				Mark{Kind: PromptStart, Exit: 130, Cwd: "/", At: 2})},
		{"run", first + write("C", 1, "") + write("C", 1, ";run;7") + "x", "$ x",
			append(firstMarks[:2:2],
				Mark{Kind: CommandStart, At: 2}, Mark{Kind: CommandStart, Run: true, Number: 7, At: 2})},
		{"run alone", first + write("C", 1, ";run;7"), "$ ", append(firstMarks[:2:2], Mark{Kind: CommandStart, Run: true, Number: 7, At: 2})},
		{"drawn again", first + "\r" + first, "$ \r$ ", append(firstMarks[:2:2], Mark{Kind: PromptAgain, At: 5})},
		{"continuation", first + "> " + write("E", 1, "") + "> " + write("E", 1, ""), "$ > > ",
			append(firstMarks[:2:2],
				Mark{Kind: Continuation, At: 4}, Mark{Kind: Continuation, At: 6})},
		{"stale prompt behind a new start", first + write("A", 2, ";2;0;/") +
			write("A", 1, ";0;0;/") + "$ " + write("B", 1, ""), "$ $ ", append(firstMarks[:2:2],
			Mark{Kind: PromptStart, Exit: 2, Cwd: "/", At: 2}, Mark{Kind: PromptEnd, At: 4})},
		{"a command that is not whole", first + write("C", 1, "") + write("X", 1, "") + "$ " +
			write("B", 1, ""), "$ $ ", append(firstMarks[:2:2],
			Mark{Kind: CommandStart, At: 2}, Mark{Kind: Refused, At: 2}, Mark{Kind: PromptAgain, At: 4})},
		{"command end, said twice", first + write("C", 1, "") + write("D", 1, ";3") + "%" +
			write("D", 1, ";3") + write("A", 2, ";3;0;/"), "$ %", append(firstMarks[:2:2],
			Mark{Kind: CommandStart, At: 2}, Mark{Kind: CommandEnd, Exit: 3, At: 2}, Mark{Kind: PromptStart, Exit: 3, Cwd: "/", At: 3})},
		{"pasted lines", first + write("C", 1, "") + write("C", 2, "") + write("D", 3, ";1") +
			write("A", 4, ";1;0;/"), "$ ", append(firstMarks[:2:2],
			Mark{Kind: CommandStart, At: 2}, Mark{Kind: CommandEnd, Exit: 1, At: 2}, Mark{Kind: PromptStart, Exit: 1, Cwd: "/", At: 2})},
		{"prompts whose marks readline left out", first + "^C" + write("C", 3, "") +
			write("C", 3, ";run;7") + "x" + write("D", 3, ";1") + write("A", 4, ";1;0;/"), "$ ^Cx",
			append(firstMarks[:2:2], Mark{Kind: CommandStart, At: 4},
				Mark{Kind: CommandStart, Run: true, Number: 7, At: 4},
				Mark{Kind: CommandEnd, Exit: 1, At: 5}, Mark{Kind: PromptStart, Exit: 1, Cwd: "/", At: 5})},
		{"the same before an empty line", first + "^C" + write("D", 2, ";130") +
			write("A", 3, ";130;0;/"), "$ ^C", append(firstMarks[:2:2],
			Mark{Kind: PromptStart, Exit: 130, Cwd: "/", At: 4})},
		{"cwd of any bytes", write("A", 1, ";0;0;/a;b\x1b\\\a\xff;"+n[:31]+"\r\n\r\r\nü"), "", []Mark{{Kind: PromptStart, Cwd: "/a;b\x1b\\\a\xff;" + n[:31] + "\n\r\nü"}}},
		{"no cwd", write("A", 1, ";0;0;"), "", []Mark{{Kind: PromptStart}}},
		{"ESC before", "\x1b\x1b" + first, "\x1b\x1b$ ", []Mark{{Kind: PromptStart, Cwd: "/", At: 2}, {Kind: PromptEnd, At: 4}}},
		{"begun twice", "\x1b]7337;A;" + first, "\x1b]7337;A;$ ", []Mark{{Kind: PromptStart, Cwd: "/", At: 9}, {Kind: PromptEnd, At: 11}}},
	}
	// Anything that is no mark is returned unchanged, in every phase.
	forged := map[string]string{
		"another nonce":        strings.ReplaceAll(write("A", 9, ";0;0;/"), n, NewNonce().String()),
		"nonce in capitals":    strings.ReplaceAll(write("A", 9, ";0;0;/"), n, strings.ToUpper(n)),
		"no nonce":             "\x1b]7337;A;9;0;0;/\a",
		"short nonce":          strings.ReplaceAll(write("A", 9, ";0;0;/"), n, n[:31]),
		"old prompt start":     write("A", 1, ";0;0;/"),
		"old prompt end":       write("B", 1, ""),
		"old command end":      write("D", 1, ";0"),
		"prompt end":           write("B", 2, ""),
		"continuation":         write("E", 2, ""),
		"command again":        write("C", 2, ";run;7") + write("C", 2, ";run;7"),
		"unknown kind":         write("Z", 2, ""),
		"refused":              write("X", 2, ""),
		"unknown field":        write("C", 2, ";fun"),
		"negative":             write("A", -3, ";0;0;/"),
		"status beyond":        write("D", 2, ";256"),
		"status missing":       write("D", 2, ""),
		"counter beyond":       write("A", 9, "999999999999999999;0;0;/"),
		"FinalTerm":            "\x1b]133;D;0\a",
		"VS Code":              "\x1b]633;D;0\a",
		"C1":                   strings.Replace(write("A", 9, ";0;0;/"), "\x1b]", "\u009d", 1),
		"field without end":    write("D", 2, ";"+strings.Repeat("0", 2*maxFields)),
		"cwd without end":      write("A", 9, ";0;0;/"+strings.Repeat("a", 2*maxCwd)),
		"ended by another ESC": strings.TrimSuffix(write("D", 2, ";0"), "\a") + "\x1b[m",
	}
	for name, f := range forged {
		// During the second command.
		in := first + cycle(1, "", 0) + write("C", 2, ";run;7") + f
		marks := append(firstMarks[:2:2], Mark{Kind: CommandStart, At: 2},
			Mark{Kind: CommandEnd, At: 2},
			Mark{Kind: PromptStart, Cwd: "/tmp", At: 2}, Mark{Kind: PromptEnd, At: 4},
			Mark{Kind: CommandStart, Run: true, Number: 7, At: 4})
		tests = append(tests, struct {
			name, in, out string
			marks         []Mark
		}{"forged: " + name, in, "$ $ " + f, marks})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, marks := NewParser(testNonce).Parse([]byte(test.in))
			if string(out) != test.out {
				t.Errorf("got %q, want %q", out, test.out)
			}
			if diff := cmp.Diff(test.marks, marks); diff != "" {
				t.Errorf("marks (-want +got):\n%s", diff)
			}
			everySplit(t, []byte(test.in))
		})
	}
}

// everySplit parses in byte by byte, and split in two at every position. The results must be those
// of one call.
func everySplit(t *testing.T, in []byte) {
	t.Helper()
	want, wantMarks := parse(in)
	one := make([]int, len(in))
	for i := range one {
		one[i] = i
	}
	check := func(cuts ...int) {
		got, marks := parse(in, cuts...)
		if !bytes.Equal(got, want) || !cmp.Equal(marks, wantMarks) {
			t.Fatalf("%q cut at %v: got %q %v, want %q %v", in, cuts, got, marks, want, wantMarks)
		}
	}
	check(one...)
	for i := 0; i < len(in); i += 1 + len(in)/1000 {
		check(i)
	}
}

// parse parses in, split at cuts, and flushes.
func parse(in []byte, cuts ...int) (out []byte, marks []Mark) {
	p := NewParser(testNonce)
	from := 0
	for _, cut := range append(cuts, len(in)) {
		part, m := p.Parse(in[from:cut])
		for _, m := range m {
			m.At += len(out)
			marks = append(marks, m)
		}
		out = append(out, part...)
		from = cut
	}
	for p.Pending() {
		out = append(out, p.Flush()...)
	}
	return out, marks
}

func TestFlush(t *testing.T) {
	p := NewParser(testNonce)
	if p.Pending() || p.Flush() != nil {
		t.Error("a fresh parser holds something back")
	}
	out, _ := p.Parse([]byte("a\x1b]7337;A;de"))
	if string(out) != "a" || !p.Pending() {
		t.Errorf("got %q pending %v, want a held-back rest", out, p.Pending())
	}
	if got := p.Flush(); string(got) != "\x1b]7337;A;de" || p.Pending() {
		t.Errorf("flush: got %q pending %v, want the rest", got, p.Pending())
	}

	// With the whole nonce, it must be the shell's. So the parser waits longer, but not
	// indefinitely.
	whole := write("A", 1, ";0;0;/tmp")
	p.Parse([]byte(whole[:50]))
	for range patience {
		if got := p.Flush(); got != nil || !p.Pending() {
			t.Fatalf("flush: got %q pending %v, want patience", got, p.Pending())
		}
	}
	if out, marks := p.Parse([]byte(whole[50:])); len(out) != 0 || len(marks) != 1 {
		t.Errorf("got %q %v, want the mark", out, marks)
	}
	p.Parse([]byte(whole[:50]))
	for range patience {
		p.Flush()
	}
	if got := p.Flush(); string(got) != whole[:50] {
		t.Errorf("last flush: got %q, want %q", got, whole[:50])
	}
}

// A mark is found although output has paused within it for so long that its beginning was returned,
// once or again and again, as on a machine that is busy. It is then returned whole.
func TestFlushWithinMarks(t *testing.T) {
	texts := []string{write("A", 1, ";0;0;/tmp"), write("B", 1, ""), write("C", 1, ""),
		write("D", 1, ";0")}
	in := "before\x1b[m" + texts[0] + "$ " + texts[1] + "\r\n" + texts[2] + "out\x1b" + texts[3] +
		"after"
	without := func(s string) string {
		for _, text := range texts {
			s = strings.Replace(s, text, "", 1)
		}
		return s
	}
	for _, step := range []int{1, 2, 3, 5, 7, 20, 41, 60, len(in)} {
		for first := range in {
			p := NewParser(testNonce)
			var out, kinds string
			at := 0
			for from, to := 0, first; from < len(in); from, to = to, min(to+step, len(in)) {
				part, marks := p.Parse([]byte(in[from:to]))
				for _, m := range marks {
					if at > len(out)+m.At || m.At > len(part) {
						t.Fatalf("first %d, step %d: mark at %d", first, step, m.At)
					}
					at, kinds = len(out)+m.At, kinds+fmt.Sprint(m.Kind)+" "
				}
				out += string(part)
				for p.Pending() {
					out += string(p.Flush())
				}
			}
			if _, all := parse([]byte(in)); kinds != kindsOf(all) {
				t.Fatalf("first %d, step %d: got %s, want %s", first, step, kinds, kindsOf(all))
			}
			if without(out) != without(in) {
				t.Fatalf("first %d, step %d: got %q", first, step, out)
			}
		}
	}
}

func kindsOf(marks []Mark) (all string) {
	for _, m := range marks {
		all += fmt.Sprint(m.Kind) + " "
	}
	return all
}

// TestAliasing checks that results do not share the caller's buffer.
func TestAliasing(t *testing.T) {
	for _, in := range []string{"plain", "x\x1b[my"} {
		buf := []byte(in)
		out, _ := NewParser(testNonce).Parse(buf)
		clear(buf)
		if string(out) != in {
			t.Errorf("got %q, want %q", out, in)
		}
	}
}

func TestKeep(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		" . /dev/fd/61\r\n\x1b[?2004l\r":   "\x1b[?2004l",
		"\x1b[K\x1b[?25l\x1b[31mx\x1b[?1h": "\x1b[?25l\x1b[?1h",
		"\x1b[?1;2004h\x1b[?u\x1b[?12":     "\x1b[?1;2004h",
		"x\x1b[?1l\x1b>\x1b(B\x1b=\x1b[":   "\x1b[?1l\x1b>\x1b=",
	} {
		if got := string(Keep([]byte(in))); got != want {
			t.Errorf("Keep(%q): got %q, want %q", in, got, want)
		}
	}
}

func TestFor(t *testing.T) {
	for _, path := range []string{"/bin/bash", "/nix/store/bin/bash", "/bin/sh", "/nosuch/sh",
		"/bin/dash", "/bin/ash", "/usr/bin/bash", "/bin/zsh", "/usr/bin/fish"} {
		in, ok := For(path, testNonce, Options{})
		if !ok || in.Args[0] != path || !in.CommandFD || len(in.Script) == 0 ||
			len(in.Script) > 60<<10 {
			t.Errorf("For(%q): got %v %v, %d bytes of script", path, ok, in.Args, len(in.Script))
		}
		if !bytes.Contains(in.Script, []byte(testNonce.String())) ||
			strings.Contains(strings.Join(append(in.Args, in.Env...), " "), testNonce.String()) {
			t.Errorf("For(%q): the nonce belongs into the script and nowhere else", path)
		}
		if i := bytes.IndexByte(in.Script, '@'); i >= 0 &&
			bytes.Contains(in.Script, []byte("@NONCE@")) {
			t.Errorf("For(%q): something is not filled in", path)
		}
	}
	for _, path := range []string{"", "/bin/ksh", "/usr/bin/python3", "/bin/busybox"} {
		if in, ok := For(path, testNonce, Options{}); ok {
			t.Errorf("For(%q): got %v, want none", path, in.Args)
		}
	}
}

// A shell that runs already reads its script only in its own process, and keeps its traps.
func TestForRunningShell(t *testing.T) {
	opt := Options{File: "/dev/shm/d/f", PID: 12}
	if _, ok := For("/usr/bin/fish", NewNonce(), opt); ok {
		t.Error("fish has another syntax")
	}
	for _, path := range []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh"} {
		in, ok := For(path, NewNonce(), opt)
		if !ok {
			t.Fatal(path)
		}
		if got := string(in.Enter()); got != " test -r '/dev/shm/d/f' && . '/dev/shm/d/f'\n" {
			t.Errorf("%s: types %q", path, got)
		}
		script := string(in.Script)
		if !strings.HasPrefix(script, "[ $$ = 12 ] || return\n") {
			t.Errorf("%s: begins %.60q", path, script)
		}
		for _, no := range []string{"exec 9<&-", "trap - INT", "trap : INT", "@READ@", "@EVAL@",
			"@ENTERED@", "@STARTUP@", "/dev/fd/"} {
			if strings.Contains(script, no) {
				t.Errorf("%s: has %s", path, no)
			}
		}
	}
}

// TestGenerated checks that the embedded scripts are up to date.
func TestGenerated(t *testing.T) {
	for name, got := range map[string]string{"bash.sh": bashScript, "posix.sh": posixScript,
		"zsh.sh": zshScript, "fish.fish": fishScript} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimLeft(line, " \t"); line != "\n" && line[0] != '#' {
				if text, _, comment := strings.Cut(line, " # "); comment {
					line = strings.TrimRight(text, " ") + "\n"
				}
				want.WriteString(line)
			}
		}
		if got != want.String() {
			t.Errorf("%s has changed: run go generate", name)
		}
	}
}

func FuzzParser(f *testing.F) {
	f.Add([]byte(write("A", 1, ";0;0;/")+"$ "+write("B", 1, "")+cycle(1, "x", 1)), uint64(1))
	f.Add([]byte("\x1b]7337;A;\x1b\x1b]"), uint64(2))
	f.Add([]byte(write("E", 1, "")+write("C", 1, ";run;7")), uint64(3))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		// The fuzzer cannot guess a nonce, so N stands for it.
		in = bytes.ReplaceAll(in, []byte("N"), []byte(testNonce.String()))
		want, wantMarks := parse(in)
		r := rand.New(rand.NewPCG(seed, 0))
		var cuts []int
		for i := range in {
			if r.IntN(3) == 0 {
				cuts = append(cuts, i)
			}
		}
		got, marks := parse(in, cuts...)
		if !bytes.Equal(got, want) || !cmp.Equal(marks, wantMarks) {
			t.Fatalf("cut at %v: got %q %v, want %q %v", cuts, got, marks, want, wantMarks)
		}
		at := 0
		for _, m := range marks {
			if m.At < at || m.At > len(got) {
				t.Fatalf("mark out of place: %v of %d bytes", marks, len(got))
			}
			at = m.At
		}
		// Only marks may be missing, and every mark contains the nonce.
		if !bytes.Contains(in, []byte(testNonce.String())) && !bytes.Equal(got, in) {
			t.Fatalf("got %q, want %q", got, in)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, chunk := range map[string]string{
		"plain":   strings.Repeat("The quick brown fox jumps over the lazy dog.\r\n", 700),
		"colours": strings.Repeat("\x1b[1;31mfox\x1b[0m jumps over the lazy dog, twice.\r\n", 700),
		"forged":  strings.Repeat("\x1b]7337;D;00000000000000000000000000000000;1;0\a", 700),
	} {
		b.Run(name, func(b *testing.B) {
			p := NewParser(testNonce)
			in := []byte(chunk)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				p.Parse(in)
			}
		})
	}
	b.Run("cycle", func(b *testing.B) {
		p := NewParser(testNonce)
		p.Parse([]byte(write("A", 1, ";0;0;/") + write("B", 1, "")))
		n := 1
		b.ReportAllocs()
		for b.Loop() {
			p.Parse([]byte(cycle(n, "x", 0)))
			n++
		}
	})
}
