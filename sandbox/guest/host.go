//go:build linux

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// On a machine with its own SSH server the guest is a program of the user: no root, no port, not
// PID 1. One process for each directory serves sessions on a socket in it, and outlives its
// starter. Another process copies between that socket and an SSH channel. The daemon owns the
// directory, with mode 0700, and so controls the socket.

// runStdio connects standard input and output to the session server of dir, and starts the server
// if needed.
func runStdio(dir string) int {
	conn, err := reachHost(dir)
	if err != nil {
		_, _ = os.Stdout.WriteString(wire.HostFailed + strings.ReplaceAll(err.Error(), "\n", " ") +
			"\n")
		return 1
	}
	_, _ = os.Stdout.WriteString(wire.HostReady)
	// A shell that replaced itself with another reads its orders from here; if the order came by
	// the command line, skip it.
	for line := ""; line+"\n" != wire.HostStart; {
		if line, err = readLine(os.Stdin); err != nil {
			return 1
		}
	}
	go func() { // ends with the process
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// reachHost connects to the session server of dir. If there is none, one caller at a time starts
// it.
func reachHost(dir string) (*net.UnixConn, error) {
	conn, err := dialHost(dir)
	if err == nil {
		return conn, nil
	}
	lock, err := unix.Open(dir+"/lock", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW,
		0o600)
	if err != nil {
		return nil, err
	}
	defer unix.Close(lock)
	if err := unix.Flock(lock, unix.LOCK_EX); err != nil {
		return nil, err
	}
	if conn, err = dialHost(dir); err == nil {
		return conn, nil
	}
	if err = startHost(dir); err != nil {
		return nil, err
	}
	return dialHost(dir)
}

// readLine reads a line of at most 64 KiB, and no byte beyond it.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < 64<<10; {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
	return "", errors.New("line too long")
}

func dialHost(dir string) (*net.UnixConn, error) {
	return dialUnix(identity{}, dir+"/sock")
}

// startHost starts the session server of dir and returns when it listens.
func startHost(dir string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return err
	}
	defer null.Close()
	fd := null.Fd()
	_, err = fork(command{path: "/proc/self/exe", argv: []string{Name, "host", dir},
		env: os.Environ(), dir: "/",
		files: []uintptr{fd, fd, fd, w.Fd()}, ours: true})
	w.Close()
	if err != nil {
		return err
	}
	said, err := io.ReadAll(r)
	if err == nil && string(said) != "ok" {
		err = errors.New("session server: " + string(said))
	}
	return err
}

// runHost is the session server of dir. It reports on descriptor 3 that it listens, or why it does
// not.
func runHost(dir string) int {
	ready := os.NewFile(3, "")
	unix.CloseOnExec(3)
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGPIPE) // dropped: see takeSignals
	// Whatever the starter ignored.
	signals.DefaultForChildren()
	// Its memory and files would show other processes of this user the secrets of marks.
	err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err == nil {
		l, remove, lerr := listenUnix(identity{}, dir+"/sock")
		if err = lerr; err == nil {
			g := hostGuest()
			go g.serveHost(l) // ends with the process, at the order to stop
			_, _ = ready.WriteString("ok")
			ready.Close()
			<-g.Stopped()
			remove()
			return 0
		}
	}
	_, _ = ready.WriteString(err.Error())
	return 1
}

// hostGuest is a guest that runs as its own user, with the environment from the machine's SSH
// server.
func hostGuest() *Guest {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "SSH_"), name == "SHLVL", name == "_", name == "PWD",
			name == "OLDPWD", name == "TERM":
		default:
			env = append(env, e)
		}
	}
	uid := os.Getuid()
	a, err := lookupAccount("/etc", strconv.Itoa(uid))
	if err != nil || a.Shell == "" { // the account is in a directory service
		a = Account{Name: getenv(env, "USER"), UID: uint32(uid), GID: uint32(os.Getgid())}
	}
	if home := getenv(env, "HOME"); home != "" {
		a.Home = home
	}
	if sh := getenv(env, "SHELL"); sh != "" {
		a.Shell = sh
	}
	g := &Guest{config: wire.GuestConfig{Version: wire.Version, Env: env},
		log: slog.New(slog.DiscardHandler), exe: "/proc/self/exe",
		login: true, account: a, etc: "/etc", children: newChildren(false),
		conns:  make(map[net.Conn]bool),
		relays: make(map[int]int),
		drains: make(map[*os.File]bool), terminals: make(map[*terminal]bool),
		stopped: make(chan struct{})}
	g.hadShell = shellOf(a) != ""
	g.sessions = g.newSessions()
	return g
}

// serveHost serves connections to the socket: an order, or without one a session stream.
func (g *Guest) serveHost(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			sleep(context.Background(), redialMost) // out of descriptors: sessions free them
			continue
		}
		go func() {
			defer conn.Close()
			line, err := readLine(conn)
			var order wire.Control
			if err != nil || json.Unmarshal([]byte(line), &order) != nil {
				return
			}
			if order.Do == wire.HostSessions {
				_ = g.sessions.Serve(context.Background(), conn, true)
				return
			}
			g.Control(context.Background(), order, func(a wire.ControlReply) {
				if b, err := json.Marshal(a); err == nil {
					_, _ = conn.Write(append(b, '\n'))
				}
			})
		}()
	}
}
