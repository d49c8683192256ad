package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/httpd"
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/gateway/sshd"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/host"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func (c *cli) serveCommand() *cobra.Command {
	var addr, httpAddr string
	var asJSON, background bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "run the daemon in the foreground",
		Long: "Run the daemon in the foreground until SIGTERM or ^C. Sandboxes keep running\n" +
			"when it ends.\n\n" +
			"The first run creates a host key, a key for this command line, and the file\n" +
			"authorized_keys in the state directory, with the invoking user's own SSH keys.\n" +
			"Later runs accept the keys in that file.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := runsDaemon(); err != nil {
				return err
			}
			for key, value := range map[string]string{"ssh": addr, "http": httpAddr} {
				if value == "" {
					continue
				}
				c.set(key, value)
			}
			if err := c.load(); err != nil {
				return err
			}
			how := started{Serve: !background}
			if c.configFile != "" {
				how.Config = absolute(c.configFile)
			}
			return serve(cmd.Context(), c.config, how, asJSON)
		},
	}
	cmd.Flags().StringVar(&addr, "ssh", "",
		"address of the SSH server; port 0 means any free port (default 127.0.0.1:2222)")
	cmd.Flags().StringVar(&httpAddr, "http", "",
		"address of the HTTP API, or none to disable it (default 127.0.0.1:8022, or the next "+
			"free port)")
	cmd.Flags().BoolVar(&background, "background", false, "")
	_ = cmd.Flags().MarkHidden("background")
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one object when ready: addresses, files and process ID")
	return cmd
}

// daemon holds the parts that serve runs.
type daemon struct {
	config  *config.Loaded
	how     started
	log     *slog.Logger
	store   *store.Store
	backend *docker.Backend     // nil without an engine
	bundles bundles             // nil unless it is the backend, or was
	main    string              // name of the backend of sandboxes that name none
	cluster *kubernetes.Backend // nil unless it is configured
	hosts   *host.Backend
	hub     *gateway.Hub
	ssh     *sshd.Server
	keys    *sshd.Keys
	listen  net.Listener
	address endpoint
	own     string // fingerprint of the key in address.Identity
	python  command.Python

	// The HTTP API; nil if it is not enabled.
	web       *httpd.Server
	mcp       *mcp.Handler
	webListen net.Listener
	tokens    *token.Registry
}

func serve(ctx context.Context, c *config.Loaded, how started, asJSON bool) error {
	if backendOf(c) == oci.Name {
		if err := enterBundles(ctx, c); err != nil {
			return err
		}
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	defer signals.DefaultForChildren()() // for hooks, proxy commands and builds
	began := time.Now()
	d := &daemon{config: c, how: how, log: newLog(c.LogLevel)}
	if !how.Serve {
		file := newLogFile(c)
		defer file.Close()
		d.log = jsonLog(file, c.LogLevel)
	}
	for _, w := range c.Warnings {
		d.log.Warn("configuration: "+w.Message(), "fix", w.Fix)
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	defer d.close()
	manager := newNotifier()
	return d.run(ctx, func() error {
		if err := d.announce(ctx, asJSON, time.Since(began)); err != nil {
			return err
		}
		return manager.send(ctx, "READY=1")
	})
}

// interruptible returns a ctx that also ends on ^C.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt)
}

func newLog(level string) *slog.Logger {
	if isTerminal(os.Stderr) {
		return slog.New(tint.NewTextHandler(os.Stderr, &tint.Options{Level: logLevel(level),
			TimeFormat: time.TimeOnly, NoColor: os.Getenv("NO_COLOR") != ""}))
	}
	return jsonLog(os.Stderr, level)
}

// jsonLog returns a logger that writes one JSON object per line.
func jsonLog(w io.Writer, level string) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: logLevel(level)}))
}

func logLevel(level string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return slog.LevelInfo // the configuration was checked already
	}
	return l
}

// makeState creates the state directory, or checks the existing one.
func makeState(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return store.MakeDir(dir)
}

// open opens everything that may be missing, damaged or in use, before anything is changed.
func (d *daemon) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	d.python = pythonOptions(d.config)
	state := string(d.config.State)
	if err := makeState(state); err != nil {
		return err
	}
	if d.store, err = store.Open(ctx, state); err != nil {
		return err
	}
	if d.listen, err = new(net.ListenConfig).Listen(ctx, "tcp", d.config.SSH); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return &wire.Error{Code: wire.CodeUnavailable, Message: "ssh: address " + d.config.SSH +
				" is in use",
				Hint: "use another with --ssh, or --ssh 127.0.0.1:0 for any port; sandboxd up " +
					"finds a free one"}
		}
		return fmt.Errorf("ssh server: %w", err)
	}
	if d.webListen, err = listenHTTP(ctx, d.config); err != nil {
		return err
	}
	if err := d.how.write(state); err != nil {
		return err
	}
	keys, hostKey, err := d.openKeys(state)
	if err != nil {
		return err
	}
	d.keys = keys
	d.main = backendOf(d.config)
	if d.main == docker.Name || hasEngine(d.config) && !apart() {
		if d.backend, err = d.openBackend(state); err != nil {
			return err
		}
	}
	if err := d.openOther(state); err != nil {
		return err
	}
	if d.hosts, err = d.openHosts(); err != nil {
		return err
	}
	if d.hub, err = d.openHub(state, keys); err != nil {
		return err
	}
	d.ssh, err = sshd.New(sshd.Options{
		Hub:       d.hub,
		HostKeys:  []ssh.Signer{hostKey},
		Keys:      keys,
		Commands:  d.control,
		Watches:   command.Watches,
		MCP:       d.serveMCP,
		PrefixKey: d.config.PrefixKey,
		Alert:     d.config.Alert,
		Limits:    sshd.Limits{Exempt: loopback, Own: ownLogins},
		Log:       d.log,
	})
	if err != nil {
		return err
	}
	return d.openHTTP(ctx, state)
}

// openOther opens the other backends that sandboxes of this daemon may have.
func (d *daemon) openOther(state string) error {
	id, err := daemonID(state)
	if err != nil {
		return err
	}
	if d.main == kubernetes.Name {
		if d.cluster, err = openCluster(d.config, id, d.log); err != nil {
			return fmt.Errorf("kubernetes: %w", err)
		}
	}
	// Sandboxes keep their backend when an engine has been installed.
	if d.main != oci.Name && hasBundles(state) && os.Geteuid() != 0 {
		d.log.Warn("sandboxes without an engine cannot be reached", "fix", "set backend: oci")
	} else if d.main == oci.Name || hasBundles(state) {
		if d.bundles, err = openBundles(d.config, id, d.log); err != nil {
			return err
		}
	}
	return nil
}

// openHub creates the hub from what open has opened.
func (d *daemon) openHub(state string, keys *sshd.Keys) (hub *gateway.Hub, err error) {
	records := filepath.Join(state, "records")
	if err := os.MkdirAll(records, 0o700); err != nil {
		return nil, fmt.Errorf("recordings: %w", err)
	}
	o := hubOptions(d.config)
	o.Store, o.Records, o.Log = d.store, records, d.log
	o.Backends = map[string]sandbox.Backend{host.Name: d.hosts}
	if d.backend != nil {
		o.Backends[docker.Name] = d.backend
	}
	if d.cluster != nil {
		o.Backends[kubernetes.Name] = d.cluster
	}
	if d.bundles != nil {
		o.Backends[oci.Name] = d.bundles
	}
	o.Backend = d.main
	o.Owner, o.Logins = owner(), []string{owner()}
	o.Principals, o.LogsIn = keys.Principals, keys.LogsIn
	o.Engine = append(o.Engine, d.python.DockerOptions...)
	if o.Secrets, err = secret.Open(filepath.Join(state, "secrets.json")); err != nil {
		return nil, err
	}
	if o.Roots, err = serverRoots(string(d.config.CABundle)); err != nil {
		return nil, err
	}
	where := d.address.gateway()
	o.Command, o.ControlCommand = where.SSHCommand, where.ControlCommand
	return gateway.New(o)
}

// ownLogins is how many programs of the admin may log in at the same time, in addition to all other
// users: more than a script starts.
const ownLogins = 256

// loopback is one source for all users of this machine. Counting and penalizing it would let one
// user lock out the others. The limits for connections that are not logged in still apply.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("::1/128")}

// owner returns the principal of the admin.
func owner() string {
	if name := loginName(); name != "" {
		return name
	}
	return strconv.Itoa(os.Getuid())
}

// openKeys opens the keys of the SSH server and of the command line. A first run creates them.
func (d *daemon) openKeys(state string) (*sshd.Keys, ssh.Signer, error) {
	hostKey, err := sshd.KeyPair(filepath.Join(state, "host_ed25519_key"), sshd.ED25519, "sandboxd")
	if err != nil {
		return nil, nil, err
	}
	identity := filepath.Join(state, "identity")
	self, err := sshd.KeyPair(identity, sshd.ED25519, "sandboxd command line")
	if err != nil {
		return nil, nil, err
	}
	d.own = ssh.FingerprintSHA256(self.PublicKey())
	d.address = endpoint{SSH: d.listen.Addr().String(),
		KnownHosts: filepath.Join(state, "known_hosts"), Identity: identity, State: state,
		PID: os.Getpid(), Version: build.Version, Commit: build.Commit}
	if err := writeKnownHosts(d.address, hostKey.PublicKey()); err != nil {
		return nil, nil, err
	}
	if err := refreshSSHConfig(d.address); err != nil {
		return nil, nil, err
	}
	authorized := filepath.Join(state, "authorized_keys")
	if given := string(d.config.AuthorizedKeys); given != "" {
		if err := copyKeys(given, authorized, self.PublicKey()); err != nil {
			return nil, nil, err
		}
	} else if _, err := os.Lstat(authorized); errors.Is(err, fs.ErrNotExist) {
		trusted, err := d.firstRun(authorized, self.PublicKey())
		if err != nil {
			return nil, nil, err
		}
		for _, t := range trusted {
			d.address.Trusts = append(d.address.Trusts, trust{t.Fingerprint, t.Why})
		}
	}
	return sshd.OpenKeys(authorized, owner(), d.log), hostKey, nil
}

// copyKeys writes the file of keys that may log in from the configured one.
func copyKeys(from, to string, identity ssh.PublicKey) error {
	given, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("authorized_keys: %w", err)
	}
	text := fmt.Appendf(nil, "# Written by the daemon at its start: this machine's command line, and %s\n%s",
		strconv.Quote(from), ssh.MarshalAuthorizedKey(identity))
	if err := writeDurably(to, append(text, given...), 0o600); err != nil {
		return fmt.Errorf("authorized_keys: %w", err)
	}
	return nil
}

// firstRun trusts the invoking user's own keys. If the store has sandboxes, it is not the first
// run: a user who removed authorized_keys must then choose the trusted keys again.
func (d *daemon) firstRun(file string, identity ssh.PublicKey) ([]sshd.Trusted, error) {
	o := sshd.FirstRunOptions{File: file, Identity: identity, Agent: os.Getenv("SSH_AUTH_SOCK"),
		Forwarded: os.Getenv("SSH_CONNECTION") != ""}
	known, err := d.store.Sandboxes(context.Background())
	if err != nil {
		return nil, err
	}
	addr, ok := d.listen.Addr().(*net.TCPAddr)
	o.Loopback = ok && addr.IP.IsLoopback() && len(known) == 0
	if home, err := os.UserHomeDir(); err == nil {
		o.SSHDir = filepath.Join(home, ".ssh")
	}
	return sshd.FirstRun(o)
}

// writeKnownHosts writes the daemon's key for every name with which this machine reaches it.
func writeKnownHosts(e endpoint, key ssh.PublicKey) error {
	host, port, err := net.SplitHostPort(e.SSH)
	if err != nil {
		return err
	}
	names := []string{net.JoinHostPort(host, port)}
	if ip := net.ParseIP(host); ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		names = []string{net.JoinHostPort("localhost", port), net.JoinHostPort("127.0.0.1", port),
			net.JoinHostPort("::1", port)}
	}
	line := knownhosts.Line(names, key) + "\n"
	if err := writeDurably(e.KnownHosts, []byte(line), 0o644); err != nil {
		return fmt.Errorf("known_hosts: %w", err)
	}
	return nil
}

// openBackend returns the Docker backend. It does not contact the engine: the daemon also starts
// while the engine is down.
func (d *daemon) openBackend(state string) (*docker.Backend, error) {
	guests, err := findGuests(string(d.config.GuestDir))
	if err != nil {
		return nil, err
	}
	id, err := daemonID(state)
	if err != nil {
		return nil, err
	}
	return docker.New(docker.Options{
		Dir:      filepath.Join(state, "instances"),
		GuestDir: filepath.Join(state, "guest"),
		Guest:    guests.Path,
		DaemonID: id,
		Dirs:     dirRules(d.config),
		Host:     engineHost(d.config),
		CABundle: string(d.config.CABundle),
		Build: func(ctx context.Context, ref string, progress func(string)) error {
			return buildImage(ctx, engineHost(d.config), ref, progress)
		},
		Builds: images.Has,
		Log:    d.log,
	})
}

// openHosts returns the backend of existing machines. It connects to none.
func (d *daemon) openHosts() (*host.Backend, error) {
	guests, err := findGuests(string(d.config.GuestDir))
	if err != nil {
		return nil, err
	}
	return host.New(host.Options{Guest: guests.Path, Log: d.log}), nil
}

// engineHost returns the engine's socket: from the configuration, from DOCKER_HOST, or "" for
// Docker's default.
func engineHost(c *config.Loaded) string {
	return cmp.Or(c.DockerHost, os.Getenv("DOCKER_HOST"))
}

// daemonIDFile is the file of daemonID in the state directory.
const daemonIDFile = "daemon_id"

// daemonID returns the ID that labels the containers of this state directory's daemon.
func daemonID(state string) (string, error) {
	path := filepath.Join(state, daemonIDFile)
	text, err := os.ReadFile(path)
	if err == nil {
		if id := strings.TrimSpace(string(text)); id != "" {
			return id, nil
		}
		return "", &wire.Error{Code: wire.CodeUnavailable, Message: "daemon ID: " + path +
			" is empty",
			Hint: "write the sandboxd.daemon label of its containers to the file: docker ps -a " +
				"--format '{{.Names}} {{.Label \"sandboxd.daemon\"}}'"}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("daemon ID: %w", err)
	}
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	id := hex.EncodeToString(b[:])
	if err := writeDurably(path, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("daemon ID: %w", err)
	}
	return id, nil
}

// control runs a command for a client of the control host.
func (d *daemon) control(ctx context.Context, p gateway.Principal, c sshd.CommandIO) int {
	env := &command.Env{
		Hub: d.hub, Principal: p, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
		Pty: c.Pty, Resized: c.Resized, Interrupts: c.Interrupts,
		Gateway: d.gatewayOf(p.Key, c.Reached), Tokens: d.tokens, Python: d.python,
	}
	if d.address.HTTP != nil {
		env.HTTP = *d.address.HTTP
	}
	if c.Pty != nil {
		env.Draw = func(cols, rows int) (player.Screen, error) { return c.Draw(cols, rows), nil }
	}
	return command.Run(ctx, env, c.Args)
}

// run serves until ctx ends. It calls ready once clients can connect.
func (d *daemon) run(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var parts sync.WaitGroup
	part := func(name string, run func(context.Context) error) {
		parts.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	hubCtx, hubStop := context.WithCancel(context.WithoutCancel(ctx))
	defer hubStop()
	hubDone := make(chan error, 1)
	// ends after the servers: their clients need the hub
	go func() { hubDone <- d.hub.Run(hubCtx) }()
	if err := d.hub.Ready(ctx); err != nil {
		hubStop()
		return errors.Join(err, <-hubDone)
	}
	part("ssh server", func(ctx context.Context) error { return d.ssh.Serve(ctx, d.listen) })
	if d.web != nil {
		part("http server", func(ctx context.Context) error {
			defer d.mcp.Close()
			return d.web.Serve(ctx, d.webListen)
		})
	}
	err := d.address.write()
	if err == nil {
		err = ready()
	}
	if err != nil {
		cancel(err)
	}
	select {
	case <-ctx.Done():
	case err := <-hubDone:
		hubDone <- err
		cancel(fmt.Errorf("hub: %w", err))
	}
	parts.Wait()
	hubStop()
	hubErr := <-hubDone
	d.address.remove()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return hubErr
}

// announce prints where the daemon answers.
func (d *daemon) announce(ctx context.Context, asJSON bool, took time.Duration) error {
	if asJSON {
		return text.WriteJSON(os.Stdout, d.address)
	}
	facts, note := engineFacts(ctx, d.config)
	printReady(os.Stdout, d.address, facts, note, took)
	printPaste(os.Stdout, d.address)
	return nil
}

// close closes what open opened. It leaves the endpoint file and the sandboxes alone.
func (d *daemon) close() {
	for _, l := range []net.Listener{d.listen, d.webListen} {
		if l != nil {
			l.Close()
		}
	}
	if d.tokens != nil {
		d.tokens.Close()
	}
	if d.cluster != nil {
		_ = d.cluster.Close() // it has no error
	}
	if d.backend != nil {
		if err := d.backend.Close(); err != nil {
			d.log.Warn("close Docker backend failed", "err", err)
		}
	}
	if d.bundles != nil {
		_ = d.bundles.Close() // it has no error
	}
	if d.hosts != nil {
		if err := d.hosts.Close(); err != nil {
			d.log.Warn("end sessions on hosts failed", "err", err)
		}
	}
	if d.store != nil {
		if err := d.store.Close(); err != nil {
			d.log.Warn("close store failed", "err", err)
		}
	}
}
