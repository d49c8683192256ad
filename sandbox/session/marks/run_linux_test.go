package marks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// names lists the shells in a fixed order, without fish, whose language differs. It has its own
// tests.
func names(m map[string]string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)),
		func(name string) bool { return name == "fish" })
}

// commandTest runs commands one after the other.
type commandTest struct {
	name   string
	shells string
	steps  []string
	out    string // of the last step; * matches any text
	exit   int
}

func commandTests() []commandTest {
	long := strings.Repeat("0123456789", 10_000)
	var lines strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&lines, "line %d\n", i)
	}
	all := "bash sh dash ash zsh"
	return []commandTest{
		{"output", all, []string{"echo hi"}, "hi\n", 0},
		{"no newline", all, []string{"printf x"}, "x", 0},
		{"status", all, []string{"false"}, "", 1},
		{"status is seen", all, []string{"(exit 42)", "echo $?"}, "42\n", 0},
		{"status of an assignment", all, []string{"false", "x=$?; echo $x"}, "1\n", 0},
		{"nothing", all, []string{"false", ""}, "", 1},
		{"comment last", all, []string{"echo a # b"}, "a\n", 0},
		{"backslash last", all, []string{`echo a\`}, "a\n", 0},
		{"leading space", all, []string{"   echo a"}, "a\n", 0},
		{"tab and CR", all, []string{"printf '%s' 'a\tb\rc' | od -An -c"}, "   a  \\t   b  \\r   c\n", 0},
		{"any bytes", all, []string{"printf %s '\xff\xfe\x01\x1b\x7f' | od -An -tx1"}, " ff fe 01 1b 7f\n", 0},
		{"history expansion", all, []string{`echo "a!b" '!!' "!x"`}, "a!b !! !x\n", 0},
		{"here-document", all, []string{"x=1; cat <<E\n$x\nb\nE\n"}, "1\nb\n", 0},
		{"long here-document", all, []string{"cksum <<'E'\n" + lines.String() + "E"}, "*48890*", 0},
		{"100 KB", all, []string{"x='" + long + "'; echo ${#x}"}, "100000\n", 0},
		{"function over lines", all, []string{"f() {\n  echo \"f $1\"\n  return 7\n}", "f x"}, "f x\n", 7},
		{"loop over lines", all, []string{"for i in 1 2\ndo echo $i\ndone"}, "1\n2\n", 0},
		{"cd", all, []string{"cd /", "pwd"}, "/\n", 0},
		{"variables stay", all, []string{"x=5", "echo $x"}, "5\n", 0},
		{"alias of the line before", "bash sh dash ash", []string{"alias foo='echo bar'\nfoo"}, "bar\n", 0},
		{"not found", all, []string{"nosuchcommand"}, "*not found*\n", 127},
		{"syntax error", "bash sh dash ash", []string{"echo a )"}, "*yntax error*)*\n", 2},
		{"after a syntax error", "bash sh dash ash", []string{"if then", "echo ok"}, "ok\n", 0},
		{"after unfinished quotes", "bash sh dash ash", []string{"echo 'abc", "echo ok"}, "ok\n", 0},
		{"after an unfinished substitution", "bash sh dash ash", []string{"echo $((1+", "echo ok"}, "ok\n", 0},
		{"set -e passes", all, []string{"set -e", "! true", "false || echo $?"}, "1\n", 0},
		{"set -u", all, []string{"set -u", "echo $nosuch; echo no"}, "*nosuch*\n", -1},
		{"after set -u", all, []string{"set -u", "echo $nosuch", "echo ok"}, "ok\n", 0},
		{"noclobber and noglob", all, []string{"set -C; set -o noglob", "echo *"}, "*\n", 0},
		{"allexport", "bash sh dash ash", []string{"set -a", ":", "env | grep -c '7337;.;[0-9a-f]\\|__sbx_c'"}, "0\n", 1},
		{"IFS", all, []string{"IFS=0123456789abcdef", "echo ok"}, "ok\n", 0},
		{"set -x", "dash ash", []string{"set -x", "echo hi"}, "+ echo hi\nhi\n", 0},
		{"set -x in eval", "bash sh", []string{"set -x", "echo hi"}, "++ echo hi\nhi\n", 0},
		{"pipefail", "bash sh ash", []string{"set -euo pipefail", "echo $-; ! false | cat"}, "*", 0},
		{"read-only prompts", "bash", []string{"readonly PS0 PS2 PROMPT_COMMAND", "(exit 3)", "echo $?"}, "3\n", 0},
		{"set -k", "bash sh", []string{"set -k", "(exit 3)", "echo $?", "true"}, "", 0},
		{"newlines last", "bash sh dash ash zsh", []string{"echo a" + strings.Repeat("\n", 8000)}, "a\n", 0},
		{"declare", "bash", []string{"declare -A m=([k]=v); declare -i n=3", "echo ${m[k]} $n"}, "v 3\n", 0},
		{"local", "bash", []string{"local x"}, "bash: local: can only be used in a function\n", 1},
		{"return", "bash", []string{"return 3"}, "*can only*", -1},
		{"ERR trap", "bash", []string{"trap 'echo ERR' ERR", "false"}, "ERR\n", 1},
		{"DEBUG trap", "bash", []string{`trap 'echo "[$BASH_COMMAND]"' DEBUG`, "echo 1"}, "[echo 1]\n1\n", 0},
		{"DEBUG trap is kept", "bash", []string{`trap 'n=$((n+1))' DEBUG`, ":", "trap -p DEBUG"}, "trap -- 'n=$((n+1))' DEBUG\n", 0},
		{"history", "bash", []string{"echo one", "echo 'two\nthree'", "history | sed 's/^ *[0-9]*  //'"}, "echo one\necho 'two\nthree'\nhistory | sed 's/^ *[0-9]*  //'\n", 0},
		{"ignorespace", "bash", []string{"HISTCONTROL=ignorespace", " echo secret", "history | grep -c 'echo secre[t]'"}, "0\n", 1},
		{"no history", "bash", []string{"set +o history", "echo a", "set -o history; history | grep -c 'echo [a]'"}, "0\n", 1},
		{"PS1 is the user's", "bash sh dash", []string{"PS1='me> '", `echo "$PS1"`}, "*me> *\n", 0},
		{"last argument", "bash", []string{"set -eu; echo 'a  *'", `echo "$_"`}, "a  *\n", 0},
		{"last argument of a failure", "bash", []string{"false b", `echo $_`}, "b\n", 0},
		{"last argument is long", "bash", []string{"set -a; : '" + long + long + "'", "env true && echo ok"}, "ok\n", 0},
		{"positional parameters", all, []string{"set -- a b c", "shift", "echo $# $1"}, "2 b\n", 0},
		{"stdin is the terminal", all, []string{"[ -t 0 ] && [ -t 1 ] && [ -t 2 ]"}, "", 0},
		{"nothing in the environment", all, []string{"env | grep -i sbx"}, "", 1},
		{"ENV is unset", all, []string{`echo "${ENV-unset}"`}, "unset\n", 0},
		{"script descriptor is closed", all, []string{"ls -l /proc/self/fd/ | grep -c pipe"}, "*", -1},
		{"functions end nothing", "bash", []string{"set; declare -p; declare -f | grep -c __sbx_z"}, "*\n1\n", 0},
	}
}

// TestRun runs commands in each shell.
func TestRun(t *testing.T) {
	paths := shells(t)
	for _, test := range commandTests() {
		for name := range strings.FieldsSeq(test.shells) {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				s := open(t, start{path: paths[name]})
				s.prompt()
				test.run(t, s)
			})
		}
	}
}

func (test commandTest) run(t *testing.T, s *shell) {
	t.Helper()
	var got result
	for _, step := range test.steps {
		got = s.run(step)
	}
	if !match(test.out, got.out) || test.exit >= 0 && got.exit != test.exit ||
		test.exit < 0 && got.exit == 0 && test.out != "*" {
		t.Errorf("%q: got %v, want {%q exit %d}", test.steps, got, test.out, test.exit)
	}
}

// match reports whether got matches want, in which * stands for any text.
func match(want, got string) bool {
	first, rest, star := strings.Cut(want, "*")
	if !star {
		return want == got
	}
	if !strings.HasPrefix(got, first) {
		return false
	}
	got = got[len(first):]
	for i := range len(got) + 1 {
		if match(rest, got[i:]) {
			return true
		}
	}
	return false
}

// TestDeath ends the shell during a command.
func TestDeath(t *testing.T) {
	paths := shells(t)
	for _, name := range names(paths) {
		for _, test := range []struct {
			steps []string
			exit  int
		}{
			{[]string{"exit 3"}, 3},
			{[]string{"(exit 4)", "exit"}, 4},
			{[]string{"set -e", "false"}, 1},
			{[]string{"exec sh -c 'exit 9'"}, 9},
			{[]string{"trap 'exit 6' EXIT; exit 5"}, 6},
			{[]string{"kill -9 $$"}, -1},
		} {
			t.Run(name+"/"+strings.Join(test.steps, ";"), func(t *testing.T) {
				t.Parallel()
				s := open(t, start{path: paths[name]})
				s.prompt()
				last := len(test.steps) - 1
				for _, step := range test.steps[:last] {
					s.run(step)
				}
				s.send(test.steps[last])
				if got := s.exit(); got != test.exit {
					t.Errorf("got exit status %d, want %d; terminal %q", got, test.exit,
						s.terminal())
				}
			})
		}
	}
}

// TestLastArgument runs a command, types a line and runs a command again. Each finds the last
// argument of the one before in $_.
func TestLastArgument(t *testing.T) {
	s := open(t, start{path: "/bin/bash"})
	s.prompt()
	s.run("echo given 'a b'")
	s.typ("echo \"<$_>\" 'c d'\r")
	s.next(CommandStart)
	s.prompt()
	if got := s.output(); !strings.Contains(got, "<a b> c d\r\n") {
		t.Errorf("the line typed prints %q", got)
	}
	if got := s.run(`echo "$_"`); got.out != "c d\n" {
		t.Errorf("the command given prints %q", got.out)
	}
}

// TestTerminal runs commands that use the terminal: input, ^C, ^Z, jobs.
func TestTerminal(t *testing.T) {
	paths := shells(t)
	for _, name := range names(paths) {
		each := func(what string, f func(t *testing.T, s *shell)) {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				s := open(t, start{path: paths[name]})
				s.prompt()
				f(t, s)
			})
		}
		each("read", func(t *testing.T, s *shell) {
			s.send(`printf 'name? '; read x; echo "<$x>"`)
			m := s.started()
			s.until("question", func() bool { return strings.HasSuffix(string(s.clean), "name? ") })
			s.typ("bob\n")
			if got, want := s.result(m), (result{"name? bob\n<bob>\n", 0, s.cmd.Dir}); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
		each("interrupt", func(t *testing.T, s *shell) {
			s.send("sh -c 'echo go; exec sleep 100'; echo no")
			m := s.started()
			s.until("output", func() bool { return strings.Contains(string(s.clean[m.At:]), "go") })
			s.typ("\x03")
			if got := s.result(m); got.exit != 130 || strings.Contains(got.out, "no") {
				t.Errorf("got %v, want exit 130 and no more output", got)
			}
			if got := s.run("echo $?"); got.out != "130\n" {
				t.Errorf("then $? is %q, want 130", got.out)
			}
		})
		each("stop", func(t *testing.T, s *shell) {
			s.send("sh -c 'echo go; exec /bin/sleep 100'")
			m := s.started()
			s.until("output", func() bool { return strings.Contains(string(s.clean[m.At:]), "go") })
			s.typ("\x1a")
			if got := s.result(m); got.exit <= 128 {
				t.Errorf("got %v, want the status of a stopped job", got)
			}
			if got := s.run("jobs"); !strings.Contains(got.out, "topped") &&
				!strings.Contains(got.out, "suspended") || !strings.Contains(got.out, "echo go") {
				t.Errorf("jobs: got %v, want it stopped", got)
			}
			s.run("kill -9 %1")
		})
		each("background", func(t *testing.T, s *shell) {
			s.run("sleep 100 & echo $! >pid")
			if got := s.run(`kill -0 "$(cat pid)" && kill "$(cat pid)"`); got.exit != 0 {
				t.Errorf("the job: got %v, want it alive", got)
			}
		})
		each("half typed line", func(t *testing.T, s *shell) {
			s.run("(exit 3)")
			s.typ("echo never")
			s.until("echo", func() bool { return strings.HasSuffix(string(s.clean), "never") })
			if got := s.run("echo $?"); got.out != "3\n" {
				t.Errorf("got %v, want the status before", got)
			}
		})
		each("interrupt at an empty prompt", func(t *testing.T, s *shell) {
			s.mu.Lock()
			before := len(s.marks)
			s.mu.Unlock()
			s.idle()
			s.typ("\x03")
			if p := s.prompt(); p.Exit != 130 {
				t.Errorf("got exit %d, want 130", p.Exit)
			}
			for _, m := range s.list()[before:] {
				if m.Kind == CommandStart || m.Kind == CommandEnd {
					t.Errorf("phantom command: %v", m)
				}
			}
		})
		each("empty line", func(t *testing.T, s *shell) {
			s.run("(exit 3)")
			s.typ("\r")
			if p := s.prompt(); p.Exit != 3 {
				t.Errorf("got exit %d, want 3", p.Exit)
			}
		})
		each("continuation", func(t *testing.T, s *shell) {
			s.typ("echo 'a\r")
			s.next(Continuation)
			s.typ("b'\r")
			s.prompt()
			if !strings.Contains(s.output(), "a\r\nb\r\n") {
				t.Errorf("got %q, want a and b", s.output())
			}
		})
	}
}

// BenchmarkRun measures the time from typing to the next prompt.
func BenchmarkRun(b *testing.B) {
	paths := shells(b)
	for _, name := range names(paths) {
		b.Run(name, func(b *testing.B) {
			s := open(b, start{path: paths[name]})
			s.prompt()
			for b.Loop() {
				s.run(":")
			}
		})
	}
}
