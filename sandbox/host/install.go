package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	probeTimeout  = 20 * time.Second
	startTimeout  = 20 * time.Second
	uploadTimeout = 2 * time.Minute

	probeBegin = "\nsandboxd-probe\n"
	probeEnd   = "\nsandboxd-end\n"

	// maxNoise is how much the start-up files of an account may print before our command does.
	maxNoise = 64 << 10

	// folder contains everything that this package places on a machine.
	folder = "sandboxd-guest"
	// maxSocket is the longest path of a socket without its NUL (unix(7)).
	maxSocket = 107
)

// facts are a machine's own report of itself.
type facts struct {
	system, machine string // uname
	uid             string
	home, runtime   string // $HOME and $XDG_RUNTIME_DIR
	shell, real     string // $SHELL, and the final target if it is a link
	proc, fd        bool   // it has a readable /proc, and a /dev/fd
	// Dialect of the shell that the start-up files leave running; empty if it supports no marks.
	startupShell dialect
}

// arch is the machine's architecture in Go's spelling; empty if there is no guest for it.
func (f facts) arch() string {
	switch f.machine {
	case "x86_64", "amd64":
		return "amd64"
	case "aarch64", "arm64":
		return "arm64"
	}
	return ""
}

// probeScript has no single quotes, because it is quoted with them.
const probeScript = `printf "\nsandboxd-probe\n"; uname -s; uname -m; id -u; printf "%s\n" "$HOME" "$XDG_RUNTIME_DIR" "$SHELL"; ` +
	`readlink -f "$SHELL" || echo "$SHELL"; test -r /proc/self/stat && echo proc; test -r /dev/fd/9 9</dev/null && echo fd; printf "\nsandboxd-end\n"`

var errSlow = fmt.Errorf("commands do not start within %v: check the account's start-up files",
	probeTimeout)

// probe asks a machine for its facts. An error means that it does not run our commands.
func probe(ctx context.Context, conn *connect.Conn) (facts, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSlow)
	defer cancel()
	c, err := started(ctx, conn, "exec /bin/sh -c "+quote(probeScript))
	if err != nil {
		return facts{}, err
	}
	defer c.Close()
	text := &strings.Builder{} // not used after an error: the read may continue
	err = c.within(ctx, func() error {
		if err := c.until(probeBegin, ""); err != nil {
			return err
		}
		_, err := io.Copy(text, io.LimitReader(c.Channel, maxNoise))
		return err
	})
	if err != nil {
		return facts{}, err
	}
	return parseProbe(text.String())
}

func parseProbe(text string) (facts, error) {
	text, _, whole := strings.Cut(text, probeEnd)
	lines := strings.Split(text, "\n")
	if !whole || len(lines) < 7 {
		return facts{}, errors.New("the answer of the machine is incomplete")
	}
	return facts{system: lines[0], machine: lines[1], uid: lines[2], home: lines[3],
		runtime: lines[4], shell: lines[5], real: lines[6],
		proc: slices.Contains(lines[7:], "proc"), fd: slices.Contains(lines[7:], "fd")}, nil
}

// place is the location of the guest on a machine.
type place struct {
	root   string // contains guests of all versions, and a directory for each sandbox
	binary string
	dir    string // of the sandbox
}

// partial is the path of the guest while it is copied for this sandbox.
func (p place) partial() string { return p.root + "/." + path.Base(p.dir) }

// command is the command that connects to the sandbox's sessions.
func (p place) command() string {
	return "exec " + quote(p.binary) + " stdio " + quote(p.dir)
}

func placeIn(parent, sum, id string) place {
	root := path.Join(parent, folder)
	return place{root: root, binary: path.Join(root, "guest-"+sum[:16]), dir: path.Join(root, id)}
}

// parents are the directories in which our folder may be, best first. Not $XDG_RUNTIME_DIR: it is
// removed at the last logout, and sessions must outlive that.
func (f facts) parents() []string {
	var all []string
	if path.IsAbs(f.home) && f.home != "/" {
		all = append(all, path.Join(f.home, ".cache"))
	}
	if path.IsAbs(f.runtime) {
		all = append(all, f.runtime)
	}
	return all
}

// files opens the machine's file transfer.
func files(ctx context.Context, conn *connect.Conn) (*sftp.Client, func(), error) {
	c, err := open(ctx, conn, wire.RequestSubsystem,
		wire.Marshal(wire.Subsystem{Name: wire.SubsystemSFTP}))
	if errors.Is(err, errExec) {
		return nil, nil, errors.New("it has no SFTP")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("SFTP: %w", err)
	}
	var client *sftp.Client
	within, cancel := context.WithTimeoutCause(ctx, probeTimeout,
		fmt.Errorf("no answer within %v", probeTimeout))
	defer cancel()
	if err = c.within(within, func() (err error) {
		client, err = sftp.NewClientPipe(c.Channel, c.Channel)
		return err
	}); err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("it has no SFTP that answers: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	return client, func() { stop(); client.Close(); c.Close() }, nil
}

// install copies the guest to a machine, unless it is there already, and starts it. The error says
// why there is none. When ctx ends it begins no further step, but waits a moment for the current
// one: what the machine did later would never be removed.
func (b *Backend) install(ctx context.Context, conn *connect.Conn, f facts, id string,
	say func(string, ...any)) (place, error) {
	if f.system != "Linux" || f.arch() == "" {
		return place{}, fmt.Errorf("no guest for %s on %s", f.system, f.machine)
	}
	binary, err := b.guest(f.arch())
	if err != nil {
		return place{}, err
	}
	body, err := os.ReadFile(binary)
	if err != nil {
		return place{}, fmt.Errorf("guest binary: %w", err)
	}
	sum := sha256.Sum256(body)
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTimeout,
		fmt.Errorf("copying the guest took more than %v", uploadTimeout))
	defer cancel()
	step, cancelStep := outlive(ctx, closeTimeout)
	defer cancelStep()
	client, done, err := files(step, conn)
	if err != nil {
		return place{}, err
	}
	defer done()
	var why []string
	for _, parent := range f.parents() {
		p := placeIn(parent, hex.EncodeToString(sum[:]), id)
		err := p.put(ctx, client, f.uid, body, say)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			if err = p.start(step, conn); err == nil {
				return p, nil
			}
		}
		_ = p.remove(client) // report why it is not used instead
		if ctx.Err() != nil {
			return place{}, context.Cause(ctx)
		}
		why = append(why, fmt.Sprintf("%s: %v", parent, err))
	}
	if len(why) == 0 {
		return place{}, errors.New("the account has no home directory")
	}
	return place{}, errors.New(strings.Join(why, "; "))
}

// outlive returns a context that ends some time after ctx does.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(d):
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel(nil) }
}

// put makes the directories, private to the account, and copies the guest. When ctx ends it stops
// before the next step.
func (p place) put(ctx context.Context, client *sftp.Client, uid string, body []byte,
	say func(string, ...any)) error {
	if len(p.dir)+len("/sock") > maxSocket {
		return errors.New("its path is too long for a socket")
	}
	parent := path.Dir(p.root)
	if _, err := client.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(client.Mkdir(parent), client.Chmod(parent, 0o700)); err != nil {
			return fmt.Errorf("make %s: %w", parent, err)
		}
	}
	for _, dir := range []string{p.root, p.dir} {
		if err := ownDir(client, dir, uid); err != nil {
			return err
		}
	}
	if st, err := client.Lstat(p.binary); err == nil && st.Mode().IsRegular() &&
		st.Size() == int64(len(body)) {
		return nil // it gets that name when it is complete
	}
	say("copying the guest (%.1f MB)", float64(len(body))/1e6)
	fresh := p.partial()
	_ = client.Remove(fresh) // of an interrupted copy
	w, err := client.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return fmt.Errorf("copy the guest: %w", err)
	}
	for part := range slices.Chunk(body, 256<<10) {
		if err = context.Cause(ctx); err == nil {
			_, err = w.Write(part)
		}
		if err != nil {
			break
		}
	}
	err = errors.Join(err, w.Close())
	if err == nil {
		err = client.Chmod(fresh, 0o700)
	}
	if err == nil {
		err = rename(client, fresh, p.binary)
	}
	if err != nil {
		_ = client.Remove(fresh) // the error of the copy is reported
		return fmt.Errorf("copy the guest (%d bytes): %w: check for a full disk", len(body), err)
	}
	return nil
}

func rename(client *sftp.Client, from, to string) error {
	if err := client.PosixRename(from, to); err == nil {
		return nil
	}
	_ = client.Remove(to) // servers without that extension do not replace
	return client.Rename(from, to)
}

// ownDir makes a directory that only the account may enter, or checks an existing one.
func ownDir(client *sftp.Client, dir, uid string) error {
	err := client.Mkdir(dir)
	st, serr := client.Lstat(dir)
	if serr != nil {
		return fmt.Errorf("make %s: %w", dir, errors.Join(err, serr))
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if s, ok := st.Sys().(*sftp.FileStat); ok && strconv.FormatUint(uint64(s.UID), 10) != uid {
		return fmt.Errorf("%s belongs to uid %d", dir, s.UID)
	}
	if st.Mode().Perm() != 0o700 {
		if err := client.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("make %s private: %w", dir, err)
		}
	}
	return nil
}

// start starts the session server of the sandbox, if there is none, and checks that it answers.
func (p place) start(ctx context.Context, conn *connect.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("the guest does not answer within %v", startTimeout))
	defer cancel()
	err := ask(ctx, conn, p.command(), []byte(`{"do":"hello"}`))
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "permission denied") {
		return fmt.Errorf("programs cannot run there (noexec?): %w", err)
	}
	return err
}

// ask gives one order to the session server on its own channel, and waits for the answer.
func ask(ctx context.Context, conn *connect.Conn, command string, order []byte) error {
	c, err := stream(ctx, conn, command, order)
	// sshd counts a session until its process is gone (MaxSessions in sshd_config(5)): one that has
	// just ended may still count.
	for tries := 1; errors.As(err, new(*ssh.OpenChannelError)) && tries < 20; tries++ {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c, err = stream(ctx, conn, command, order)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	var answer []byte
	err = c.within(ctx, func() (err error) {
		answer, err = io.ReadAll(io.LimitReader(c.Channel, 1<<20))
		return err
	})
	c.hangUp()
	if err == nil && len(answer) == 0 {
		err = errors.New("the guest did not answer")
	}
	return err
}

// stream opens a channel to the session server and sends the order that states its purpose.
func stream(ctx context.Context, conn *connect.Conn, command string, order []byte) (*channel,
	error) {
	c, err := started(ctx, conn, command)
	if err != nil {
		return nil, err
	}
	err = c.within(ctx, func() error {
		if err := c.until(wire.HostReady, wire.HostFailed); err != nil {
			return fmt.Errorf("the guest: %w", err)
		}
		_, err := c.Channel.Write([]byte(wire.HostStart + string(order) + "\n"))
		return err
	})
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// remove removes the sandbox's directory, and with the last one the folder. A missing one is not an
// error.
func (p place) remove(client *sftp.Client) error {
	_ = client.Remove(p.partial()) // rarely exists
	err := removeAll(client, p.dir)
	left, lerr := client.ReadDir(p.root)
	for _, st := range left {
		if st.IsDir() {
			return errors.Join(err, lerr) // of another sandbox
		}
	}
	if errors.Is(lerr, fs.ErrNotExist) {
		return err
	}
	err = errors.Join(err, lerr, removeAll(client, p.root))
	if parent := path.Dir(p.root); path.Base(parent) == ".cache" {
		_ = client.RemoveDirectory(parent) // this package may have made it; a non-empty one stays
	}
	return err
}

// removeAll removes a directory of this package with the files in it. It removes links and does not
// follow them.
func removeAll(client *sftp.Client, dir string) error {
	list, err := client.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, st := range list {
		if st.IsDir() {
			errs = append(errs, removeAll(client, path.Join(dir, st.Name())))
		} else {
			errs = append(errs, client.Remove(path.Join(dir, st.Name())))
		}
	}
	return errors.Join(append(errs, err, client.RemoveDirectory(dir))...)
}
