package connect

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// The identification string is returned, and read again by the handshake.
func TestIdentify(t *testing.T) {
	for _, tt := range []struct{ name, sends, version, rest, says string }{
		{"openssh", "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\nkex", "SSH-2.0-OpenSSH_9.2p1 Debian-2",
			"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\nkex", ""},
		{"gateway", Identification + "\r\n", Identification, Identification + "\r\n", ""},
		{"no carriage return", "SSH-2.0-x\n", "SSH-2.0-x", "SSH-2.0-x\n", ""},
		{"lines in front", "hello\r\nSSH-2.0-sandboxd is not here\r\n",
			"SSH-2.0-sandboxd is not here", "SSH-2.0-sandboxd is not here\r\n", ""},
		{"not SSH", "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "", "", `"HTTP/1.1 400 Bad Request`},
		{"busy", "Exceeded MaxStartups\r\n", "", "", `it sent "Exceeded MaxStartups"`},
		{"silent", "", "", "", "closed the connection"},
		{"no end", "SSH-2.0-" + strings.Repeat("x", 300), "", "", "not an SSH server"},
		{"much", strings.Repeat("noise\n", 3000), "", "", "not an SSH server"},
		{"control characters", "\x1b[2Jrm\r\n", "", "", `"?[2Jrm"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = io.WriteString(far, tt.sends) // fails where the other side has heard enough
				far.Close()
			}()
			defer func() { <-sent }()
			defer near.Close()
			version, conn, err := Identify(t.Context(), near)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("got %q, %v, want an error that says %s", version, err, tt.says)
				}
				return
			}
			if err != nil || version != tt.version {
				t.Fatalf("got %q, %v, want %q", version, err, tt.version)
			}
			if rest, err := io.ReadAll(conn); err != nil || string(rest) != tt.rest {
				t.Errorf("read again: got %q, %v, want %q", rest, err, tt.rest)
			}
		})
	}
}

// A silent server cannot block beyond ctx.
func TestIdentifyCancel(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := Identify(ctx, near)
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}
