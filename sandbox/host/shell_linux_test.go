package host

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shellAccount starts an OpenSSH server without SFTP and makes an account with a shell that may log
// in to it. rc are its start-up files.
func shellAccount(t *testing.T, shell string, rc map[string]string) (*peer, sandbox.Spec) {
	t.Helper()
	if _, err := os.Stat(shell); err != nil {
		needed(t, shell)
	}
	name, home := account(t, shell, "unused")
	for file, text := range rc {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(home, file), text)
	}
	if text, err := exec.Command("chown", "-R", name+":", home).CombinedOutput(); err != nil {
		t.Fatalf("chown: %v: %s", err, text)
	}
	p := openSSH(t, settings{home: home, noSFTP: true})
	for _, file := range []string{p.dir, p.identity + ".pub"} { // the account reads its keys itself
		if err := os.Chmod(file, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.user = name
	return p, p.spec(t)
}

// busyboxShell makes busybox's shell available under another name.
func busyboxShell(t *testing.T, name string) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		needed(t, "busybox")
	}
	file := filepath.Join(shortDir(t), name)
	if err := os.Chmod(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(busybox, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// Each shell that supports marks in a container supports them over a terminal, too.
func TestMarksOfShells(t *testing.T) {
	zshrc := map[string]string{".zshrc": "echo noise; PS1='rc%# '\n"}
	for _, tt := range []struct {
		name, shell string
		rc          map[string]string
		is          string // prints which shell it is
		want        string
	}{
		{"dash", "/bin/dash", map[string]string{".profile": "echo noise; PS1='rc> '\n"}, "echo $0", "dash"},
		{"sh", "/bin/sh", nil, "echo $0", "sh"},
		{"busybox", busyboxShell(t, "ash"), nil, "echo $0", "ash"},
		{"busybox as sh", busyboxShell(t, "sh"), nil, "echo $0", "sh"},
		{"zsh", "/usr/bin/zsh", zshrc, "echo ${ZSH_VERSION:+zsh}${ZDOTDIR-}", "zsh"},
		{"bash that becomes zsh", "/bin/bash",
			map[string]string{".bashrc": "echo noise; export X=kept; exec zsh\n",
				".bash_profile": ". ~/.bashrc\n",
				".zshrc":        zshrc[".zshrc"]}, "echo $X${ZSH_VERSION:+zsh}${ZDOTDIR-}", "keptzsh"},
		{"dash that becomes bash", "/bin/dash", map[string]string{".profile": "exec bash\n"}, "echo ${BASH_VERSION:+bash}", "bash"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, spec := shellAccount(t, tt.shell, tt.rc)
			before := ownedBy(t, p.user, p.home)
			b := newBackend(t)
			inst := boot(t, b, spec)
			c := dialSessions(t, b, inst, TierMarks)
			client := attach(t, c, "main", wire.Start{})
			if res := run(t, client, tt.is); !strings.HasSuffix(res.Output, tt.want+"\n") {
				t.Errorf("it is %q, want %s", res.Output, tt.want)
			}
			for _, of := range []struct{ command, output, exit string }{
				{"echo hello; (exit 7)", "hello\n", "7"},
				{"echo $?", "7\n", "0"},
				{"false", "", "1"},
				{"printf '%s\\n' 'a\\b' \"ü\" '.'", "a\\b\nü\n.\n", "0"},
				{"echo one\necho two", "one\ntwo\n", "0"},
				{"echo " + strings.Repeat("long ", 2000) + "| wc -c", "10000\n", "0"},
				{"stty -a | tr ' ;' '\\n\\n' | grep -x -- '-*echo'", "echo\n", "0"},
				{".\n", "", ""},
				{"echo ok", "ok\n", "0"},
			} {
				res := run(t, client, of.command)
				if of.exit == "" {
					continue
				}
				if res.Output != of.output || exitCode(res) != of.exit ||
					!slices.Equal(res.Basis, []wire.Basis{wire.BasisMark}) {
					t.Errorf("run %.40q: got %.80q, %s, basis %v; want %.80q, %s, mark", of.command,
						res.Output, exitCode(res), res.Basis, of.output, of.exit)
				}
			}
			if res := do(t, client, wire.Request{Verb: wire.VerbType,
				Text: "echo typed"}); res.Ended != wire.Done ||
				!strings.Contains(res.Output, "typed") {
				t.Errorf("type: got %+v, want done", res)
			}
			if res := run(t, client, "echo again"); res.Output != "again\n" {
				t.Errorf("behind what was typed: got %q", res.Output)
			}
			c.Close()
			if err := b.Destroy(timeout(t), inst); err != nil {
				t.Fatal(err)
			}
			until(t, "no process of the account is left",
				func() bool { return exec.Command("pgrep", "-u", p.user).Run() != nil })
			for _, path := range ownedBy(t, p.user, p.home) {
				if !slices.Contains(before, path) {
					t.Errorf("left in /tmp: %s", path)
				}
			}
		})
	}
}

// ownedBy returns the files directly in /tmp that belong to an account, except its home. A new
// account can have the number of an old one that left files there. Other tests make and remove
// files meanwhile: missing entries are skipped.
func ownedBy(t *testing.T, name, home string) []string {
	t.Helper()
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/tmp")
	if err != nil {
		t.Fatal(err)
	}
	var owned []string
	for _, entry := range entries {
		path := filepath.Join("/tmp", entry.Name())
		var stat syscall.Stat_t
		err := syscall.Lstat(path, &stat)
		if errors.Is(err, syscall.ENOENT) || path == home {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if strconv.Itoa(int(stat.Uid)) == account.Uid {
			owned = append(owned, path)
		}
	}
	return owned
}

// The answer of an account's shell counts if it can be parsed.
func TestAnswered(t *testing.T) {
	f := facts{shell: "/bin/bash", real: "/usr/bin/bash"}
	sh := facts{shell: "/bin/sh", real: "/usr/bin/dash"}
	for _, tt := range []struct {
		f    facts
		text string
		want dialect
	}{
		{f, "noise\nsandboxd-shell=5.2=== \n", bash},
		{f, "sandboxd-shell==5.9==\n", zsh},
		{f, "sandboxd-shell===3.6=\n", ""},
		{sh, "sandboxd-shell===3.6=\n", ""},
		{f, "sandboxd-shell====\n", ""},
		{sh, "sandboxd-shell====\n", posix},
		{sh, "", posix},
		{f, "sandboxd-shell", bash},
		{facts{shell: "/bin/tcsh", real: "/bin/tcsh"}, "BASH_VERSION: Undefined variable.\n", ""},
	} {
		if got := tt.f.answered(tt.text); got != tt.want {
			t.Errorf("%s, %q: got %q, want %q", tt.f.shell, tt.text, got, tt.want)
		}
	}
}

// A write that ends the shell has been sent: the end of its terminal is not an error of the write.
func TestWriteEndsTheTerminal(t *testing.T) {
	term := &terminal{writes: make(chan write), done: make(chan struct{}),
		moved: make(chan struct{})}
	go func() {
		<-term.writes
		close(term.done)
	}()
	if n, err := term.Write([]byte("exit\r")); n != 5 || err != nil {
		t.Errorf("written as the terminal ends: got %d, %v", n, err)
	}
	if n, err := term.Write([]byte("exit\r")); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("written behind its end: got %d, %v; want 0, io.ErrClosedPipe", n, err)
	}
}
