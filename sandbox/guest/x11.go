//go:build linux

package guest

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// x11Request is the payload of x11-req (RFC 4254, section 6.3.1).
type x11Request struct {
	Single   bool
	Protocol string
	Cookie   string
	Screen   uint32
}

// x11Origin is the payload of an x11 channel (section 6.3.2).
type x11Origin struct {
	Host string
	Port uint32
}

const (
	x11Base  = 6000
	x11First = 10 // lower display numbers are for servers, as with OpenSSH
	x11Last  = 99
)

// forwardX11 listens as an X11 display on the loopback and passes the client's cookie to xauth,
// without which the client would accept no program. It fails if the image has no xauth.
func (p *program) forwardX11(payload []byte) bool {
	var req x11Request
	if err := ssh.Unmarshal(payload, &req); err != nil || !plainWord(req.Protocol) ||
		!plainWord(req.Cookie) || req.Screen > 255 {
		return false
	}
	xauth := lookPath("xauth", p.environment(""), "/")
	if xauth == "" {
		p.g.log.Info("x11-req", "err", "the image has no xauth")
		return false
	}
	for display := x11First; display <= x11Last; display++ {
		listeners, _, err := p.g.listenTCP(p.c.ctx, "localhost", x11Base+display)
		if err != nil {
			continue
		}
		name := displayName(display, req.Screen)
		if err := p.addCookie(xauth, name, req); err != nil {
			p.g.log.Warn("x11-req", "err", err)
			for _, l := range listeners {
				l.Close()
			}
			return false
		}
		p.display = "localhost" + name
		p.cleanup = append(p.cleanup, func() {
			for _, l := range listeners {
				l.Close()
			}
		})
		for _, l := range listeners {
			if req.Single {
				l = &once{Listener: l}
			}
			p.c.listen(l, wire.ChannelX11, func(conn net.Conn) []byte {
				from := conn.RemoteAddr().(*net.TCPAddr)
				return ssh.Marshal(x11Origin{Host: from.IP.String(), Port: uint32(from.Port)})
			})
		}
		return true
	}
	return false
}

// displayName is the part of a display's name after the host.
func displayName(display int, screen uint32) string {
	return fmt.Sprintf(":%d.%d", display, screen)
}

// plainWord reports whether s is safe as a word of an xauth command line, by OpenSSH's test.
func plainWord(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte(".:/-_", c) >= 0) {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// addCookie stores the client's cookie for a display in the session user's Xauthority file.
func (p *program) addCookie(xauth, name string, req x11Request) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		w.Close()
		return err
	}
	defer null.Close()
	// On standard input: all processes in the sandbox can read arguments.
	_, err = fmt.Fprintf(w, "remove unix%s\nadd unix%s %s %s\n", name, name, req.Protocol,
		req.Cookie)
	w.Close()
	if err != nil {
		return err
	}
	proc, err := p.g.children.start(command{path: xauth, argv: []string{"xauth", "-q", "-"},
		env: p.environment(""),
		dir: p.account.Home, files: []uintptr{r.Fd(), null.Fd(), null.Fd()},
		account: p.g.credential(p.account)})
	if err != nil {
		return err
	}
	select {
	case <-proc.done:
		if proc.status != 0 {
			return fmt.Errorf("xauth ended with status %d", proc.status.ExitStatus())
		}
		return nil
	case <-time.After(5 * time.Second):
		_ = p.g.children.signal(proc, unix.SIGKILL) // ignores a process that ended meanwhile
		return fmt.Errorf("xauth did not end in time")
	}
}

// once is a listener for a single connection (x11-req's "single connection").
type once struct {
	net.Listener
	used atomic.Bool
}

// Accept returns one connection; the listener is closed with it.
func (o *once) Accept() (net.Conn, error) {
	conn, err := o.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if o.used.Swap(true) {
		conn.Close()
		return nil, net.ErrClosed
	}
	o.Listener.Close()
	return conn, nil
}
