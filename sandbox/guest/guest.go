//go:build linux

// Package guest runs inside a sandbox. It is an SSH server with everything that clients expect –
// commands, files, forwarding both ways, agents – with the sessions of package session on the same
// connection, and it does the duties of PID 1.
//
// It needs nothing of the image: no shell, no user database, no libraries. It is not trusted: the
// daemon decides who may do what, and a login with the one client key may do everything. [Main] is
// the program; [New] serves inside another program, for tests that need a real guest without a
// container.
package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Software is the name of this program for its peers.
const Software = "sandboxd-guest"

// Options of a Guest. The zero value serves the configured user of this machine.
type Options struct {
	Log *slog.Logger // nil discards

	// Exe is the program from which the guest starts children of its own kind, with the arguments
	// of [Main] and Name as argument 0. Empty means /proc/self/exe: a program that contains a Guest
	// calls [Main] when its argument 0 is Name.
	Exe string

	// Account is the user that runs commands, without a switch: the user of the surrounding
	// program. Nil looks up the configured user and switches.
	Account *Account
}

// Name is argument 0 of the guest's own children.
const Name = "sandboxd-guest"

// Guest serves one sandbox from inside. Its methods may be called concurrently.
type Guest struct {
	config   wire.GuestConfig
	log      *slog.Logger
	exe      string
	switches bool // commands run as account, which is another user
	pid1     bool
	// Sessions run login shells: the environment is that of a machine, not of an image.
	login bool
	ssh   *ssh.ServerConfig
	etc   string

	account  Account // numbers never change; the rest is refreshed
	database database
	hadShell bool // the image had a shell: if it is missing, the sandbox is broken

	children *children
	sessions *session.Set
	ptys     atomic.Int32

	trusting sync.Mutex // held to write certificate authorities

	mu      sync.Mutex
	closing bool              // guarded by mu
	conns   map[net.Conn]bool // guarded by mu
	drains  map[*os.File]bool // guarded by mu; outputs of background children, see discard
	wg      sync.WaitGroup    // goroutines that read drains

	terminals map[*terminal]bool // guarded by mu; of sessions, until they are closed
	relays    map[int]int        // guarded by mu; processes that carry connections, and how many

	// Returns memory when it fires; nil inside another program, set before the first connection.
	quiet *time.Timer

	stopped chan struct{} // closed when a stop has been carried out
	stop    sync.Once
}

// New returns a Guest for config, which serves the connections of ServeConn. It starts nothing;
// Close ends it.
func New(config wire.GuestConfig, opt Options) (*Guest, error) {
	return newGuest(config, opt, newChildren(false))
}

func newGuest(config wire.GuestConfig, opt Options, procs *children) (*Guest, error) {
	if config.Version < wire.MinVersion {
		return nil, fmt.Errorf("configuration has version %d; the oldest supported is %d",
			config.Version, wire.MinVersion)
	}
	g := &Guest{config: config, log: opt.Log, exe: opt.Exe, children: procs, pid1: procs.all,
		etc:   "/etc",
		conns: make(map[net.Conn]bool), drains: make(map[*os.File]bool), relays: make(map[int]int),
		terminals: make(map[*terminal]bool), stopped: make(chan struct{})}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.exe == "" {
		g.exe = "/proc/self/exe"
	}
	if opt.Account != nil {
		g.account = *opt.Account
	} else {
		a, err := lookupAccount(g.etc, config.User)
		if err != nil {
			return nil, err
		}
		g.account, g.switches = a, os.Geteuid() == 0
	}
	var err error
	if g.ssh, err = serverConfig(config); err != nil {
		return nil, err
	}
	g.hadShell = shellOf(g.account) != ""
	g.sessions = g.newSessions()
	return g, nil
}

// serverConfig accepts only the client key, by proof of possession.
func serverConfig(config wire.GuestConfig) (*ssh.ServerConfig, error) {
	host, err := ssh.ParsePrivateKey([]byte(config.HostKey))
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(config.ClientKey))
	if err != nil {
		return nil, fmt.Errorf("client key: %w", err)
	}
	want := key.Marshal()
	sc := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-sandboxd",
		MaxAuthTries:  6,
		PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions,
			error) {
			if !bytes.Equal(offered.Marshal(), want) {
				return nil, errors.New("not the client key")
			}
			return nil, nil
		},
	}
	sc.AddHostKey(host)
	return sc, nil
}

// user returns the session user with its current entry in the user database.
func (g *Guest) user() Account {
	if !g.switches {
		return g.account
	}
	return g.database.refresh(g.account, g.etc, time.Now())
}

// credential is the switch that a child needs to run as a; nil if none is needed.
func (g *Guest) credential(a Account) *syscall.Credential {
	if !g.switches {
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
}

// Close ends every connection, session and process of the guest. It waits for processes and
// sessions; for those of sessions until ctx ends at the latest. ServeConn returns by itself.
func (g *Guest) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	for conn := range g.conns {
		conn.Close()
	}
	for f := range g.drains {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // its reader closes it
	}
	g.mu.Unlock()
	err := g.sessions.Close(ctx)
	if !g.pid1 {
		g.children.close()
	}
	g.wg.Wait()
	return err
}
