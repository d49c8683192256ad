package marks

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// text returns the prompt that begins with m, as the terminal shows it.
func (s *shell) text(m Mark) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range s.marks {
		if n == m && i+1 < len(s.marks) && s.marks[i+1].Kind == PromptEnd {
			return visible(string(s.clean[m.At:s.marks[i+1].At]))
		}
	}
	return "no prompt"
}

// visible removes from s the sequences that every prompt of bash has.
func visible(s string) string {
	for _, seq := range []string{"\x1b[?2004h", "\x1b[?2004l\r", "\x1b[6n"} {
		s = strings.ReplaceAll(s, seq, "")
	}
	return s
}

// sign is the end of dash's prompt, and who is bash's name for this user.
var sign, who = func() (string, string) {
	me, err := user.Current()
	switch {
	case err != nil:
		panic(err)
	case me.Uid == "0":
		return "# ", me.Username
	default:
		return "$ ", me.Username
	}
}()

// TestStartup checks the first prompt.
func TestStartup(t *testing.T) {
	paths := shells(t)
	shrc := t.TempDir() + "/shrc"
	if err := os.WriteFile(shrc, []byte("PS1='shrc> '\nx=from-shrc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, shell string
		start       start
		before      string // printed before the first prompt
		prompt      string
		run, out    string
	}{
		{"bashrc", "bash", start{home: map[string]string{".bashrc": "PS1='rc> '; x=from-rc; echo hello"}}, "hello\r\n", "rc> ", "echo $x", "from-rc\n"},
		{"bashrc that returns", "bash", start{home: map[string]string{".bashrc": "PS1='rc> '; return 3; PS1=no"}}, "", "rc> ", "echo $?", "*\n"},
		{"bashrc with set -eu", "bash", start{home: map[string]string{".bashrc": "PS1='rc> '; set -euo pipefail"}}, "", "rc> ", "echo ${-//[^eu]/}", "eu\n"},
		{"login", "bash", start{opt: Options{Login: true}, home: map[string]string{".bash_profile": "PS1='profile> '; x=from-profile", ".profile": "PS1=no"}}, "", "profile> ", "echo $x", "from-profile\n"},
		{"login by .profile", "bash", start{opt: Options{Login: true}, home: map[string]string{".profile": "PS1='p> '", ".bashrc": "PS1=no"}}, "", "p> ", ":", ""},
		{"host name", "bash", start{opt: Options{Hostname: "demo"}, home: map[string]string{".bashrc": `PS1='\\h \u@\h \\\H> '`}}, "", `\h ` + who + `@demo \demo> `, ":", ""},
		{"host name in PROMPT_COMMAND", "bash", start{opt: Options{Hostname: "demo"}, home: map[string]string{".bashrc": `PROMPT_COMMAND='PS1="\h> "'`}}, "", "demo> ", ":", ""},
		{"host name in ash", "ash", start{opt: Options{Hostname: "demo"}, env: []string{`PS1=\h> `}}, "*", "demo> ", ":", ""},
		{"no such host name", "bash", start{opt: Options{Hostname: "a'$(id)"}, home: map[string]string{".bashrc": `PS1='x> '`}}, "", "x> ", ":", ""},
		{"descriptors in /proc", "bash", start{opt: Options{FDDir: "/proc/self/fd"}, home: map[string]string{".bashrc": "PS1='rc> '"}}, "", "rc> ", "echo hi", "hi\n"},
		{"descriptors in /proc for dash", "dash", start{opt: Options{FDDir: "/proc/self/fd"}}, "", sign, "echo hi", "hi\n"},
		{"ENV", "dash", start{env: []string{"ENV=" + shrc}}, "", "shrc> ", "echo $x $ENV", "from-shrc " + shrc + "\n"},
		{"ENV with expansion", "ash", start{env: []string{"D=" + filepath.Dir(shrc), "ENV=$D/shrc"}}, "*", "shrc> ", "echo $x $ENV", "from-shrc $D/shrc\n"},
		{"ENV for bash as sh", "sh", start{env: []string{"ENV=" + shrc}, home: map[string]string{".bashrc": "PS1=no"}}, "", "shrc> ", "echo $x $ENV", "from-shrc " + shrc + "\n"},
		{"ENV is no matter of bash", "bash", start{env: []string{"ENV=" + shrc}, home: map[string]string{".bashrc": "PS1='rc> '"}}, "", "rc> ", "echo $ENV", shrc + "\n"},
		{"login sh", "dash", start{opt: Options{Login: true}, home: map[string]string{".profile": "PS1='profile> '; ENV=" + shrc}}, "", "shrc> ", "echo $ENV", shrc + "\n"},
		{"no promptvars", "bash", start{home: map[string]string{".bashrc": "PS1='$x> '; shopt -u promptvars"}}, "", "no prompt", "echo hi", "hi\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.start.path = paths[test.shell]
			s := open(t, test.start)
			p := s.next(PromptStart)
			if test.prompt != "no prompt" {
				s.next(PromptEnd)
			}
			if got := visible(s.between(Mark{}, p)); !match(test.before, got) {
				t.Errorf("before the prompt: got %q, want %q", got, test.before)
			}
			if got := s.text(p); got != test.prompt {
				t.Errorf("prompt: got %q, want %q; terminal %q", got, test.prompt, s.terminal())
			}
			s.send(test.run)
			m := s.started()
			end := s.next(CommandEnd)
			if got := strings.ReplaceAll(s.between(m, end), "\r\n", "\n"); !match(test.out, got) {
				t.Errorf("%s: got %q, want %q", test.run, got, test.out)
			}
			if strings.Contains(s.output(), s.nonce.String()) {
				t.Errorf("the nonce is in the output: %q", s.output())
			}
		})
	}
}

// TestPrompts changes prompts and hooks, by Run and by typing. The marks and the user's prompt must
// stay.
func TestPrompts(t *testing.T) {
	paths := shells(t)
	const venv = `_OLD_PS1="${PS1-}"; PS1="(venv) ${PS1-}"; export PS1`
	tests := []struct {
		name, shell string
		rc          string
		steps       []string // commands, in order
		prompt      string   // after the steps
	}{
		{"PS1", "bash", "", []string{"PS1='new> '"}, "new> "},
		{"venv", "bash", "PS1='$ '", []string{venv}, "(venv) $ "},
		{"venv and back", "bash", "PS1='$ '", []string{venv, `PS1=$_OLD_PS1; unset _OLD_PS1`}, "$ "},
		{"PROMPT_COMMAND", "bash", "PS1='$ '", []string{"PROMPT_COMMAND='echo hook $?'", "(exit 5)"}, "hook 5\r\n$ "},
		{"PROMPT_COMMAND sets PS1", "bash", "", []string{`PROMPT_COMMAND='PS1="$? > "'`, "(exit 5)"}, "5 > "},
		{"PROMPT_COMMAND in front", "bash", "PS1='$ '; PROMPT_COMMAND='echo one'", []string{`PROMPT_COMMAND="echo two $?;$PROMPT_COMMAND"`, ":"}, "two 0\r\none\r\n$ "},
		{"PROMPT_COMMAND behind", "bash", "PS1='$ '; PROMPT_COMMAND='echo one'", []string{`PROMPT_COMMAND="$PROMPT_COMMAND; echo two"`, `PROMPT_COMMAND="$PROMPT_COMMAND; echo three"`, ":"}, "one\r\ntwo\r\nthree\r\n$ "},
		{"PROMPT_COMMAND with semicolon", "bash", "PS1='$ '; PROMPT_COMMAND='echo one; '", []string{":"}, "one\r\n$ "},
		{"PROMPT_COMMAND array", "bash", "PS1='$ '; PROMPT_COMMAND=('echo one $?' 'echo two $?')", []string{"(exit 5)"}, "one 5\r\ntwo 5\r\n$ "},
		{"PROMPT_COMMAND array grows", "bash", "PS1='$ '; PROMPT_COMMAND=('echo one')", []string{"PROMPT_COMMAND+=('echo two $?')", "(exit 5)"}, "one\r\ntwo 5\r\n$ "},
		{"PROMPT_COMMAND array in front", "bash", "PS1='$ '; PROMPT_COMMAND=('echo one')", []string{`PROMPT_COMMAND=('echo two $?' "${PROMPT_COMMAND[@]}")`, "(exit 5)"}, "two 5\r\none\r\n$ "},
		{"read-only PROMPT_COMMAND", "bash", "PS1='$ '; readonly PROMPT_COMMAND='echo one'", []string{"(exit 5)"}, "one\r\n$ "},
		{"PROMPT_COMMAND gone", "bash", "PS1='$ '", []string{"unset PROMPT_COMMAND", ":"}, "$ "},
		{"all overwritten", "bash", "", []string{"PROMPT_COMMAND='echo x'; PS1='$ '; PS2=; PS0=", ":"}, "x\r\n$ "},
		{"PROMPT_COMMAND that fails", "bash", "PS1='$ '; PROMPT_COMMAND=false", []string{"set -u", "(exit 3)"}, "$ "},
		{"two lines", "bash", `PS1='top\nbottom$ '`, []string{":"}, "top\r\r\nbottom$ "},
		{"command in PS1", "bash", `PS1='$(echo $?)$(echo "${x-}")> '`, []string{"x=y; (exit 4)"}, "4y> "},
		{"PS1 unset", "bash", "", []string{"unset PS1", ":"}, ""},
		{"set -x", "bash", "PS1='$ '", []string{"set -x", ":"}, "$ "},
		{"DEBUG trap that prints", "bash", "PS1='$ '", []string{"trap 'echo dbg' DEBUG", ":"}, "$ "},
		{"DEBUG trap with functrace", "bash", "PS1='$ '", []string{"set -T; trap 'x=1' DEBUG", ":"}, "$ "},
		{"PS1", "dash", "", []string{"PS1='new> '"}, "new> "},
		{"venv", "dash", "", []string{venv}, "(venv) " + sign},
		{"PS1", "ash", "", []string{"PS1='new> '"}, "new> "},
		{"venv", "ash", "", []string{"PS1='$ '", venv}, "(venv) $ "},
		{"set -eux", "dash", "", []string{"set -eux", ":"}, sign},
		{"set -eux", "ash", "", []string{"PS1='$ '", "set -eux", ":"}, "$ "},
		{"set -eux", "sh", "", []string{"PS1='$ '", "set -eux", ":"}, "$ "},
	}
	for _, test := range tests {
		for _, how := range []string{"run", "typed"} {
			t.Run(test.shell+"/"+test.name+"/"+how, func(t *testing.T) {
				switch {
				case how == "run":
				case test.shell != "bash":
					// Dash and ash have no hook but the prompt itself. The next Run repairs it.
					return
				case test.name == "all overwritten", test.name == "PROMPT_COMMAND sets PS1",
					test.name == "PROMPT_COMMAND", test.name == "read-only PROMPT_COMMAND":
					// The same. If only PROMPT_COMMAND is lost, the output of the new one counts as
					// the command's.
					return
				}
				t.Parallel()
				s := open(t, start{path: paths[test.shell],
					home: map[string]string{".bashrc": test.rc}})
				s.prompt()
				var p Mark
				for _, step := range test.steps {
					m := s.seen
					if how == "run" {
						s.run(step)
					} else {
						s.typ(step + "\r")
						s.next(CommandStart)
						s.next(CommandEnd)
						s.prompt()
					}
					for _, k := range s.list()[m:s.seen] {
						if k.Kind == PromptStart {
							p = k
						}
					}
				}
				s.mu.Lock()
				end := p
				for i := range s.marks {
					if s.marks[i] == p {
						end = s.marks[i+1]
						// The output of PROMPT_COMMAND comes between the end of the command and the
						// prompt.
						if i > 0 && s.marks[i-1].Kind == CommandEnd {
							p = s.marks[i-1]
						}
					}
				}
				got := visible(string(s.clean[p.At:end.At]))
				clean := string(s.clean)
				s.mu.Unlock()
				if got != test.prompt {
					t.Errorf("prompt: got %q, want %q; terminal %q", got, test.prompt, s.terminal())
				}
				if strings.Contains(clean, s.nonce.String()) {
					t.Errorf("the nonce is in the output: %q", clean)
				}
				if how == "run" && !strings.Contains(test.name, "set -e") {
					// A lost prompt is restored, and so is its status.
					if got := s.run("(exit 77)"); got.exit != 77 {
						t.Errorf("then exit 77: got %v", got)
					}
				}
			})
		}
	}
}

// TestRepair removes all hooks by typing. The next Run must restore them.
func TestRepair(t *testing.T) {
	paths := shells(t)
	for name, lose := range map[string]string{
		"bash": "PROMPT_COMMAND='echo x'; PS1='lost> '; PS0=; echo so",
		"dash": "PS1='lost> '; echo so",
		"ash":  "PS1='lost> '; echo so",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: paths[name]})
			s.prompt()
			s.typ(lose + "\r")
			s.until("prompt without marks",
				func() bool { return strings.HasSuffix(visible(string(s.clean)), "lost> ") })
			if got := s.run("(exit 77)"); got.exit != 77 {
				t.Errorf("got %v, want exit 77", got)
			}
			if got := s.run("echo ok"); got.out != "ok\n" {
				t.Errorf("got %v, want ok", got)
			}
		})
	}
}

// TestCwd changes to directories whose names contain every possible byte.
func TestCwd(t *testing.T) {
	var all []byte
	for b := 1; b < 256; b++ {
		if b != '/' {
			all = append(all, byte(b))
		}
	}
	base := t.TempDir()
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := base + "/" + name
			for i, part := range []string{string(all[:200]), string(all[200:]), "a\nb\r\nc", "\n",
				"\x1b]7337;A;", "\a", "ünï", "back\\slash\\w", "`id`$(id)!"} {
				sub := filepath.Join(dir, string(rune('0'+i)), part)
				if err := os.MkdirAll(sub, 0o700); err != nil {
					t.Fatal(err)
				}
				s := open(t, start{path: path})
				s.prompt()
				if got := s.run("cd -- " + quote(sub)); got.cwd != sub || got.exit != 0 {
					t.Errorf("got %v cwd %q, want %q", got, got.cwd, sub)
				}
			}
			deep := dir + strings.Repeat("/0123456789", 300)
			if err := os.MkdirAll(deep, 0o700); err != nil {
				t.Fatal(err)
			}
			s := open(t, start{path: path})
			s.prompt()
			if got := s.run("cd " + deep); got.cwd != deep {
				t.Errorf("got %q, want %d bytes", got.cwd, len(deep))
			}
		})
	}
}

// TestPS0 checks that typed commands print the user's PS0.
func TestPS0(t *testing.T) {
	s := open(t, start{path: "/bin/bash",
		home: map[string]string{".bashrc": `PS0='[ps0 $((n+=1))]\n'`}})
	s.prompt()
	s.typ("echo typed\r")
	m := s.next(CommandStart)
	if got, want := visible(s.between(m, s.next(CommandEnd))),
		"[ps0 1]\r\r\ntyped\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.prompt()
	if got := s.run("echo run"); got.out != "run\n" {
		t.Errorf("got %v, want run", got)
	}
	if got := s.run("echo $n"); got.out != "3\n" {
		t.Errorf("PS0 was expanded %v times, want 3", got)
	}
}

// TestEditing uses the line editor before a command is run.
func TestEditing(t *testing.T) {
	for _, test := range []struct{ name, rc, keys, echo string }{
		{"emacs, cursor in the middle", "", "echo never\x01\x06\x06", "never"},
		{"vi, inserting", "set -o vi", "echo never", "never"},
		{"vi, command mode", "set -o vi", "echo never\x1bbb", "never"},
		{"no editing", "set +o emacs", "echo never", "never"},
		{"search", "", "\x12ech", "ech"},
		{"redrawn", "PS1='$ '", "echo never\x0c", "\x1b[2J"},
		{"continuation", "", "echo 'never\r", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: "/bin/bash", home: map[string]string{".bashrc": test.rc}})
			s.prompt()
			s.run("echo 1; (exit 3)")
			s.typ(test.keys)
			if test.echo == "" {
				// At PS2, a command would only continue the line: the caller interrupts first.
				s.next(Continuation)
				s.idle()
				s.typ("\x03")
				s.prompt()
				if got := s.run("echo ok"); got.out != "ok\n" {
					t.Errorf("got %v, want ok", got)
				}
				return
			}
			s.until("echo", func() bool { return strings.Contains(string(s.clean), test.echo) })
			if got := s.run("echo $?"); got.out != "3\n" {
				t.Errorf("got %v, want 3; terminal %q", got, s.terminal())
			}
			for _, m := range s.list()[s.seen:] {
				t.Errorf("one more mark: %v", m)
			}
			if strings.Contains(s.output(), s.nonce.String()) {
				t.Errorf("the nonce is in the output: %q", s.output())
			}
		})
	}
}

// TestNested starts inner shells. They print no marks, and the outer shell's prompt comes back.
func TestNested(t *testing.T) {
	for _, inner := range []string{"/bin/bash --norc", "dash", "busybox ash", "bash --posix --norc",
		"bash --norc -u"} {
		t.Run(inner, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: "/bin/bash"})
			s.prompt()
			s.run("PS1='outer> ' PS2='more> ' PROMPT_COMMAND=:; export PS1 PS2 PROMPT_COMMAND")
			s.run(":")
			// As typed commands, so that the exported variables contain our parts.
			s.typ("export PS1 PS2 PROMPT_COMMAND\r")
			s.next(CommandEnd)
			s.prompt()
			s.send(inner)
			m := s.started()
			s.until("inner prompt", func() bool {
				return strings.HasSuffix(visible(string(s.clean[m.At:])), "outer> ")
			})
			s.typ("env | grep -c " + s.nonce.String() + "\r")
			s.until("count", func() bool {
				return strings.Contains(string(s.clean[m.At:]), "0\r\n")
			})
			s.typ("exit 5\r")
			if got := s.result(m); got.exit != 5 || strings.Contains(got.out, "not found") ||
				strings.Contains(got.out, "unbound") {
				t.Errorf("got %v, want exit 5 and no complaint", got)
			}
		})
	}
}

// TestPaste pastes several lines in one write.
func TestPaste(t *testing.T) {
	s := open(t, start{path: "/bin/bash"})
	s.prompt()
	s.typ("\x1b[200~echo one\n(exit 4)\n\x1b[201~\r")
	s.next(CommandStart)
	if end := s.next(CommandEnd); end.Exit != 4 {
		t.Errorf("got exit %d, want 4", end.Exit)
	}
	s.prompt()
	if got := s.run("echo $?"); got.out != "4\n" {
		t.Errorf("got %v, want 4", got)
	}
}

// TestSecret searches for the nonce where another program could read it.
func TestSecret(t *testing.T) {
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, start{path: path})
			s.prompt()
			got := s.run(strings.ReplaceAll(
				`cat /proc/$$/environ /proc/$$/cmdline /proc/self/environ /dev/fd/61 /dev/fd/9; ls -l /dev/fd/`,
				"$$", map[bool]string{true: "$fish_pid", false: "$$"}[name == "fish"]))
			if strings.Contains(got.out, s.nonce.String()) {
				t.Errorf("the nonce is in plain sight: %q", got.out)
			}
			// Fish cannot close a descriptor, but the pipe is empty.
			if strings.Contains(got.out, " 9 -> ") && name != "fish" {
				t.Errorf("a program inherits the script's pipe: %q", got.out)
			}
		})
	}
}

// TestInterruptedStartup types ^C while a start-up file runs. The rest of the file and the marks
// must still come.
func TestInterruptedStartup(t *testing.T) {
	paths := shells(t)
	shrc := t.TempDir() + "/shrc"
	// One process, so that ^C arrives while it runs.
	const text = "sh -c 'echo ready; exec sleep 60'; PS1='rc> '\n"
	if err := os.WriteFile(shrc, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]start{
		"bash": {home: map[string]string{".bashrc": text}},
		"dash": {env: []string{"ENV=" + shrc}},
		"zsh":  {home: map[string]string{".zshrc": text}},
	} {
		t.Run(name, func(t *testing.T) {
			s.path = paths[name]
			sh := open(t, s)
			sh.until("the start-up file",
				func() bool { return strings.Contains(string(sh.clean), "ready") })
			sh.tty.WriteString("\x03")
			sh.prompt()
			want := "1\n"
			if name == "zsh" {
				want = "0\n" // as without marks: ^C ends zsh's file
			}
			if got := sh.run("echo $PS1 | grep -c rc"); got.out != want {
				t.Errorf("after ^C: %+v", got)
			}
			if got := sh.run("trap"); got.out != "" {
				t.Errorf("a trap is left: %q", got.out)
			}
		})
	}
}
