//go:build linux

package guest

import (
	"net"
	"os"
	"path/filepath"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// forwardAgent makes a socket for the programs of this channel. It leads to the agent of this
// connection's client only (auth-agent-req@openssh.com). The socket and its directory belong to the
// session user.
func (p *program) forwardAgent() bool {
	id := p.g.identity()
	var dir, path string
	err := id.do(func() (err error) {
		// Mode 0700, and a name that others can neither guess nor create first.
		if dir, err = os.MkdirTemp(p.g.temp(), "ssh-"); err != nil {
			return err
		}
		path = filepath.Join(dir, "agent")
		return nil
	})
	if err != nil {
		p.g.log.Warn("agent forwarding", "err", err)
		return false
	}
	l, remove, err := listenUnix(id, path)
	if err != nil {
		p.g.log.Warn("agent forwarding", "err", err)
		_ = id.do(func() error { return os.Remove(dir) })
		return false
	}
	p.agent = path
	p.cleanup = append(p.cleanup, func() {
		l.Close()
		remove()
		_ = id.do(func() error { return os.Remove(dir) })
	})
	p.c.listen(l, wire.ChannelAgent, func(net.Conn) []byte { return nil })
	return true
}

// temp is the directory for sockets: /tmp, or another one if the image has none.
func (g *Guest) temp() string {
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return "/"
}
