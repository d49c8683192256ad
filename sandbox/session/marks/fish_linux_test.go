package marks

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// fishStart starts fish without a greeting. It also keeps fish from reading all manual pages in the
// background.
func fishStart(t *testing.T, config string) start {
	t.Helper()
	return start{path: shells(t)["fish"], env: []string{"fish_greeting="},
		files: map[string]string{".config/fish/config.fish": config,
			".local/share/fish/generated_completions/none.fish": ""}}
}

// plain removes from a command's output what fish prints before the command runs: the end of
// bracketed paste, the title, a change of color.
func plain(out string) string {
	out = strings.TrimPrefix(out, "\x1b[?2004l")
	if i := strings.Index(out, "\a"); strings.HasPrefix(out, "\x1b]0;") && i >= 0 {
		out = out[i+1:]
	}
	return strings.TrimPrefix(out, "\x1b[30m\x1b(B\x1b[m\r")
}

// TestFishRun runs commands one after the other in fish.
func TestFishRun(t *testing.T) {
	long := strings.Repeat("0123456789", 10_000)
	for _, test := range []struct {
		name, config string
		steps        []string
		out          string // of the last step; * matches any text
		exit         int
	}{
		{"output", "", []string{"echo hi"}, "hi\n", 0},
		{"no newline", "", []string{"printf x"}, "x", 0},
		{"status", "", []string{"false"}, "", 1},
		{"status is seen", "", []string{"sh -c 'exit 42'", "echo $status"}, "42\n", 0},
		{"status over 255", "", []string{"sh -c 'exit 300'"}, "", 44},
		{"comment last", "", []string{"echo a # b"}, "a\n", 0},
		{"leading space", "", []string{"   echo a"}, "a\n", 0},
		{"any bytes", "", []string{"printf %s 'a\tb\xff\x01é' | od -An -tx1"}, " 61 09 62 ff 01 c3 a9\n", 0},
		{"no history expansion", "", []string{`echo "a!b" '!!' "!x"`}, "a!b !! !x\n", 0},
		{"100 KB", "", []string{"set x '" + long + "'; string length $x"}, "100000\n", 0},
		{"500 lines", "", []string{strings.Repeat("set -g n $n x\n", 500) + "count $n"}, "500\n", 0},
		{"function over lines", "", []string{"function f\n  echo \"f $argv[1]\"\n  return 7\nend", "f x"}, "f x\n", 7},
		{"loop over lines", "", []string{"for i in 1 2\necho $i\nend"}, "1\n2\n", 0},
		{"cd", "", []string{"cd /", "pwd"}, "/\n", 0},
		{"variables stay", "", []string{"set x 5", "echo $x"}, "5\n", 0},
		{"not found", "", []string{"nosuchcommand"}, "*nosuchcommand*", 127},
		{"signal", "", []string{"sh -c 'kill -TERM $$'"}, "*", 143},
		{"pipeline", "", []string{"false | true; echo $pipestatus"}, "1 0\n", 0},
		{"not true", "", []string{"not true"}, "", 1},
		{"abbreviations are for typing", "abbr -a ll echo short; function ll; echo long; end", []string{"ll"}, "long\n", 0},
		{"vi", "fish_vi_key_bindings", []string{"echo hi"}, "hi\n", 0},
		{"a new prompt", "", []string{"function fish_prompt; echo -n 'me> '; end", "echo ok"}, "ok\n", 0},
		{"no prompt", "", []string{"functions -e fish_prompt", "echo ok", "echo ok"}, "ok\n", 0},
		{"a virtual environment's prompt", "",
			[]string{"functions -c fish_prompt _old; function fish_prompt; echo -n '(venv) '; " +
				"_old; end", "echo a",
				"functions -e fish_prompt; functions -c _old fish_prompt; functions -e _old",
				"echo ok"}, "ok\n", 0},
		{"hooks of the user", "function p --on-event fish_prompt; echo prompt; end; function q --on-event fish_preexec; true; end", []string{"false", "echo $status"}, "1\n", 0},
		{"history", "", []string{"echo one", "echo two  ", "history search --max 2 | cat"}, "echo two\necho one\n", 0},
		{"nothing in the environment", "", []string{"env | grep -i sbx; set -x | grep -i sbx"}, "", 1},
		{"variables end nothing", "", []string{"set; functions __sbx_p | string length -q; echo done"}, "*done\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, fishStart(t, test.config))
			s.prompt()
			var got result
			for _, step := range test.steps {
				got = s.run(step)
			}
			if out := plain(got.out); !match(test.out, out) || test.exit != got.exit {
				t.Errorf("%q: got %v, want {%q exit %d}", test.steps, got, test.out, test.exit)
			}
			if out := s.output(); strings.Contains(out, s.nonce.String()) &&
				test.name != "variables end nothing" {
				t.Errorf("the nonce is in the output: %q", out)
			}
		})
	}
}

// TestFishTerminal tests half typed lines, ^C, incomplete lines, input, and the end of the shell.
func TestFishTerminal(t *testing.T) {
	t.Run("half typed line", func(t *testing.T) {
		t.Parallel()
		s := open(t, fishStart(t, ""))
		s.prompt()
		s.run("sh -c 'exit 3'")
		s.typ("echo never")
		s.until("echo", func() bool { return strings.Contains(string(s.clean), "never") })
		if got := s.run("echo $status"); plain(got.out) != "3\n" {
			t.Errorf("got %v, want the status before", got)
		}
	})
	t.Run("interrupt a half typed line", func(t *testing.T) {
		t.Parallel()
		s := open(t, fishStart(t, ""))
		s.prompt()
		for range 3 {
			s.typ("echo never")
			s.until("echo", func() bool { return strings.Contains(s.line(), "never") })
			s.interrupt()
		}
		for _, m := range s.list() {
			if m.Kind == CommandStart || m.Kind == CommandEnd {
				t.Errorf("phantom command: %v", m)
			}
		}
		if got := s.run("echo ok"); plain(got.out) != "ok\n" {
			t.Errorf("got %v, want ok", got)
		}
		if strings.Contains(s.output(), s.nonce.String()) {
			t.Errorf("the nonce is in the output: %q", s.output())
		}
	})
	t.Run("completions are shown", func(t *testing.T) {
		t.Parallel()
		s := open(t, fishStart(t, "complete -c foo -f -a 'aa ab ac'"))
		s.prompt()
		s.typ("foo a\t")
		s.until("completions", func() bool { return strings.Contains(string(s.clean), "mc") })
		s.typ("\t")
		if got := s.run("echo ok"); plain(got.out) != "ok\n" {
			t.Errorf("got %v, want ok; terminal %q", got, s.terminal())
		}
	})
	t.Run("continuation", func(t *testing.T) {
		t.Parallel()
		s := open(t, fishStart(t, ""))
		s.prompt()
		s.typ("echo 'a\r")
		s.next(Continuation)
		s.typ("b'\r")
		s.next(CommandStart)
		s.prompt()
		if !strings.Contains(s.output(), "a\r\nb\r\n") {
			t.Errorf("got %q, want a and b", s.output())
		}
		s.typ("for i in 1\r")
		s.next(Continuation)
		s.interrupt()
		if got := s.run("echo ok"); plain(got.out) != "ok\n" {
			t.Errorf("got %v, want ok", got)
		}
	})
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		s := open(t, fishStart(t, ""))
		s.prompt()
		s.send(`sh -c 'printf "name? "; read x; echo "<$x>"'`)
		m := s.started()
		s.until("question", func() bool { return strings.HasSuffix(string(s.clean), "name? ") })
		s.typ("bob\n")
		if got := s.result(m); plain(got.out) != "name? bob\n<bob>\n" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		t.Parallel()
		s := open(t, fishStart(t, ""))
		s.prompt()
		s.send("sh -c 'echo go; exec sleep 100'; echo no")
		m := s.started()
		// The output, not the title, which contains the text too.
		s.until("output", func() bool { return strings.Contains(string(s.clean[m.At:]), "go\r\n") })
		s.typ("\x03")
		if got := s.result(m); got.exit != 130 || strings.Contains(got.out, "no\n") {
			t.Errorf("got %v, want exit 130 and no more output", got)
		}
	})
	for _, test := range []struct {
		command string
		exit    int
	}{{"exit 3", 3}, {"exec sh -c 'exit 9'", 9}, {"kill -9 $fish_pid", -1},
		{"function f --on-event fish_exit; echo bye; end; exit 6", 6}} {
		t.Run(test.command, func(t *testing.T) {
			t.Parallel()
			s := open(t, fishStart(t, ""))
			s.prompt()
			s.send(test.command)
			if got := s.exit(); got != test.exit {
				t.Errorf("got exit status %d, want %d; terminal %q", got, test.exit, s.terminal())
			}
		})
	}
}

// interrupt types ^C until there is a new prompt, because fish misses a ^C while it paints.
func (s *shell) interrupt() {
	s.t.Helper()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			s.tty.WriteString("\x03")
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
			}
		}
	})
	s.prompt()
	close(stop)
	wg.Wait()
}

// TestRefused runs commands in zsh and fish that they cannot parse. The shells refuse them, run
// nothing, and stay at the prompt.
func TestRefused(t *testing.T) {
	for name, commands := range map[string][]string{
		"zsh": {"touch ran; echo 'a", "touch ran\ncat <<E\nx", "touch ran; if true; then", "touch ran; f() {", "touch ran; echo $(", "touch ran; echo `date",
			"touch ran; echo )", "touch ran &&", "touch ran |", "touch ran; echo ${x"},
		"fish": {"touch ran; echo 'a", "touch ran; if true", "touch ran; echo (", "touch ran; echo )", "touch ran; begin", "touch ran |"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: shells(t)[name]})
			s.prompt()
			for _, command := range commands {
				s.send(command)
				s.next(Refused)
				if got := s.run("ls ran"); got.exit == 0 {
					t.Errorf("%q ran", command)
				}
			}
			if strings.Contains(s.output(), s.nonce.String()) {
				t.Errorf("the nonce is in the output: %q", s.output())
			}
		})
	}
}
