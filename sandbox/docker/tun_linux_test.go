package docker

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The device from the guest carries the sandbox's packets, also after the daemon was replaced. No
// process in the sandbox can make another device, change it or pass one.
func TestTunnel(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{Network: sandbox.NetworkFiltered})
	c := login(t, b, inst)
	for life := range 2 {
		tunnel, err := b.Tunnel(t.Context(), inst)
		if err != nil {
			t.Fatal(err)
		}
		r, err := unix.NewIfreq("")
		if err != nil {
			t.Fatal(err)
		}
		if err := onFile(tunnel.Device, func(fd int) error {
			return unix.IoctlIfreq(fd, unix.TUNGETIFF, r)
		}); err != nil {
			t.Fatalf("TUNGETIFF: %v", err)
		}
		if want := uint16(
			unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR); r.Name() != wire.TunName ||
			r.Uint16()&want != want {
			t.Errorf("got device %s with flags %#x, want %#x of them", r.Name(), r.Uint16(), want)
		}
		mustSh(t, c, "nslookup hello 192.0.2.1 >/dev/null 2>&1 &")
		from, to, payload := packet(t, tunnel.Device)
		if from.Addr() != netip.AddrFrom4(wire.TunGuest) ||
			to != netip.MustParseAddrPort("192.0.2.1:53") || !strings.Contains(payload, "hello") {
			t.Errorf("life %d: got %q from %v to %v", life, payload, from, to)
		}
		if life == 0 { // a new socket listens: the guest calls again
			tunnel.Hold.Close()
			tunnel.Device.Close()
			b.sockets.Shut(inst.ID)
			continue
		}
		defer tunnel.Device.Close()
		defer tunnel.Hold.Close()
		if got := mustSh(
			t, c,
			"cat /etc/resolv.conf; cat /sys/class/net/tun0/mtu; ip -4 addr show tun0"); !strings.Contains(got, "nameserver 100.64.0.1") ||
			!strings.Contains(got, "\n1500\n") || !strings.Contains(got, "inet 100.64.0.2/30") {
			t.Errorf("got %q", got)
		}
		for command, want := range map[string]string{
			"ip link set tun0 down":                "not permitted",
			"ip addr add 10.1.2.3/24 dev tun0":     "not permitted",
			"ip route add 10.0.0.0/8 dev lo":       "not permitted",
			"tunctl -t tun1":                       "not permitted",
			"unshare -rn true":                     "not permitted",
			"ls -l /proc/1/fd":                     "denied",
			"nc local:/.sandboxd/run/n </dev/null": "",
		} {
			if got, _ := sh(t, c, command+" 2>&1"); !strings.Contains(got, want) {
				t.Errorf("%s: got %q, want %q", command, got, want)
			}
		}
		if err := b.Destroy(t.Context(), inst); err != nil {
			t.Fatal(err)
		}
		if _, err := tunnel.Hold.Read(make([]byte, 1)); err == nil {
			t.Error("the connection outlives the guest")
		}
	}
	if _, err := b.Tunnel(t.Context(), inst); !errors.Is(err, sandbox.ErrGone) &&
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a sandbox that is gone: %v", err)
	}
}

// packet reads packets until one is UDP.
func packet(t *testing.T, device *os.File) (from, to netip.AddrPort, payload string) {
	t.Helper()
	const header = 10 // virtio_net_hdr
	b := make([]byte, header+65535)
	if err := device.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := device.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		ip := b[header:n]
		if len(ip) < 28 || ip[0] != 0x45 || ip[9] != unix.IPPROTO_UDP {
			continue
		}
		udp := ip[20:]
		port := func(i int) uint16 { return binary.BigEndian.Uint16(udp[i:]) }
		address := func(i int) netip.Addr { a, _ := netip.AddrFromSlice(ip[i : i+4]); return a }
		return netip.AddrPortFrom(address(12), port(0)), netip.AddrPortFrom(address(16), port(2)),
			string(udp[8:])
	}
}

func onFile(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = do(int(fd)) })
	return errors.Join(err, inner)
}
