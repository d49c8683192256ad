package sshd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An answer to an SFTP client that is not SFTP is reported once. SFTP is not.
func TestGreeting(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pieces []string
		want   string
	}{
		{"SFTP", []string{"\x00\x00\x00\x05\x02\x00\x00\x00\x03", "\x00\x00\x00\x05\x65"}, ""},
		{"in pieces", []string{"\x00", "\x00\x00", "\x05\x02"}, ""},
		{"nothing", nil, ""},
		{"a forced command", []string{"sorry, no shell\n", "and more"}, "sorry, no shell"},
		{"in pieces", []string{"no", "pe, nothing"}, "nope, nothing"},
		{"another message", []string{"\x00\x00\x00\x05\x65\x00"}, "not an SFTP answer"},
		{"too long", []string{"\x7f\x00\x00\x05\x02\x00"}, "not an SFTP answer"},
	} {
		var said []string
		g := &greeting{say: func(line string) { said = append(said, line) }}
		for _, p := range tt.pieces {
			if n, err := g.Write([]byte(p)); n != len(p) || err != nil {
				t.Errorf("%s: Write = %d, %v", tt.name, n, err)
			}
		}
		if got := strings.Join(said, "|"); tt.want == "" && got != "" ||
			!strings.Contains(got, tt.want) || len(said) > 1 {
			t.Errorf("%s: said %q, want %q", tt.name, got, tt.want)
		}
	}
}

// shell serves a session channel as a machine with a shell and no SFTP does.
func shell(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer ssh.DiscardRequests(reqs)
	defer ch.Close()
	for q := range reqs {
		var e wire.Exec
		if q.Type != wire.RequestExec || wire.Unmarshal(q.Payload, &e) != nil {
			_ = q.Reply(false, nil)
			continue
		}
		_ = q.Reply(true, nil)
		cmd := exec.Command("sh", "-c", e.Command)
		cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		status := 255
		if err == nil {
			go func() { // ends with the channel
				_, _ = io.Copy(in, ch)
				_ = in.Close()
			}()
			_ = cmd.Wait()
			status = cmd.ProcessState.ExitCode()
		}
		_, _ = ch.SendRequest(wire.RequestExitStatus, false, exitStatus(uint32(status)))
		return
	}
}

// Files are copied to and from a machine without SFTP by commands.
func TestFilesByCommands(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(sessions(shell))
	c, err := sftp.NewClient(w.dial("alice", "demo"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dir := t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcdef"), 50_000)
	f, err := c.Create(dir + "/file")
	if err == nil {
		_, err = f.Write(content)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "/file"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("on the machine: %d bytes, %v", len(got), err)
	}
	if f, err = c.Open(dir + "/file"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
		t.Errorf("read: %d bytes, %v", len(got), err)
	}
	if _, err := c.Open(dir + "/nothing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
}
