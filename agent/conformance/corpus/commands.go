package corpus

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// sum returns the SHA-256 of a text as sha256sum(1) prints it.
func sum(s string) string {
	b := sha256.Sum256([]byte(s))
	return hex.EncodeToString(b[:])
}

// numbered returns a text of n lines.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d of %d: $HOME `date` \"x\" 'y' \\ !!\n", i+1, n)
	}
	return b.String()
}

// sized returns a text of n bytes in lines of 64, the last without a line feed.
func sized(n int) string {
	line := repeat(63, "x") + "\n"
	return repeat(n/64+1, line)[:n-1] + "."
}

// commands has cases about commands of many lines, quotes and here-documents: they run unchanged,
// and incomplete ones are rejected.
func commands() []conformance.Case {
	var all []conformance.Case
	heredoc := func(name, text string) {
		all = append(all, conformance.Case{Name: "heredoc-" + name,
			About: "a here-document arrives whole", Steps: steps(
				runs("cat >/tmp/conformance-doc <<'EOF'\n"+text+"\nEOF", with(prints(""), nothing)),
				exec("head -c -1 /tmp/conformance-doc | sha256sum", sum(text)+"  -\n")),
			Cleanup: "rm -f /tmp/conformance-doc"})
	}
	for _, n := range []int{1, 19, 20, 50, 500, 5000} {
		heredoc(fmt.Sprintf("%d-lines", n), strings.TrimSuffix(numbered(n), "\n"))
	}
	for _, n := range []int{511, 512, 4095, 4096, 65_535, 65_536} {
		heredoc(fmt.Sprintf("%d-bytes", n), sized(n))
		all = append(all, conformance.Case{Name: fmt.Sprintf("heredoc-line-%d", n),
			About: "also one of a single long line", Steps: steps(
				run("cat >/tmp/conformance-doc <<'EOF'\n"+repeat(n, "y")+"\nEOF"),
				exec("sha256sum </tmp/conformance-doc", sum(repeat(n, "y")+"\n")+"  -\n")),
			Cleanup: "rm -f /tmp/conformance-doc"})
	}
	refused := func(name, command string) {
		all = append(all, conformance.Case{Name: "syntax-" + name,
			About: "an unfinished command is refused before anything runs", Steps: steps(
				runs("touch /tmp/conformance-ran\n"+command,
					conformance.Want{Ended: ends(agent.EndedRefused), Error: agent.CodeSyntax}),
				conformance.Step{Do: conformance.Exec, Text: "test ! -e /tmp/conformance-ran",
					Want: conformance.Want{ExitCode: code(0)}}, run("true")),
			Cleanup: "rm -f /tmp/conformance-ran"})
	}
	refused("single-quote", "echo 'unclosed")
	refused("double-quote", "echo \"unclosed")
	refused("backtick", "echo `date")
	refused("heredoc", "cat <<EOF\nnever ended")
	refused("if", "if true; then echo")
	refused("brace", "f() { echo")
	refused("substitution", "echo $(date")
	refused("and", "true &&")
	typed := func(name, text string) {
		all = append(all, conformance.Case{Name: "typed-" + name,
			About: "typed, it leaves the shell at its second prompt, from where an interrupt " +
				"leads back", Steps: steps(
				run("true"),
				types(text, conformance.Want{Ended: ends(agent.EndedContinuation),
					Phase: []agent.Phase{agent.PhaseContinuation}, LatestMS: 10}),
				conformance.Step{Do: conformance.Interrupt,
					Want: conformance.Want{Phase: []agent.Phase{agent.PhasePrompt},
						Steps: []string{"^C"}}}, runs("echo back", prints("back\n")))})
	}
	typed("quote", "echo 'unclosed")
	typed("heredoc", "cat <<EOF")
	typed("backtick", "echo `date")
	typed("backslash", `echo one \`)
	typed("if", "if true; then")
	all = append(all,
		conformance.Case{Name: "typed-rest",
			About: "what is typed at the second prompt ends the command", Steps: steps(
				run("true"), types("echo 'one",
					conformance.Want{Ended: ends(agent.EndedContinuation)}),
				types("two'", with(done(0), outputHas("one\ntwo"))))},
		conformance.Case{Name: "lines",
			About: "several commands are one call, with the last one's status", Steps: steps(
				runs("echo one\necho two\n(exit 3)",
					with(done(3), func(w *conformance.Want) { w.Output = text("one\ntwo\n") })))},
		conformance.Case{Name: "loop",
			About: "a loop over many lines: no second prompt in the output", Steps: steps(
				runs("for i in 1 2 3\ndo\n  echo $i\ndone", prints("1\n2\n3\n")))},
		conformance.Case{Name: "function", About: "a function over many lines is there afterwards",
			Steps: steps(
				run("f() {\n  if test \"$1\" = x\n  then\n    echo is x\n  fi\n}"),
				runs("f x", prints("is x\n")))},
		conformance.Case{Name: "backslash", About: "a backslash at the end of a line",
			Steps: steps(runs("echo one \\\n  two", prints("one two\n")))},
		conformance.Case{Name: "find-exec", About: `find -exec … \;`,
			Steps: steps(runs(`find /etc/passwd -exec echo found {} \;`,
				prints("found /etc/passwd\n")))},
		conformance.Case{Name: "exclamation",
			About: "! in double quotes is verbatim: no history expansion", Steps: steps(
				run("true"), runs(`echo "a!b !! !$ !true"`, prints("a!b !! !$ !true\n")))},
		conformance.Case{Name: "tabs", About: "tabs are data, not completion",
			Steps: steps(runs("printf '%s\\n' 'a\tb' | od -An -c | tr -s ' '",
				prints(" a \\t b \\n\n")))},
		conformance.Case{Name: "crlf", About: "a carriage return within quotes is data",
			Steps: steps(runs("printf '%s' 'a\r\nb' | od -An -c | tr -s ' '",
				prints(" a \\r \\n b\n")))},
		conformance.Case{Name: "leading-space",
			About: "leading space changes nothing but the history",
			Steps: steps(runs("   echo one", prints("one\n")))},
		conformance.Case{Name: "quotes", About: "quotes in quotes",
			Steps: steps(runs(`echo 'a "b" c' "d 'e' f" $'g\'h' "$(echo "i $(echo "j")")"`,
				prints("a \"b\" c d 'e' f g'h i j\n")))},
		conformance.Case{Name: "heredoc-output",
			About: "cat <<EOF prints the document, nothing else",
			Steps: steps(runs("cat <<EOF\none\ntwo $((1+1))\nEOF", prints("one\ntwo 2\n")))},
		conformance.Case{Name: "heredoc-read",
			About: "a here-document to a program that asks is its input: nobody waits",
			Steps: steps(
				runs("while read -r x; do echo \"got $x\"; done <<'EOF'\none\ntwo\nEOF",
					prints("got one\ngot two\n")))},
		conformance.Case{Name: "comment", About: "a comment at the end swallows nothing",
			Steps: steps(runs("echo one # two", prints("one\n")), run("true"))},
		conformance.Case{Name: "empty-lines", About: "empty lines around a command",
			Steps: steps(runs("\n\n  echo one\n\n", prints("one\n")))},
		conformance.Case{Name: "history",
			About: "a command is in the shell's history, as at a keyboard", Steps: steps(
				run("echo remembered >/dev/null"),
				runs("history | tail -n 3", contains("echo remembered >/dev/null")))},
	)
	return all
}

// nothing expects no output.
func nothing(w *conformance.Want) { w.Output = text("") }
