package sshd

import (
	"net"
	"testing"
)

// Commands for clients on this machine may name its files.
func TestReached(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 2222} }
	for _, c := range []struct {
		name          string
		local, remote net.Addr
		want          string
	}{
		{"loopback", tcp("127.0.0.1"), tcp("127.0.0.1"), "invalid AddrPort"},
		{"IPv6 loopback", tcp("::1"), tcp("::1"), "invalid AddrPort"},
		{"the machine's own address", tcp("192.0.2.1"), tcp("192.0.2.1"), "invalid AddrPort"},
		{"another machine", tcp("192.0.2.1"), tcp("192.0.2.2"), "192.0.2.1:2222"},
		{"IPv4 in IPv6", tcp("::ffff:192.0.2.1"), tcp("::ffff:192.0.2.2"), "192.0.2.1:2222"},
		{"IPv6", tcp("2001:db8::1"), tcp("2001:db8::2"), "[2001:db8::1]:2222"},
		{"a socket", &net.UnixAddr{Name: "x"}, &net.UnixAddr{}, "invalid AddrPort"},
	} {
		if got := reached(c.local, c.remote).String(); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}
