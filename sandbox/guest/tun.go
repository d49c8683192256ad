//go:build linux

package guest

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// openTun makes the network device of a sandbox whose packets the daemon carries (tun(4)): its
// address, its size, and the default route through it. It returns -1 if this process may not: then
// the sandbox has no network, or another one.
//
// Until passTun has passed the device to the daemon, the kernel queues some packets.
func openTun() (int, error) {
	_, sets, err := ownCapabilities()
	if err != nil {
		return -1, err
	}
	if sets[0].Permitted&(1<<unix.CAP_NET_ADMIN) == 0 {
		return -1, nil
	}
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := setUpTun(tun); err != nil {
		unix.Close(tun)
		return -1, fmt.Errorf("network device: %w", err)
	}
	return tun, nil
}

func setUpTun(tun int) error {
	r, err := unix.NewIfreq(wire.TunName)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, r); err != nil {
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	if err := unix.IoctlSetInt(tun, unix.TUNSETOFFLOAD,
		unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		return fmt.Errorf("TUNSETOFFLOAD: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	for _, set := range []struct {
		what    uint
		name    string
		address [4]byte
		number  uint16
	}{
		{unix.SIOCSIFADDR, "address", wire.TunGuest, 0},
		{unix.SIOCSIFNETMASK, "netmask", wire.TunMask, 0},
		{unix.SIOCSIFMTU, "MTU", [4]byte{}, wire.TunMTU},
		{unix.SIOCSIFFLAGS, "flags", [4]byte{}, unix.IFF_UP | unix.IFF_RUNNING},
	} {
		r, err := unix.NewIfreq(wire.TunName)
		if err != nil {
			return err
		}
		switch {
		case set.what == unix.SIOCSIFMTU:
			r.SetUint32(uint32(set.number))
		case set.number != 0:
			r.SetUint16(set.number)
		default:
			if err := r.SetInet4Addr(set.address[:]); err != nil {
				return err
			}
		}
		if err := unix.IoctlIfreq(s, set.what, r); err != nil {
			return fmt.Errorf("%s: %w", set.name, err)
		}
	}
	return routeAll(s)
}

// rtentry is struct rtentry of <linux/route.h> on 64-bit machines.
type rtentry struct {
	_             uint64
	dst           unix.RawSockaddrInet4
	gateway, mask unix.RawSockaddrInet4
	flags         uint16
	_             [6]byte
	_, _          uint64
	metric        int16
	_             [6]byte
	device        *byte
	_, _          uint64
	_             uint16
	_             [6]byte
}

// routeAll sends all packets that no other device takes to the sandbox's own (SIOCADDRT, route(8)).
func routeAll(s int) error {
	name, err := unix.BytePtrFromString(wire.TunName)
	if err != nil {
		return err
	}
	r := rtentry{flags: unix.RTF_UP, device: name}
	r.dst.Family, r.mask.Family = unix.AF_INET, unix.AF_INET
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCADDRT,
		uintptr(unsafe.Pointer(&r))); e != 0 {
		return fmt.Errorf("route: %w", e)
	}
	return nil
}

// passTun passes the device to the listener on socket, and again after that has gone, until ctx
// ends. The guest keeps the device: without a listener the sandbox's connections stall and its
// network stays.
func passTun(ctx context.Context, tun int, socket string) {
	rights := unix.UnixRights(tun)
	for pause := redialFirst; ctx.Err() == nil; {
		if passTunOnce(ctx, rights, socket) == nil {
			pause = redialFirst
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, redialMost)
	}
}

// passTunOnce returns when the peer has gone; nil if there was one.
func passTunOnce(ctx context.Context, rights []byte, socket string) error {
	conn, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, _, err := conn.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
		return err
	}
	_, _ = conn.Read(make([]byte, 1)) // it ends when the peer has gone
	return nil
}
