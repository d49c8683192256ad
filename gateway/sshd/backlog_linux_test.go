package sshd

import (
	"bytes"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// A client that did not read for a while gets the current screen soon, not megabytes of older
// output first.
func TestBacklogOfAStoppedWatcher(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
	}}
	tcp, err := d.DialContext(t.Context(), "tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn := &stopped{Conn: tcp}
	defer conn.Close()
	sc, channels, requests, err := ssh.NewClientConn(conn, w.addr,
		&ssh.ClientConfig{User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(w.signer("alice"))},
			HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	c := ssh.NewClient(sc, channels, requests)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RequestPty("xterm-256color", 150, 400, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	// until reads up to a text, and returns the number of bytes.
	until := func(text string) (n int) {
		t.Helper()
		defer time.AfterFunc(time.Minute, func() { conn.Close() }).Stop()
		var end []byte
		for buf := make([]byte, 32<<10); ; {
			m, err := out.Read(buf)
			n += m
			if end = append(end[max(0, len(end)-100):], buf[:m]...); bytes.Contains(
				end, []byte(text)) {
				return n
			}
			if err != nil {
				t.Fatalf("%v while waiting for %q", err, text)
			}
		}
	}
	if _, err := io.WriteString(in, "echo its'-'size is $(stty size | tr ' ' -)\r"); err != nil {
		t.Fatal(err)
	}
	until("149-400")
	at := w.shared()
	goOn := conn.stop()
	defer goOn()
	// Different full screens, more than the kernel buffers. The text on the last one has no letter
	// of base64: cells that are already right are not redrawn, and would split the text.
	const (
		present = "_^_^_^_"
		frames  = `i=0; while [ $((i+=1)) -le 250 ]; do printf '\033[H'; head -c 60000 /dev/urandom | base64 -w 0 | head -c 59000; done; clear; echo _^_''^_^_`
	)
	if _, err := io.WriteString(in, frames+"\r"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is printed", func() bool {
		var tail [64]byte
		end := at.Live().Len()
		n, _ := at.Live().ReadAt(t.Context(), end-min(end, 64), tail[:])
		return bytes.Contains(tail[:n], []byte(present))
	})
	goOn()
	if got := until(present); got > 1<<20 {
		t.Errorf("%d bytes came before the present screen", got)
	}
}
