package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/pty"
)

// evils are bytes that must not reach a terminal: a clipboard, a title, a link, queries, a reset,
// 8-bit controls, a private mode, a picture, a change of direction, a bell.
var evils = []string{"\x1b]52;c;aGk=", "\x1b]0;title", "\x1b]8;;http", "\x1b[5n", "\x1b[c",
	"\x1b[>q", "\x1bP+q", "\x1bc", "\u009b", "\x9b", "\x1b[21t",
	"\x1b[?1001h", "\x1b_G", "\u202e", "\x07"}

const (
	evilOut = "first \x1b]52;c;aGk=\x07\x1b]0;title\x1b\\\x1b]8;;http://x.test\x1b\\" +
		"\x1b[5n\x1b[c\x1b[>q\x1bP+q544e\x1b\\\x1bc\u009b5n\x9b5n" +
		"\x1b[21t\x1b[?1001h\x1b_Ga=q;\x1b\\\u202e\x07 last\r\n"
	evilErr = "beside " + evilOut
)

// hostileServer is a gateway that prints evilOut and evilErr for every command, and exits with 3.
type hostileServer struct {
	address string
	home    string // of a client that trusts it
	answer  func(line string) string
}

func newHostileServer(t *testing.T, answer func(line string) string) *hostileServer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	host, err := ssh.NewSignerFromKey(key)
	must(t, err)
	config := &ssh.ServerConfig{ServerVersion: connect.Identification,
		BannerCallback: func(ssh.ConnMetadata) string {
			return evilErr
		},
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			return nil, nil
		}}
	config.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &hostileServer{address: l.Addr().String(), home: t.TempDir(), answer: answer}
	must(t, os.MkdirAll(filepath.Join(s.home, ".ssh"), 0o700))
	block, err := ssh.MarshalPrivateKey(key, "")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.home, ".ssh", "id_ed25519"), pem.EncodeToMemory(block),
		0o600))
	line := knownhosts.Line([]string{s.address}, host.PublicKey())
	must(t, os.WriteFile(filepath.Join(s.home, ".ssh", "known_hosts"), []byte(line+"\n"), 0o600))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(conn, config) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *hostileServer) serve(nc net.Conn, config *ssh.ServerConfig) {
	defer nc.Close()
	_, chans, reqs, err := ssh.NewServerConn(nc, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs) // until the connection ends
	for nch := range chans {
		if nch.ChannelType() != "session" {
			_ = nch.Reject(ssh.Prohibited, evilErr)
			continue
		}
		ch, reqs, err := nch.Accept()
		if err != nil {
			return
		}
		for req := range reqs {
			_ = req.Reply(true, nil)
			if req.Type != "exec" && req.Type != "subsystem" {
				continue
			}
			var line struct{ Command string }
			_ = ssh.Unmarshal(req.Payload, &line)
			_, _ = io.WriteString(ch, s.answer(line.Command))
			_, _ = io.WriteString(ch.Stderr(), evilErr)
			_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{3}))
			ch.Close()
		}
	}
}

// command returns the command line tool, configured for the server.
func (s *hostileServer) command(ctx context.Context, args ...string) *exec.Cmd {
	self, _ := os.Executable()
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = append([]string{"sandboxd", "--gateway", "ssh://" + s.address, "--state",
		filepath.Join(s.home, "state")}, args...)
	cmd.Dir = s.home
	cmd.Env = []string{"HOME=" + s.home, "PATH=" + s.home + ":" + os.Getenv("PATH"),
		"TERM=xterm-256color"}
	return cmd
}

// onTerminal returns what a terminal receives while the command line tool runs on it.
func (s *hostileServer) onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tty, err := pty.StartWithSize(s.command(ctx, args...), &pty.Winsize{Rows: 24, Cols: 80})
	must(t, err)
	defer tty.Close()
	all, _ := io.ReadAll(tty) // the last error: the other end is closed
	if ctx.Err() != nil {
		t.Errorf("%s: it does not end; got %q", strings.Join(args, " "), all)
	}
	return string(all)
}

// hostileCalls are calls of every command that the daemon runs.
var hostileCalls = map[string][][]string{
	"add":   {{"web", "ssh://x.test"}, {"web", "ssh://x.test", "--json"}},
	"allow": {{"web", "a.test"}}, "describe": {{"web"}, {"web", "--json"}},
	"fork": {{"web", "two"}},
	"ls":   {{}, {"--json"}, {"--watch"}}, "new": {{"web"}, {"web", "--host", "ssh://x.test"}},
	"pause": {{"web"}}, "pool": {{}}, "quota": {{}}, "rescue": {{"web"}},
	"resume": {{"web"}}, "rm": {{"web"}}, "snapshot": {{"web"}}, "start": {{"web"}},
	"stop": {{"web"}}, "exec": {{"web", "true"}, {"-i", "web", "true"}},
	"interrupt": {{"web"}}, "keys": {{"web", "q"}},
	"python": {{"-n", "web", "-c", "1"}, {"-n", "web", "-c", "1", "--json"},
		{"-n", "web", "-c", "1", "--images", "none"}},
	"run": {{"-n", "web", "true"}, {"-n", "web", "--json", "true"}}, "screen": {{"web"}},
	"type": {{"web", "y"}}, "wait": {{"web"}}, "give": {{"web"}},
	"kick": {{"web", "person:x"}}, "page": {{}}, "private": {{"web", "on"}},
	"sessions": {{}, {"web", "--json"}}, "share": {{"web", "bob"}}, "take": {{"web"}},
	"token new": {{}}, "token ls": {{}}, "token rm": {{"x"}}, "unshare": {{"web", "bob"}},
	"watch": {{"web"}}, "log": {{"web"}, {"web", "--raw"}},
	"replay": {{"web"}, {"web", "--cast"}}, "secret ls": {{}, {"--json"}}, "secret rm": {{"api"}},
	"secret set": {{"api", "--host", "a.test", "--header", "X-Api-Key: {}", "--from-cmd", "true"}},
}

// No command passes control sequences of a server on to the user's terminal.
func TestHostileServer(t *testing.T) {
	lines, err := json.Marshal(command.PythonLine{Output: &python.Output{Type: python.Stdout,
		Chars: evilOut}})
	must(t, err)
	s := newHostileServer(t, func(line string) string {
		if strings.Contains(line, "--json-lines") {
			return string(lines) + "\n"
		}
		return evilOut
	})
	for _, words := range tableOf((&cli{}).tree(), nil) {
		name := strings.Join(words, " ")
		if len(hostileCalls[name]) == 0 {
			t.Errorf("%s: no call of it is tried", name)
		}
		for _, args := range hostileCalls[name] {
			args = append(words[:len(words):len(words)], args...)
			t.Run(strings.Join(args, " "), func(t *testing.T) {
				t.Parallel()
				got := s.onTerminal(t, args...)
				isSafe(t, got)
				if !strings.Contains(got, "last") || !strings.Contains(got, "beside") {
					t.Errorf("the terminal did not get the text: %q", got)
				}
			})
		}
	}
}

// isSafe fails t if got contains any of evils.
func isSafe(t *testing.T, got string) {
	t.Helper()
	for _, evil := range evils {
		if strings.Contains(got, evil) {
			t.Errorf("the terminal got %q in %q", evil, got)
		}
	}
}

// tableOf returns the commands of the daemon, by their path.
func tableOf(cmd *cobra.Command, words []string) (all [][]string) {
	for _, c := range cmd.Commands() {
		switch {
		case c.GroupID == "machine" || c.Hidden || len(words) == 0 &&
			slices.Contains([]string{"cp", "ssh", "up"}, c.Name()):
		case c.HasSubCommands():
			all = append(all, tableOf(c, append(words[:len(words):len(words)], c.Name()))...)
		default:
			all = append(all, append(words[:len(words):len(words)], c.Name()))
		}
	}
	return all
}

// exec -t passes the program's bytes on, and restores the terminal afterwards.
func TestHostileServerExecOnTerminal(t *testing.T) {
	s := newHostileServer(t, func(string) string { return evilOut })
	got := s.onTerminal(t, "exec", "-t", "web", "true")
	if !strings.Contains(got, evilOut) {
		t.Errorf("got %q", got)
	}
	s = newHostileServer(t, func(string) string {
		return "\x1b[?1049h\x1b[1;2r\x1b[?1003h\x1b[?25lhello"
	})
	if got := s.onTerminal(t, "watch", "web"); !strings.Contains(got, "hello") ||
		!strings.HasSuffix(got, "\x1b[m\x1b7\x1b[r\x1b8\x1b[m\x1b[?1003l\x1b[?1049l\x1b[?25h") {
		t.Errorf("got %q", got)
	}
}

// A pipe or a file receives the bytes unchanged.
func TestHostileServerWithoutTerminal(t *testing.T) {
	s := newHostileServer(t, func(string) string { return evilOut })
	for _, args := range [][]string{{"exec", "web", "true"}, {"log", "web", "--raw"}, {"ls"},
		{"ls", "--json"}, {"describe", "web"}, {"run", "-n", "web", "true"},
		{"replay", "web", "--cast"}} {
		cmd := s.command(t.Context(), args...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		exit, _ := errors.AsType[*exec.ExitError](cmd.Run())
		if exit == nil || exit.ExitCode() != 3 || out.String() != evilOut ||
			said.String() != evilErr {
			t.Errorf("%s: %v, got %q and %q", args, exit, out.String(), said.String())
		}
	}
}

// Local commands that use the daemon are safe, too: cp with scp, port, and completion of names.
func TestHostileServerLocalCommands(t *testing.T) {
	s := newHostileServer(t, func(line string) string {
		if strings.HasPrefix(line, "ls") {
			return `{"name":"web"}` + "\n" + `{"name":"web\u001b]0;title\u0007"}` + "\n"
		}
		return evilOut
	})
	// ssh(1) takes the home directory from the user database, not from $HOME.
	scp, err := exec.LookPath("scp")
	must(t, err)
	// #nosec G306 -- a program
	must(t, os.WriteFile(filepath.Join(s.home, "scp"),
		[]byte(
			"#!/bin/sh\nexec "+scp+
				` -o UserKnownHostsFile="$HOME/.ssh/known_hosts" -i "$HOME/.ssh/id_ed25519" "$@"`+
				"\n"), 0o700))
	got := s.onTerminal(t, "cp", "web:/x", ".")
	isSafe(t, got)
	if !strings.Contains(got, "beside") {
		t.Errorf("cp: got %q", got)
	}
	isSafe(t, s.onTerminal(t, "port", "web", "80"))
	isSafe(t, s.onTerminal(t, "conformance", "web", "--tier", "full", "--group", "waiting"))
	isSafe(t, s.onTerminal(t, "conformance", "capture", "web", "--is", "working", "-o", "-"))
	isSafe(t, s.onTerminal(t, "cp", "sandbox:/x", "."))
	var exit *exec.ExitError
	for _, words := range [][]string{{"rm", ""}, {"log", "web~"}, {"new", "--image", ""}} {
		out, err := s.command(t.Context(), append([]string{"__complete"}, words...)...).Output()
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		isSafe(t, string(out))
	}
}

// The size of a held answer is limited, and a longer one ends the call.
func TestAnswersAreBounded(t *testing.T) {
	for what, w := range map[string]func(stop func(error)) io.Writer{
		"answer": func(stop func(error)) io.Writer { return &held{most: 1 << 20, stop: stop} },
		"line":   func(stop func(error)) io.Writer { return &lines{most: 1 << 20, stop: stop} },
	} {
		var stopped error
		n, err := io.Copy(struct{ io.Writer }{w(func(err error) {
			stopped = err
		})}, io.LimitReader(endless{}, 1<<30))
		if n > 1<<20 || err == nil || !errors.Is(err, stopped) ||
			!strings.Contains(err.Error(), "longer than 1 MiB") {
			t.Errorf("%s: %d bytes, %v, stopped with %v", what, n, err, stopped)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
