// Package sshd stands in for OpenSSH's sshd in OpenSSH's own regression suite: it takes sshd's
// command line and as much of its configuration as means something here, and serves with the real
// gateway, relay and guest. The suite compares files and connects to ports of this machine, so the
// sandbox is one in memory, which sees both (see sandbox/sandboxtest), or a host that is this
// machine.
//
//	sshd -f sshd_config          listens, in the background, until TERM
//	sshd -i -f sshd_config       serves one connection on standard input and output
//	sshd -Q kex|cipher|mac       prints what the gateway offers, as it says on the wire
package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/sshd"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/host"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestMain makes the test's binary the program, which go test -c builds: only tests may know a
// server and the in-memory backend. Under go test it runs the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "-test.") {
		signals.DefaultForChildren()
		os.Exit(m.Run())
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sshd:", err)
		os.Exit(exitFatal)
	}
	os.Exit(0)
}

// exitFatal is how sshd ends when it cannot serve or a client does not speak its protocol.
const exitFatal = 255

// line is the command line.
type line struct {
	config     string
	options    []string
	log        string
	query      string
	inetd      bool
	test       bool
	foreground bool
}

func parse(args []string) (line, error) {
	var l line
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if len(arg) < 2 || arg[0] != '-' {
			return l, fmt.Errorf("what is %q?", arg)
		}
		value := arg[2:]
		if strings.Contains("foEQ", arg[1:2]) && value == "" {
			if len(args) == 0 {
				return l, fmt.Errorf("%s wants a value", arg)
			}
			value, args = args[0], args[1:]
		}
		switch arg[1] {
		case 'f':
			l.config = value
		case 'o':
			l.options = append(l.options, value)
		case 'E':
			l.log = value
		case 'Q':
			l.query = value
		case 'i':
			l.inetd = true
		case 't':
			l.test = true
		case 'D':
			l.foreground = true
		default:
			return l, fmt.Errorf("the gateway has no %s", arg)
		}
	}
	return l, nil
}

func run(args []string) error {
	l, err := parse(args)
	if err != nil {
		return err
	}
	if l.query != "" {
		return query(l.query)
	}
	c, err := readConfig(l.config, l.options)
	if err != nil || l.test {
		return err
	}
	if !l.inetd && !l.foreground {
		return background(args, c)
	}
	out := io.Discard
	if l.log != "" {
		f, err := os.OpenFile(l.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		out = f
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT,
		syscall.SIGHUP)
	defer stop()
	w := &world{log: slog.New(slog.NewTextHandler(
		out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	defer w.close()
	if err := w.open(ctx, c); err != nil {
		return err
	}
	if l.inetd {
		return w.inetd(ctx)
	}
	return w.listen(ctx, c)
}

// background starts this program again, listening, and returns when it does.
func background(args []string, c config) error {
	child := exec.Command("/proc/self/exe", append(args, "-D")...)
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Stderr = os.Stderr
	ready, far, err := os.Pipe()
	if err != nil {
		return err
	}
	child.ExtraFiles = []*os.File{far}
	if err := child.Start(); err != nil {
		return err
	}
	far.Close()
	if b, err := io.ReadAll(ready); err != nil || len(b) == 0 {
		return errors.New("it does not listen")
	}
	return os.WriteFile(c.pidFile, []byte(strconv.Itoa(child.Process.Pid)+"\n"), 0o600)
}

// login is whom the suite takes for its user, and so the sandbox that its clients log in as: root
// is no name of a sandbox.
const login = "regress"

// hostVariable names an SSH server that is to be the sandbox, in the place of the guest: its URI,
// the file of the key that may log in and the fingerprint of its own key, with blanks between.
const hostVariable = "SANDBOXD_INTEROP_HOST"

// world is a gateway with one sandbox.
type world struct {
	log     *slog.Logger
	dir     string
	cleanup []func() // last first
	server  *sshd.Server
}

func (w *world) close() {
	for i := len(w.cleanup) - 1; i >= 0; i-- {
		w.cleanup[i]()
	}
}

func (w *world) later(f func()) { w.cleanup = append(w.cleanup, f) }

func (w *world) open(ctx context.Context, c config) error {
	var err error
	if w.dir, err = os.MkdirTemp("", "sandboxd-regress-"); err != nil {
		return err
	}
	w.later(func() { os.RemoveAll(w.dir) })
	records := filepath.Join(w.dir, "records")
	if err := os.Mkdir(records, 0o700); err != nil {
		return err
	}
	db, err := store.Open(ctx, w.dir)
	if err != nil {
		return err
	}
	w.later(func() { db.Close() })
	backends := map[string]sandbox.Backend{sandboxtest.Name: sandboxtest.New(
		&notATest{w: w}, sandboxtest.Options{Log: w.log})}
	spec := lifecycle.NewSpec{Name: login}
	if at := strings.Fields(os.Getenv(hostVariable)); len(at) == 3 {
		b := host.New(host.Options{Log: w.log})
		w.later(func() { _ = b.Close() }) // nothing is left to do about an error
		backends = map[string]sandbox.Backend{host.Name: b}
		// No terminal is shared here, so the quickest tier does.
		spec.Host = sandbox.Host{URI: at[0], Identity: at[1], Accept: at[2], Tier: host.TierScreen}
	}
	hub, err := gateway.New(gateway.Options{Options: lifecycle.Options{Store: db, Records: records,
		Owner: login, Log: w.log,
		StopGrace: time.Second, Backends: backends}})
	if err != nil {
		return err
	}
	// Not ended by a signal: the server comes first.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() { _ = hub.Run(running) })
	w.later(func() { stop(); serving.Wait() })
	if err := hub.Ready(ctx); err != nil {
		return err
	}
	me := gateway.Principal{Name: login, Kind: wire.Person, Rights: wire.RightDrive}
	if _, err := hub.Create(ctx, me, spec, nil); err != nil {
		return err
	}
	hosts, err := hostKeys(c.hostKeys)
	if err != nil {
		return err
	}
	w.server, err = sshd.New(sshd.Options{Hub: hub, HostKeys: hosts,
		Keys: sshd.OpenKeys(c.keys[0], login, w.log), Log: w.log,
		Limits:   sshd.Limits{Grace: c.grace, PerSource: 100, Unauthenticated: max(c.startups, 0)},
		Commands: func(context.Context, gateway.Principal, sshd.CommandIO) int { return 1 }})
	return err
}

// hostKeys reads those of the keys that the gateway has: ed25519 and RSA, one of each.
func hostKeys(paths []string) ([]ssh.Signer, error) {
	byType := map[string]ssh.Signer{}
	var all []ssh.Signer
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		k, err := ssh.ParsePrivateKey(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		t := k.PublicKey().Type()
		if t != ssh.KeyAlgoED25519 && t != ssh.KeyAlgoRSA || byType[t] != nil {
			return nil,
				fmt.Errorf("%s: the gateway has no second host key of a type, and none of type %s",
					path, t)
		}
		byType[t] = k
		all = append(all, k)
	}
	return all, nil
}

// listen serves until ctx ends.
func (w *world) listen(ctx context.Context, c config) error {
	l, err := net.Listen("tcp", net.JoinHostPort(c.address, c.port))
	if err != nil {
		return err
	}
	if ready := os.NewFile(3, "ready"); ready != nil {
		_, _ = ready.WriteString("listening\n") // nobody waits if it was started with -D by hand
		ready.Close()
	}
	err = w.server.Serve(ctx, l)
	return errors.Join(err, os.Remove(c.pidFile))
}

// inetd serves one connection on standard input and output. A client that speaks no SSH-2 is an
// error.
func (w *world) inetd(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	near, far, err := sandboxtest.Pipe()
	if err != nil {
		return err
	}
	spoke := &version{}
	// Reading ends with the process: standard input may be a terminal or a pipe, where nothing else
	// would end it.
	go func() {
		_, _ = io.Copy(io.MultiWriter(far, spoke), os.Stdin)
		_ = far.(*net.UnixConn).CloseWrite()
	}()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.Copy(os.Stdout, far) // until the server has closed its side
		cancel()
	}()
	err = w.server.Serve(ctx, &single{conn: near, done: make(chan struct{})})
	<-written
	if err == nil && !spoke.two() {
		err = errors.New("the client does not speak SSH-2")
	}
	return err
}

// version notes how a client began.
type version struct {
	mu    sync.Mutex
	start []byte // guarded by mu
}

func (v *version) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if room := 8 - len(v.start); room > 0 {
		v.start = append(v.start, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (v *version) two() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return string(v.start) == "SSH-2.0-"
}

// single is a listener for one connection.
type single struct {
	mu   sync.Mutex
	conn net.Conn // guarded by mu; nil once accepted
	done chan struct{}
	once sync.Once
}

func (s *single) Accept() (net.Conn, error) {
	s.mu.Lock()
	c := s.conn
	s.conn = nil
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	<-s.done
	return nil, net.ErrClosed
}

func (s *single) Close() error   { s.once.Do(func() { close(s.done) }); return nil }
func (s *single) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// notATest lets the in-memory backend be used by a program: it needs a place, and to learn when
// it is over.
type notATest struct {
	testing.TB
	w *world
}

func (t *notATest) Helper()                   {}
func (t *notATest) Cleanup(f func())          { t.w.later(f) }
func (t *notATest) TempDir() string           { return t.w.dir }
func (t *notATest) Errorf(f string, a ...any) { t.w.log.Error(fmt.Sprintf(f, a...)) }
