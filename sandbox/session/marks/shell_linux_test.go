package marks

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// TestMain resets signals: a shell that inherits an ignored ^C would fail the tests.
func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	os.Exit(m.Run())
}

// deadline is generous: these are real shells, and the machine may be busy.
const deadline = time.Minute

// shell is a real shell with marks on a real terminal.
type shell struct {
	t     testing.TB
	in    Integration
	cmd   *exec.Cmd
	tty   *os.File
	file  *os.File
	nonce Nonce

	number uint64        // of the last command
	done   chan struct{} // the reader has ended

	mu    sync.Mutex
	cond  *sync.Cond
	raw   []byte // guarded by mu
	clean []byte // guarded by mu
	marks []Mark // guarded by mu; At is an index into clean
	ended bool   // guarded by mu
	seen  int    // marks that the test has waited for
}

type start struct {
	path  string
	opt   Options
	home  map[string]string // files in $HOME
	env   []string
	files map[string]string // in $HOME, with their folders
	args  []string          // appended to the integration's
}

func open(t testing.TB, s start) *shell {
	t.Helper()
	home := t.TempDir()
	for name, text := range s.home {
		if err := os.WriteFile(home+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range s.files {
		if err := os.MkdirAll(filepath.Dir(home+"/"+name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(home+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := append([]string{"HOME=" + home, "PATH=" + searchable(os.Getenv("PATH")),
		"TERM=xterm-256color", "LANG=C.UTF-8", "INPUTRC=/dev/null"}, s.env...)
	s.opt.Env = env
	nonce := NewNonce()
	in, ok := For(s.path, nonce, s.opt)
	if !ok {
		t.Fatalf("For(%q): not known", s.path)
	}
	if in.DotDir != "" {
		dir := t.TempDir()
		if err := os.Symlink(in.Target, dir+"/"+in.Link); err != nil {
			t.Fatal(err)
		}
		in.Env = append(in.Env, in.DotDir+"="+dir)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(in.Script); err != nil {
		t.Fatal(err)
	}
	w.Close()
	defer r.Close()
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "command")
	extra := make([]*os.File, CommandFD-2)
	extra[ScriptFD-3], extra[CommandFD-3] = r, file

	cmd := exec.Command(in.Args[0], append(in.Args[1:], s.args...)...)
	cmd.Args[0] = in.Args[0]
	cmd.Env, cmd.Dir, cmd.ExtraFiles = append(env, in.Env...), home, extra
	t.Cleanup(func() { file.Close() })
	sh := &shell{t: t, in: in, file: file, nonce: nonce}
	sh.begin(cmd)
	return sh
}

// begin starts the shell on a terminal.
func (s *shell) begin(cmd *exec.Cmd) {
	s.t.Helper()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 200})
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.tty, s.done = cmd, tty, make(chan struct{})
	s.cond = sync.NewCond(&s.mu)
	go s.read()
	s.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		tty.Close()
		<-s.done
	})
}

func (s *shell) read() {
	defer close(s.done)
	p := NewParser(s.nonce)
	defer func() {
		if p.Forged() {
			s.t.Errorf("the shell's own marks contradict each other: %q", s.terminal())
		}
	}()
	buf := make([]byte, 4096)
	for {
		n, err := s.tty.Read(buf)
		s.mu.Lock()
		s.raw = append(s.raw, buf[:n]...)
		out, marks := p.Parse(buf[:n])
		for _, m := range marks {
			m.At += len(s.clean)
			s.marks = append(s.marks, m)
		}
		s.clean = append(s.clean, out...)
		if bytes.Contains(out, []byte("\x1b[6n")) {
			s.tty.WriteString("\x1b[1;1R") // busybox asks where the cursor is
		}
		s.ended = err != nil
		s.cond.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// until waits until ok is true for the terminal's output. It calls ok with mu held.
func (s *shell) until(what string, ok func() bool) {
	s.t.Helper()
	timer := time.AfterFunc(deadline, func() {
		s.mu.Lock()
		s.ended = true
		s.cond.Broadcast()
		s.mu.Unlock()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !ok() {
		if s.ended {
			s.t.Fatalf("no %s; marks %v, terminal:\n%q", what, s.marks, s.raw)
		}
		s.cond.Wait()
	}
}

// next waits for the next mark of kind k that it has not returned yet.
func (s *shell) next(k Kind) (m Mark) {
	s.t.Helper()
	s.until(k.String(), func() bool {
		for s.seen < len(s.marks) {
			m = s.marks[s.seen]
			s.seen++
			if m.Kind == k {
				return true
			}
		}
		return false
	})
	return m
}

// prompt waits for the next prompt and returns its first mark.
func (s *shell) prompt() Mark {
	s.t.Helper()
	m := s.next(PromptStart)
	s.next(PromptEnd)
	return m
}

func (s *shell) typ(text string) {
	s.t.Helper()
	if _, err := s.tty.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// send runs text in the shell as a command.
func (s *shell) send(text string) {
	s.t.Helper()
	s.number++
	typed, payload := s.in.Command(text, s.number)
	if s.file == nil {
		s.typ(string(typed))
		return
	}
	err := s.file.Truncate(0)
	if _, e := s.file.WriteAt(payload, 0); e != nil {
		err = e
	}
	if _, e := s.file.Seek(0, 0); e != nil {
		err = e
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.typ(string(typed))
}

// started waits for the start of the command from send.
func (s *shell) started() Mark {
	s.t.Helper()
	for {
		if m := s.next(CommandStart); m.Run {
			if m.Number != s.number {
				s.t.Errorf("command %d starts, want %d", m.Number, s.number)
			}
			return m
		}
	}
}

// idle waits until the shell sleeps. If bash is interrupted between printing its prompt and
// reading, it shows no new prompt until the next key. It does so without marks as well.
func (s *shell) idle() {
	s.t.Helper()
	for end := time.Now().Add(deadline); ; runtime.Gosched() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		if err != nil || time.Now().After(end) {
			s.t.Fatalf("the shell does not come to rest: %s %v", stat, err)
		}
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "S") {
			return
		}
	}
}

type result struct {
	out  string // with LF line ends
	exit int
	cwd  string
}

// run runs text and waits for the next prompt.
func (s *shell) run(text string) result {
	s.t.Helper()
	s.send(text)
	return s.result(s.started())
}

// result waits for the end of the command that began with m.
func (s *shell) result(m Mark) result {
	s.t.Helper()
	end := s.next(CommandEnd)
	p := s.prompt()
	if p.Exit != end.Exit {
		s.t.Errorf("prompt says exit %d, command end %d", p.Exit, end.Exit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return result{strings.ReplaceAll(string(s.clean[m.At:end.At]), "\r\n", "\n"), end.Exit, p.Cwd}
}

// between returns what was printed between two marks.
func (s *shell) between(a, b Mark) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.clean[a.At:b.At])
}

// output, terminal and list return what the terminal has printed so far: the output without marks,
// the output with marks, and the marks.
func (s *shell) output() string   { s.mu.Lock(); defer s.mu.Unlock(); return string(s.clean) }
func (s *shell) terminal() string { s.mu.Lock(); defer s.mu.Unlock(); return string(s.raw) }
func (s *shell) list() []Mark     { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.marks) }

// line returns the output since the last mark. Called with mu held.
func (s *shell) line() string {
	if len(s.marks) == 0 {
		return string(s.clean)
	}
	return string(s.clean[s.marks[len(s.marks)-1].At:])
}

// exit waits for the shell to end and returns its status.
func (s *shell) exit() int {
	s.t.Helper()
	timer := time.AfterFunc(deadline, func() { s.cmd.Process.Kill() })
	defer timer.Stop()
	<-s.done
	s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

func (r result) String() string { return fmt.Sprintf("{%q exit %d}", r.out, r.exit) }

// shells returns the shells under test, by name. A missing shell fails the test.
func shells(t testing.TB) map[string]string {
	t.Helper()
	dir := t.TempDir()
	m := map[string]string{"bash": "/bin/bash"}
	for name, program := range map[string]string{"dash": "dash", "ash": "busybox", "sh": "bash",
		"zsh": "zsh", "fish": "fish"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatalf("%s is needed: %v", program, err)
		}
		link := dir + "/" + name
		if name == "sh" {
			link = dir + "/posix/sh"
			os.Mkdir(dir+"/posix", 0o755)
		}
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		m[name] = link
	}
	return m
}

// searchable returns path without the directories that this user may not search. In those, shells
// report "Permission denied" for a command that does not exist.
func searchable(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool {
		return unix.Access(dir, unix.X_OK) != nil
	})
	return strings.Join(dirs, string(filepath.ListSeparator))
}
