//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// identity is the user whose rights a file operation of the guest itself uses. A zero identity is
// the guest's own.
type identity struct {
	account *Account
}

// identity returns the session user's identity.
func (g *Guest) identity() identity {
	if !g.switches || g.account.UID == 0 {
		return identity{}
	}
	a := g.user()
	return identity{&a}
}

// do runs f with the identity's user and groups, without root's capabilities, on one thread. It
// changes the effective user, not only that of the file system: a peer sees it (SO_PEERCRED) and
// must not mistake the session user for root. f must not leave its goroutine.
func (id identity) do(f func() error) error {
	if id.account == nil {
		return f()
	}
	runtime.LockOSThread()
	groups := append([]uint32{id.account.GID}, id.account.Groups...)
	if err := assume(int(id.account.UID), int(id.account.GID), groups); err != nil {
		if back := resume(); back != nil {
			return errors.Join(err, back) // the thread stays locked and ends with the goroutine
		}
		runtime.UnlockOSThread()
		return err
	}
	err := f()
	if back := resume(); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	// The kernel made this process dumpable, as after a set-user-id exec (credentials(7)). Revert
	// that.
	if derr := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); derr != nil {
		return errors.Join(err, derr)
	}
	return err
}

// assume changes only the calling thread, with raw calls: syscall's wrappers change all threads.
func assume(uid, gid int, groups []uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return fmt.Errorf("setgroups: %w", e)
	}
	keep := ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); e != 0 {
		return fmt.Errorf("setresgid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return fmt.Errorf("setresuid: %w", e)
	}
	return nil
}

// resume undoes assume: the real user is still the guest's own.
func resume() error {
	keep := ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(syscall.Getuid()),
		keep); e != 0 {
		return fmt.Errorf("setresuid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(syscall.Getgid()),
		keep); e != 0 {
		return fmt.Errorf("setresgid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("setgroups: %w", e)
	}
	return nil
}

// dialUnix connects to a socket.
func dialUnix(id identity, path string) (*net.UnixConn, error) {
	var conn *net.UnixConn
	err := id.do(func() (err error) {
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	return conn, err
}

// listenUnix binds a socket that only its owner can connect to. Like OpenSSH (StreamLocalBindUnlink
// no) it does not replace an existing path, except a socket without a listener. The returned
// function removes the socket if it is still the same.
func listenUnix(id identity, path string) (l *net.UnixListener, remove func(), err error) {
	var own os.FileInfo
	err = id.do(func() error {
		l, err = bindUnix(path)
		if errors.Is(err, unix.EADDRINUSE) && abandoned(path) {
			if err := os.Remove(path); err != nil {
				return err
			}
			l, err = bindUnix(path)
		}
		if err != nil {
			return err
		}
		own, err = os.Lstat(path)
		return err
	})
	if err != nil {
		if l != nil {
			l.Close()
		}
		return nil, nil, err
	}
	return l, func() {
		// As the user, too: a parent directory may have been replaced.
		_ = id.do(func() error {
			if now, err := os.Lstat(path); err != nil || !os.SameFile(own, now) {
				return err
			}
			return os.Remove(path)
		})
	}, nil
}

// bindUnix listens on path with mode 0600 from the beginning. A socket file gets the mode of its
// descriptor; the umask would apply to the whole process and to children that it starts meanwhile.
func bindUnix(path string) (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, 128); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	ul := l.(*net.UnixListener)
	ul.SetUnlinkOnClose(false)
	return ul, nil
}

// abandoned reports whether path is a socket without a listener.
func abandoned(path string) bool {
	if st, err := os.Lstat(path); err != nil || st.Mode().Type() != fs.ModeSocket {
		return false
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}
