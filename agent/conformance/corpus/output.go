package corpus

import (
	"encoding/hex"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// Checksums of long outputs: seq 1 20000 and seq 1 1500000, with \n and, as on a terminal, with
// \r\n; and 1,000,000 bytes of Python's random.randbytes after seed(4711).
const (
	seq20k      = "f6351f5ead9a700e34275480b3856ea738122a7c57bdeb744a631251c069587a"
	seq20kTTY   = "2a3211286c9175af88866db6522eb223e92f5546fc5946ad9a18c130a2c66aa6"
	seq1500k    = "9ab1c76a034ecb9d31c317ffc180849e0d61ab92d80897b3ffa1ce93d8890505"
	seq1500kTTY = "2f7a0bd9ab84089a957ace3ae8a480a70a5b3ff5de70b171f137c32b453a8a28"
	random      = "28aea359c82d038e76764ed8c987e4c72e1d7d5e1e49cb121022beca1ccdd103"
	randomTTY   = "78d8c18664a4db510121f5cddc0f4b2ffdbe8a870f25091378347bff647928f4"
	// a\xff\xfeb\xc3(\xe2\x82 z
	brokenText = "577bcd1af72c3984969217cf21c21f7b2c6165760f80b51f256f6076cbc8e46b"
	withNUL    = "59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce98920a7138" // a\0b
)

// randomBytes is a program that prints a million bytes. Some are terminal queries. The program
// disables echo and reads the terminal's answers until none arrives for half a second. It polls,
// because a blocking read would count as a question.
const randomBytes = `import fcntl, os, random, sys, termios, time
random.seed(4711)
if sys.stdout.isatty():
    mode = termios.tcgetattr(1)
    quiet = mode[:]
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(1, termios.TCSADRAIN, quiet)
sys.stdout.buffer.write(random.randbytes(1000000))
sys.stdout.flush()
if sys.stdout.isatty():
    idle = 0
    while idle < 10:
        time.sleep(0.05)
        idle += 1
        if any(fcntl.ioctl(1, termios.FIONREAD, b"1234")):
            os.read(1, 4096)
            idle = 0
    termios.tcsetattr(1, termios.TCSAFLUSH, mode)
`

// output has cases about the output of programs: complete and exact, as bytes and as text.
func output() []conformance.Case {
	bytes := func(exit int, sum string) conformance.Want {
		return with(done(exit),
			func(w *conformance.Want) { w.Bytes = &conformance.Text{SHA256: sum} })
	}
	without := func(command string, exit int, sum string) conformance.Step {
		return conformance.Step{Do: conformance.Exec, Text: command,
			Want: conformance.Want{ExitCode: code(exit), Output: &conformance.Text{SHA256: sum}}}
	}
	often := func(s conformance.Step, n int) conformance.Step {
		s.Times = n
		return s
	}
	exact := func(name, about, command, printed, seen string) conformance.Case {
		return conformance.Case{Name: name, About: about,
			Steps: steps(runs(command, with(done(0), func(w *conformance.Want) {
				w.Bytes, w.Output = text(printed), text(seen)
			})))}
	}
	python := func(c conformance.Case) conformance.Case {
		c.Needs = []string{"python3"}
		return c
	}
	bytewise := func(s string) string {
		return `python3 -c 'import sys, time
for b in ` + "bytes.fromhex(\"" + hexOf(s) + "\")" + `:
    sys.stdout.buffer.write(bytes([b])); sys.stdout.flush(); time.sleep(0.012)'`
	}
	const scripts = "ä – 日本 🙂 👩‍👩‍👧 é n̈ ☝🏽 z"
	return []conformance.Case{
		{Name: "ten-megabytes", About: "10 MB through the terminal, byte for byte", Steps: steps(
			conformance.Step{Do: conformance.Run, Text: "seq 1 1500000", TimeoutMS: 60_000,
				Want: bytes(0, seq1500kTTY)}, run("true"))},
		{Name: "ten-megabytes-exec", About: "10 MB without a terminal",
			Steps: steps(without("seq 1 1500000", 0, seq1500k))},
		{Name: "repeated", About: "500 repetitions: never a byte too few, never another status",
			Steps: steps(
				often(runs("(seq 1 20000; exit 7)", bytes(7, seq20kTTY)), 500))},
		{Name: "repeated-exec", About: "500 repetitions without a terminal",
			Steps: steps(often(without("seq 1 20000; exit 7", 7, seq20k), 500))},
		{Name: "random", About: "1 MB of any bytes, by whose end the terminal still works",
			Needs: []string{"python3"}, Files: []conformance.File{
				{Path: "/tmp/conformance-random.py", Text: randomBytes}}, Steps: steps(
				runs("python3 /tmp/conformance-random.py", bytes(0, randomTTY)), run("reset"),
				runs("echo one", contains("one\n"))), Cleanup: "rm -f /tmp/conformance-random.py"},
		{Name: "random-exec", About: "the same without a terminal", Needs: []string{"python3"},
			Files: []conformance.File{
				{Path: "/tmp/conformance-random.py", Text: randomBytes}}, Steps: steps(
				without("python3 /tmp/conformance-random.py", 0, random)),
			Cleanup: "rm -f /tmp/conformance-random.py"},
		exact("utf8", "characters of two, three and four bytes, joined and combining ones",
			"echo '"+scripts+"'", scripts+"\r\n", scripts+"\n"),
		python(exact("utf8-split", "the same, split between any two bytes", bytewise(scripts),
			scripts, scripts)),
		python(exact("escape-split", "an escape sequence, split between any two bytes",
			bytewise("\x1b[1;31mred\x1b[0m\x1b]0;title\x07."),
			"\x1b[1;31mred\x1b[0m\x1b]0;title\x07.", "red.")),
		{Name: "utf8-broken", About: "bytes that are no UTF-8: as they are, and replaced where a " +
			"person reads them", Steps: steps(
			runs(`printf 'a\xff\xfeb\xc3(\xe2\x82 z'`,
				with(bytes(0, brokenText), func(w *conformance.Want) {
					w.Output = &conformance.Text{Matches: "^a\uFFFD+b\uFFFD\\(\uFFFD+ z$"}
				})))},
		{Name: "nul", About: "NUL is kept in the bytes, and hidden from a reader",
			Steps: steps(runs(`printf 'a\0b'`, with(bytes(0, withNUL), func(w *conformance.Want) {
				w.Output = text("ab")
			})))},
		exact(
			"progress",
			"a line that is redrawn is one line to a reader, and all of it in the bytes",
			`printf 'get 10%%\rget 50%%\rget 100%%\n'`, "get 10%\rget 50%\rget 100%\r\n",
			"get 100%\n"),
		exact("backspace", "so is one that is typed over", `printf 'abd\bc\n'`, "abd\bc\r\n",
			"abc\n"),
		exact("colours", "colours are in the bytes and not in the text",
			`printf '\033[31mred\033[0m\n'`, "\x1b[31mred\x1b[0m\r\n", "red\n"),
		exact("tabs", "tabs stay tabs or become blanks, in the text as in the bytes",
			`printf 'a\nb\n'`, "a\r\nb\r\n", "a\nb\n"),
		exact("last-byte", "the last byte of a program that ends at once", "printf %s last", "last",
			"last"),
		exact("empty", "no output is no output", "true", "", ""),
		exact("blank-lines", "empty lines are kept", `printf '\n\na\n\n'`, "\r\n\r\na\r\n\r\n",
			"\n\na\n\n"),
		{Name: "echo", About: "the command is not in its output",
			Steps: steps(runs("echo one", prints("one\n")))},
		{Name: "echo-long", About: "nor is one that wraps over many lines of the terminal",
			Start: conformance.Start{Cols: 40, Rows: 10}, Steps: steps(
				runs(": "+repeat(300, "word ")+"; echo one", prints("one\n")),
				runs("echo "+repeat(300, "x")+" >/dev/null; echo two", prints("two\n")))},
		{Name: "echo-lines", About: "nor one of many lines",
			Steps: steps(runs(repeat(60, ": a line of the command\n")+"echo one",
				prints("one\n")))},
		{Name: "prompt", About: "nor is the prompt", Steps: steps(run(`PS1='THE-PROMPT> '`),
			runs("echo one", prints("one\n")), runs("printf one", prints("one")))},
		{Name: "wrapped", About: "a long line of output is one line",
			Start: conformance.Start{Cols: 40, Rows: 10}, Steps: steps(
				runs("printf '%0200d\\n' 7", prints(repeat(199, "0")+"7\n")))},
		{Name: "both-outputs", About: "standard output and error in the order of the program",
			Steps: steps(
				runs("for i in 1 2 3; do echo out $i; echo err $i >&2; done",
					prints("out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n")))},
		{Name: "cursor-query", About: "a program that asks the terminal where the cursor is gets " +
			"one answer, at once", Needs: []string{"python3"}, Steps: steps(
			runs(`python3 -c 'import os, select, sys, termios, tty
old = termios.tcgetattr(0); tty.setraw(0)
os.write(1, b"\x1b[6n\x1b[c"); got = b""
while select.select([0], [], [], 0.5)[0]: got += os.read(0, 100)
termios.tcsetattr(0, termios.TCSANOW, old)
print(got.count(b"R"), got.count(b"c"))'`, contains("1 1\n")))},
		exact(
			"queries",
			"a file that holds a terminal's queries is shown, and nobody waits for answers: none "+
				"is in the output", `printf '\033[c\033[6n\033]11;?\033\\\033P$qm\033\\a\n' | cat`,
			"\x1b[c\x1b[6n\x1b]11;?\x1b\\\x1bP$qm\x1b\\a\r\n", "a\n"),
		{Name: "queries-then", About: "nor typed to the shell: the next commands run as they are",
			Steps: steps(
				runs(`printf '\033[c\033[6n\033]11;?\033\\\033P$qm\033\\' | cat`, prints("")),
				runs("echo one", prints("one\n")), runs("sh -c 'exit 3'", done(3)))},
		{Name: "query-first",
			About: "a program that asks before it takes keys as they come gets its answer",
			Needs: []string{"python3"}, Steps: steps(
				runs(`python3 -c 'import os, termios, time, tty
os.write(1, b"\x1b[c"); time.sleep(0.02)
old = termios.tcgetattr(0); tty.setraw(0, termios.TCSADRAIN); got = b""
while not got.endswith(b"c"): got += os.read(0, 100)
termios.tcsetattr(0, termios.TCSANOW, old)
print(len(got))'`, contains("9\n")))},
		{Name: "screen-less", About: "what a pager shows comes with the answer, and nothing of " +
			"it after its end", Needs: []string{"less"}, Setup: "seq 1000 >conformance-lines",
			Steps: steps(
				runs("less -S conformance-lines", shows(asks(agent.WantPager, ""), "1\n2\n3\n")),
				keys(shows(asks(agent.WantPager, ""), "\n52\n53\n"), "Space"),
				keys(shows(done(0)), "q")), Cleanup: "rm -f conformance-lines"},
		{Name: "screen-vim", About: "what an editor shows comes with each answer",
			Needs: []string{"vim"}, Steps: steps(
				runs("vim -u NONE conformance-screen", shows(attends("vim"), "~\n~\n")),
				rawText("ihello, vim\x1b", shows(attends("vim"), "hello, vim\n~")),
				types(":q!", shows(done(0)))), Cleanup: "rm -f conformance-screen"},
		{Name: "screen-top",
			About: "what a program shows that draws again and again comes with the answer",
			Needs: []string{"top"}, Steps: steps(
				runs("top -d 60", shows(conformance.Want{Ended: ends(agent.EndedAttention,
					agent.EndedWaiting)}, "load average", "PID", "COMMAND")), keys(done(0), "q"))},
		{Name: "size", About: "the terminal has the size that was asked for",
			Start: conformance.Start{Cols: 91, Rows: 27},
			Steps: steps(runs("stty size", prints("27 91\n")))},
	}
}

// hexOf returns s in hexadecimal.
func hexOf(s string) string { return hex.EncodeToString([]byte(s)) }
