package guest

import (
	"net"
	"os"
	"path/filepath"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// forwardAgent makes a socket for the programs of this channel that leads to the agent of this connection's client, and
// to nobody else's (auth-agent-req@openssh.com). The socket and its directory belong to the session user.
func (p *program) forwardAgent() bool {
	id := p.g.identity()
	var dir, path string
	err := id.do(func() (err error) {
		// 0700, a name nobody can guess or prepare.
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

// temp is the directory for sockets: /tmp, or where the image has none, any that is there.
func (g *Guest) temp() string {
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return "/"
}
