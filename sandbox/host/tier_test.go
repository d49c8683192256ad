package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gliderssh "github.com/gliderlabs/ssh"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Without the guest, bash still reports its prompt and exit codes.
func TestMarks(t *testing.T) {
	p := openSSH(t, settings{noSFTP: true, lines: []string{"MaxSessions 2"},
		rc: "echo noise; PS1='rc> '\n"})
	b := newBackend(t)
	c := dialSessions(t, b, boot(t, b, p.spec(t)), TierMarks)
	if _, why := c.Tier(); !strings.Contains(why, "no SFTP") {
		t.Errorf("why: %q does not say that there is no SFTP", why)
	}
	client := attach(t, c, "main", wire.Start{})
	for _, tt := range []struct{ command, output, exit string }{
		{"echo hello; (exit 7)", "hello\n", "7"},
		{"echo $?", "7\n", "0"},
		{"for i in 1 2; do\n\techo \"$i \\\\ ü\"\ndone", "1 \\ ü\n2 \\ ü\n", "0"},
		{".\n", "", ""}, // bash prints its own usage of .
		{"echo " + strings.Repeat("long ", 2000) + "| wc -c", "10000\n", "0"},
		{"stty -a | grep -ow -- '-\\?echo'", "echo\n", "0"},
		{"cat <<'E'\n.\n%s\\n\nE", ".\n%s\\n\n", "0"},
		{"tty >/dev/null && test -t 0 && echo terminal", "terminal\n", "0"},
		{"set -euo pipefail", "", "0"},
		{"echo strict", "strict\n", "0"},
		{"set +euo pipefail", "", "0"},
	} {
		res := run(t, client, tt.command)
		if tt.exit == "" {
			continue
		}
		if res.Output != tt.output || exitCode(res) != tt.exit ||
			!slices.Equal(res.Basis, []wire.Basis{wire.BasisMark}) {
			t.Errorf("run %.40q: got %.80q, %s, basis %v; want %q, %s, mark", tt.command,
				res.Output, exitCode(res), res.Basis, tt.output, tt.exit)
		}
	}
	if res := do(t, client, wire.Request{Verb: wire.VerbRun,
		Text: "read -p 'name? ' x"}); res.Ended != wire.Attention || res.Prompt != "name?" &&
		res.Prompt != "name? " {
		t.Errorf("read: got %+v, want attention", res)
	}
	if res := do(t, client, wire.Request{Verb: wire.VerbType,
		Text: "bob"}); res.Ended != wire.Done {
		t.Errorf("type: got %+v, want done", res)
	}
	second := attach(t, c, "second", wire.Start{})
	if res := run(t, second, "echo other"); res.Output != "other\n" {
		t.Errorf("a second session: got %q", res.Output)
	}
}

// No other process can read the secret of the marks.
func TestMarksKeepTheirSecret(t *testing.T) {
	p := openSSH(t, settings{noSFTP: true})
	b := newBackend(t)
	inst := boot(t, b, p.spec(t))
	c := dialSessions(t, b, inst, TierMarks)
	client := attach(t, c, "main", wire.Start{})
	res := run(t, client, `printf %s "$__sbx_k"`) // the shell itself has the secret
	secret := strings.TrimSpace(res.Output)
	if len(secret) < 20 {
		t.Fatalf("got %q, want the secret", secret)
	}
	if res := run(t, client, "env"); strings.Contains(res.Output, secret) {
		t.Error("it is in the environment of commands")
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	environ, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range append(files, environ...) {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), secret) {
			t.Errorf("it is in %s", file)
		}
	}
	for _, name := range leftIn(t, p.home) {
		if text, err := os.ReadFile(filepath.Join(p.home, name)); err == nil &&
			strings.Contains(string(text), secret) {
			t.Errorf("it is in %s", name)
		}
	}
}

// The reason says why the guest cannot run.
func TestWhyNoGuest(t *testing.T) {
	mount := func(options string) func(t *testing.T) settings {
		return func(t *testing.T) settings {
			needRoot(t, "mounting")
			dir := shortDir(t)
			if text, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs",
				dir).CombinedOutput(); err != nil {
				t.Fatalf("mount: %v: %s", err, text)
			}
			t.Cleanup(func() {
				if text, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
					t.Errorf("umount: %v: %s", err, text)
				}
			})
			return settings{home: dir}
		}
	}
	for _, tt := range []struct {
		name string
		at   func(t *testing.T) settings
		want string
	}{
		{"noexec", mount("noexec"), "noexec"},
		{"full", mount("size=1m"), "check for a full disk"},
		{"no SFTP", func(*testing.T) settings { return settings{noSFTP: true} }, "no SFTP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := openSSH(t, tt.at(t))
			b := newBackend(t)
			inst := boot(t, b, p.spec(t))
			c := dialSessions(t, b, inst, TierMarks)
			if _, why := c.Tier(); !strings.Contains(why, tt.want) {
				t.Errorf("why: %q does not say %q", why, tt.want)
			}
			if left := leftIn(t, p.home); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
			spec := p.spec(t)
			spec.Host.Tier = TierGuest
			if _, err := b.Boot(timeout(t), spec); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("tier guest asked for: got %v, want an error that says %q", err, tt.want)
			}
		})
	}
	t.Run("noexec, with a place elsewhere", func(t *testing.T) {
		s := mount("noexec")(t)
		elsewhere := shortDir(t)
		s.env = "XDG_RUNTIME_DIR=" + elsewhere
		p := openSSH(t, s)
		b := newBackend(t)
		inst := boot(t, b, p.spec(t))
		run(t, attach(t, dialSessions(t, b, inst, TierGuest), "main", wire.Start{}), "true")
		if err := b.Destroy(timeout(t), inst); err != nil {
			t.Fatal(err)
		}
		if left := append(leftIn(t, p.home), leftIn(t, elsewhere)...); len(left) > 0 &&
			!slices.Equal(left, []string{".bash_history"}) {
			t.Errorf("files are left: %v", left)
		}
	})
	t.Run("architecture", func(t *testing.T) {
		p := openSSH(t, settings{})
		b := New(Options{Guest: func(arch string) (string, error) {
			return "", fmt.Errorf("there is no guest for %s", arch)
		}})
		defer b.Close()
		c := dialSessions(t, b, boot(t, b, p.spec(t)), TierMarks)
		if _, why := c.Tier(); !strings.Contains(why, "there is no guest for") {
			t.Errorf("why: %q", why)
		}
	})
}

// An account that runs one fixed program: its prompt is on the screen.
func TestForcedCommand(t *testing.T) {
	dir := t.TempDir()
	menu := filepath.Join(dir, "menu")
	put(
		t, menu,
		"#!/bin/sh\nwhile printf 'menu? '; read -r x; do case $x in quit) exit 3;; *) echo \"you "+
			"said $x\";; esac; done\n")
	if err := os.Chmod(menu, 0o755); err != nil {
		t.Fatal(err)
	}
	p := openSSH(t, settings{lines: []string{"ForceCommand " + menu}})
	b := newBackend(t)
	spec := p.spec(t)
	spec.Host.Prompt = `menu\?`
	c := dialSessions(t, b, boot(t, b, spec), TierScreen)
	client := attach(t, c, "main", wire.Start{})
	res := run(t, client, "list")
	if res.Output != "you said list\n" || res.ExitCode != nil ||
		!slices.Equal(res.Basis, []wire.Basis{wire.BasisScreen}) {
		t.Errorf("run: got %q, %s, basis %v; want by the screen, without an exit code", res.Output,
			exitCode(res), res.Basis)
	}
	if res := do(t, client, wire.Request{Verb: wire.VerbRun,
		Text: "quit"}); res.Ended != wire.Dead || exitCode(res) != "3" {
		t.Errorf("quit: got %s, %s, error %v; want dead, 3", res.Ended, exitCode(res), res.Error)
	}
}

// router is a server that behaves like network equipment: a terminal with its own shell, and
// nothing else.
func router(t *testing.T) *peer {
	t.Helper()
	dir := t.TempDir()
	p := &peer{dir: dir, user: "admin", identity: filepath.Join(dir, "id")}
	p.host = keyPair(t, filepath.Join(dir, "host"))
	login := keyPair(t, p.identity)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, p.port, _ = net.SplitHostPort(l.Addr().String())
	server := &gliderssh.Server{
		Handler: func(s gliderssh.Session) {
			if _, _, isPty := s.Pty(); !isPty || s.RawCommand() != "" {
				io.WriteString(s, "% Invalid input\n")
				_ = s.Exit(1)
				return
			}
			cli := term.NewTerminal(s, "core-sw1>")
			fmt.Fprintln(cli, "Welcome to core-sw1")
			for {
				line, err := cli.ReadLine()
				switch {
				case err != nil || line == "exit":
					return
				case line == "enable":
					cli.SetPrompt("core-sw1#")
				case strings.HasPrefix(line, "show "):
					fmt.Fprintf(cli, "%s: 42\n", strings.TrimPrefix(line, "show "))
				case line != "":
					fmt.Fprintln(cli, "% Unknown command")
				}
			}
		},
		PublicKeyHandler: func(_ gliderssh.Context, key gliderssh.PublicKey) bool {
			return gliderssh.KeysEqual(key, login.PublicKey())
		},
	}
	server.AddHostKey(p.host)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return p
}

// Network equipment: no commands, no files, a prompt without a description.
func TestRouter(t *testing.T) {
	p := router(t)
	b := newBackend(t)
	c := dialSessions(t, b, boot(t, b, p.spec(t)), TierScreen)
	client := attach(t, c, "main", wire.Start{})
	for _, tt := range []struct{ command, output string }{
		{"show version", "version: 42\n"}, {"enable", ""}, {"show uptime", "uptime: 42\n"}, {"reload", "% Unknown command\n"},
	} {
		res := run(t, client, tt.command)
		if res.Output != tt.output || res.ExitCode != nil {
			t.Errorf("run %q: got %q, %s; want %q, unknown", tt.command, res.Output, exitCode(res),
				tt.output)
		}
	}
	// The router itself denies exec, files and other requests.
	peer, err := b.Dial(timeout(t), boot(t, b, p.spec(t)))
	if err != nil {
		t.Fatal(err)
	}
	peer.Conn.Close()
}

// A lost connection ends the sessions in this process and reports it; they can be started again.
func TestLinkBreaks(t *testing.T) {
	p := openSSH(t, settings{noSFTP: true})
	b := newBackend(t)
	inst := boot(t, b, p.spec(t))
	c := dialSessions(t, b, inst, TierMarks)
	client := attach(t, c, "main", wire.Start{})
	run(t, client, "x=lost")
	// The processes of this connection end, as if the network were lost.
	for _, pid := range children(t, p.pid) {
		_ = exec.Command("kill", "-9", pid).Run()
	}
	select {
	case <-c.Done():
	case <-timeout(t).Done():
		t.Fatal("the end of the connection is not noticed")
	}
	c = dialSessions(t, b, inst, TierMarks)
	s, err := c.OpenStream(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	list, err := wire.Open(timeout(t), s, wire.Attach{}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	reply, err := list.Request(timeout(t), wire.Request{Verb: wire.VerbList})
	if err != nil || len(reply.Sessions) != 1 || reply.Sessions[0].State.Phase != wire.PhaseDead ||
		reply.Sessions[0].State.Reason != "link" {
		t.Fatalf("list: got %+v, %v; want main dead by its link", reply.Sessions, err)
	}
	client = attach(t, c, "main", wire.Start{})
	res := run(t, client, `echo "<$x>"`)
	if res.Output != "<>\n" || !slices.Contains(res.Notes, "shell_restarted") {
		t.Errorf("got %q, notes %v; want a new shell", res.Output, res.Notes)
	}
}

// children returns the processes below the listening server.
func children(t *testing.T, pid int) []string {
	t.Helper()
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(pid)).Output()
	var none *exec.ExitError
	if err != nil && (!errors.As(err, &none) || none.ExitCode() != 1) {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// When a link is cut during a command the caller immediately gets an error of the connection. In
// tier guest the command continues and nothing is lost; in the others it ends with its terminal.
// After the removal of the sandbox nothing of ours is left.
func TestLinkCutInCommand(t *testing.T) {
	for _, tier := range []string{TierGuest, TierMarks, TierScreen} {
		t.Run(tier, func(t *testing.T) {
			p := openSSH(t, settings{rc: "PS1='$ '\n"})
			b := newBackend(t)
			spec := p.spec(t)
			spec.Host.Tier = tier
			inst := boot(t, b, spec)
			c := dialSessions(t, b, inst, tier)
			client := attach(t, c, "main", wire.Start{})
			run(t, client, "cd; x=kept")
			answered := make(chan error, 1)
			go func() {
				_, err := client.Request(
					timeout(t), wire.Request{Verb: wire.VerbRun, Op: wire.NewOp(),
						TimeoutMS: patience.Milliseconds(),
						Text: "touch started; until [ -e " + p.home +
							"/go ]; do sleep 0.1; done; echo over >done; y=done"})
				answered <- err
			}()
			until(t, "the command runs",
				func() bool { _, err := os.Stat(p.home + "/started"); return err == nil })
			cut := time.Now()
			for _, pid := range children(t, p.pid) {
				// For a user other than root a child process has the connection.
				// Exit status 1 means none.
				inner, _ := exec.Command("pgrep", "-P", pid, "-x", "sshd").Output()
				for _, pid := range append([]string{pid}, strings.Fields(string(inner))...) {
					_ = exec.Command("kill", "-9", pid).Run()
				}
			}
			select {
			case err := <-answered:
				t.Logf("the caller got the error after %v: %v",
					time.Since(cut).Round(time.Millisecond), err)
				if err == nil {
					t.Error("the caller got no error")
				}
			case <-timeout(t).Done():
				t.Fatal("the caller hangs")
			}
			<-c.Done()
			if tier != TierGuest {
				until(t, "the command has ended with its terminal",
					func() bool { return len(waiting(t, p.home)) == 0 })
			}
			put(t, p.home+"/go", "")
			c = dialSessions(t, b, inst, tier)
			client = attach(t, c, "main", wire.Start{})
			want := ""
			if tier == TierGuest {
				until(t, "the command is over",
					func() bool { _, err := os.Stat(p.home + "/done"); return err == nil })
				want = "kept done"
				until(t, "the shell is at its prompt", func() bool {
					reply, err := client.Request(timeout(t), wire.Request{Verb: wire.VerbList})
					return err == nil && len(reply.Sessions) == 1 &&
						reply.Sessions[0].State.Phase == wire.PhasePrompt
				})
			}
			if res := run(t, client, `echo "$x $y"`); strings.TrimSpace(res.Output) != want {
				t.Errorf("afterwards: got %q, want %q", res.Output, want)
			}
			c.Close()
			if err := b.Destroy(timeout(t), inst); err != nil {
				t.Fatal(err)
			}
			until(t, "no process of ours is left",
				func() bool { return len(ours(t, p.home)) == 0 && len(children(t, p.pid)) == 0 })
			for _, left := range leftIn(t, p.home) {
				if !slices.Contains([]string{".bashrc", ".bash_history", "started", "go", "done"},
					left) {
					t.Errorf("left: %s", left)
				}
			}
		})
	}
}

// waiting returns the shells whose directory is dir.
func waiting(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range all {
		if to, err := os.Readlink(link); err == nil && to == dir {
			found = append(found, link)
		}
	}
	return found
}
