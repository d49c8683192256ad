//go:build linux

package guest

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Packet types of SFTP version 3 (draft-ietf-secsh-filexfer-02).
const (
	sftpInit     = 1
	sftpOpen     = 3
	sftpClose    = 4
	sftpRead     = 5
	sftpWrite    = 6
	sftpSetstat  = 9
	sftpOpendir  = 11
	sftpReaddir  = 12
	sftpRealpath = 16
	sftpStat     = 17
	sftpExtended = 200
)

// packet builds one SFTP packet: uint32 and uint64 in network order, strings with their length,
// bytes raw.
func packet(kind byte, fields ...any) []byte {
	body := []byte{kind}
	for _, f := range fields {
		switch f := f.(type) {
		case uint32:
			body = binary.BigEndian.AppendUint32(body, f)
		case uint64:
			body = binary.BigEndian.AppendUint64(body, f)
		case string:
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(f))), f...)
		case []byte:
			body = append(body, f...)
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// Hostile packets end the file server of their channel, or get an error. They do not affect PID 1,
// its sessions and other channels.
func TestSFTPHostile(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	held := openSession(t, s.dial(t), wire.Attach{Session: "main", Create: true, Party: alice},
		wire.Handler{})
	if err := os.WriteFile(filepath.Join(s.home, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(s.home, "loop")); err != nil {
		t.Fatal(err)
	}
	const most = 1<<32 - 1
	repeat := func(n int, p []byte) []byte { return []byte(strings.Repeat(string(p), n)) }
	for _, tt := range []struct {
		name string
		send []byte // after init
	}{
		{"256 MB", []byte("\x10\x00\x00\x00garbage")},
		{"4 GB", []byte("\xff\xff\xff\xffgarbage")},
		{"empty packet", []byte("\x00\x00\x00\x00")},
		{"truncated", packet(sftpOpen, uint32(1), "file")[:9]},
		{"type that is none", packet(99, uint32(1), "x")},
		{"init again", repeat(100, packet(sftpInit, uint32(most)))},
		{"without fields", []byte{0, 0, 0, 1, sftpOpen}},
		{"string longer than its packet", packet(sftpStat, uint32(1), uint32(most))},
		{"path of 64 KB", packet(sftpStat, uint32(1), strings.Repeat("../", 20000))},
		{"path with NUL", packet(sftpOpen, uint32(1), "file\x00../../etc/passwd", uint32(1), uint32(0))},
		{"path that is no UTF-8", packet(sftpRealpath, uint32(1), "\xff\xfe\x1b[2J\n")},
		{"symlink loop", packet(sftpOpen, uint32(1), "loop", uint32(1), uint32(0))},
		{"handles that are none", append(packet(sftpRead, uint32(1), "no", uint64(0), uint32(10)), packet(sftpReaddir, uint32(2), strings.Repeat("h", 100000))...)},
		{"read of 4 GB at the end of the world",
			append(packet(sftpOpen, uint32(1), "file", uint32(1), uint32(0)),
				repeat(50, packet(sftpRead, uint32(2), "0", uint64(1<<64-1), uint32(most)))...)},
		{"read of 4 GB", append(packet(sftpOpen, uint32(1), "/dev/zero", uint32(1), uint32(0)),
			repeat(50, packet(sftpRead, uint32(2), "0", uint64(0), uint32(most)))...)},
		{"write past every file", append(
			packet(sftpOpen, uint32(1), "new", uint32(0x1a), uint32(0)),
			packet(sftpWrite, uint32(2), "0", uint64(1<<63), "x")...)},
		{"one request-id for all", append(repeat(500, packet(sftpOpendir, uint32(7), ".")), repeat(500, packet(sftpClose, uint32(7), "0"))...)},
		{"10,000 handles", repeat(10000, packet(sftpOpen, uint32(1), "file", uint32(1), uint32(0)))},
		{"attributes that lie", packet(sftpSetstat, uint32(1), "file", uint32(0x80000000), uint32(most))},
		{"extension that is none", packet(sftpExtended, uint32(1), strings.Repeat("x@example.com", 1000), "payload")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ch, reqs, err := client.OpenChannel(wire.ChannelSession, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ch.Close()
			ended := make(chan struct{})
			go func() { ssh.DiscardRequests(reqs); close(ended) }()
			if ok, err := ch.SendRequest(wire.RequestSubsystem, true,
				wire.Marshal(wire.Subsystem{Name: wire.SubsystemSFTP})); !ok || err != nil {
				t.Fatalf("subsystem: %v, %v", ok, err)
			}
			answers := make(chan int64, 1)
			go func() {
				n, _ := io.Copy(io.Discard, ch)
				answers <- n
			}()
			if _, err := ch.Write(packet(sftpInit, uint32(3))); err != nil {
				t.Fatal(err)
			}
			_, _ = ch.Write(tt.send) // fails if the server has ended
			_ = ch.CloseWrite()
			select {
			case <-ended:
			case <-time.After(2 * time.Minute):
				t.Fatal("the file server goes on after the end of its input")
			}
			if n := <-answers; n > 64<<20 {
				t.Errorf("%d bytes of answers", n)
			}
			if got := execute(t, client, "echo fine", ""); got.Out != "fine\n" {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
	if r := ask(t, held, wire.Request{Verb: wire.VerbRun,
		Text: "echo here"}); r.Output != "here\n" {
		t.Errorf("the session afterwards: %+v", r)
	}
	if got, err := os.ReadFile(filepath.Join(s.home, "file")); err != nil ||
		string(got) != "content" {
		t.Errorf("the file afterwards: %q, %v", got, err)
	}
}
