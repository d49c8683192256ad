//go:build linux

package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pid1 is a guest that is PID 1 of its own namespace, on this machine's files: the parts of a
// container without an image.
type pid1 struct {
	keys
	socket   string
	listener net.Listener
	cmd      *exec.Cmd
	log      bytes.Buffer
	waited   chan error
}

// containerCaps are the capabilities of PID 1 of a container: Docker's default without the
// dangerous ones, and those that only the guest keeps.
const containerCaps = "-all,+chown,+dac_override,+setuid,+setgid,+sys_chroot,+audit_write,+fowner,+fsetid,+kill,+setfcap," +
	"+net_bind_service,+sys_ptrace,+setpcap"

// shipped builds the guest as it is shipped: static, unlike a test program.
var shipped = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, Name)
	cmd := exec.Command("go", "build", "-o", path,
		"github.com/sandboxd/sandboxd/cmd/sandboxd-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// built is the path of shipped, for TestMain to remove.
var built string

// needRoot skips tests that need root. Root of a user namespace does not suffice: the guest changes
// accounts.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a guest that is PID 1 takes root")
	}
}

// unshare returns a command that runs the guest as PID 1. It needs root, like the guest.
func unshare(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	needRoot(t)
	path, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	// /proc must be that of the namespace, which unshare(1) mounts. The guest writes to /run.
	return exec.Command("unshare", append(
		[]string{"--pid", "--fork", "--mount-proc", "--kill-child",
			"sh", "-c", `mount -t tmpfs run /run && exec "$@"`, "sh", "setpriv", "--inh-caps", "-all", "--bounding-set", containerCaps, path}, args...)...)
}

// endUnshare ends a command of unshare and its namespace; waited has the result of its Wait.
// --kill-child has no effect after the guest's main thread has been another user
// (PR_SET_PDEATHSIG(2const)).
func endUnshare(cmd *exec.Cmd, waited chan error) {
	select {
	case <-waited: // its number may be another process's now
		return
	default:
	}
	for _, pid := range tree(cmd.Process.Pid) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	_ = cmd.Process.Kill()
	<-waited
}

func newBox(t testing.TB, change ...func(*wire.GuestConfig)) *pid1 {
	t.Helper()
	b := &pid1{keys: newKeys(t), socket: filepath.Join(shortdir.New(t), "s"),
		waited: make(chan error, 1)}
	b.listen(t)
	config := wire.GuestConfig{Version: wire.Version, HostKey: b.hostPEM, ClientKey: b.authorized,
		Name: "demo", Socket: b.socket}
	for _, f := range change {
		f(&config)
	}
	line, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	b.cmd = unshare(t, "init")
	b.cmd.Stdin = bytes.NewReader(append(line, '\n'))
	b.cmd.Stderr = &b.log
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { b.waited <- b.cmd.Wait() }()
	t.Cleanup(func() {
		endUnshare(b.cmd, b.waited)
		b.listener.Close()
		if t.Failed() {
			t.Logf("the guest's log:\n%s", b.log.String())
		}
	})
	return b
}

func (b *pid1) listen(t testing.TB) {
	t.Helper()
	_ = os.Remove(b.socket) // of an earlier listener
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	b.listener = l
}

// claim claims the guest's waiting connection and logs in.
func (b *pid1) claim(t testing.TB) *ssh.Client {
	t.Helper()
	if err := b.listener.(*net.UnixListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	conn, err := b.listener.Accept()
	if err != nil {
		t.Fatalf("the guest does not call in: %v", err)
	}
	return b.login(t, conn)
}

// login logs in over conn.
func (k keys) login(t testing.TB, conn net.Conn) *ssh.Client {
	t.Helper()
	c, chans, reqs, err := ssh.NewClientConn(conn, "guest",
		&ssh.ClientConfig{User: "sandbox", Auth: []ssh.AuthMethod{ssh.PublicKeys(k.client)},
			HostKeyCallback: ssh.FixedHostKey(k.host)})
	if err != nil {
		conn.Close()
		t.Fatal(err)
	}
	client := ssh.NewClient(c, chans, reqs)
	t.Cleanup(func() { client.Close() })
	return client
}

func TestInitServes(t *testing.T) {
	b := newBox(t)
	for i := range 3 { // each claim brings the next connection
		if got := execute(t, b.claim(t), "echo $PPID $USER $HOME",
			""); got.Out != "1 root /root\n" {
			t.Errorf("connection %d: %+v", i, got)
		}
	}
	// The daemon goes away and comes back.
	kept := b.claim(t)
	b.listener.Close()
	if got := execute(t, kept, "echo kept", ""); got.Out != "kept\n" {
		t.Errorf("a live connection without the listener: %+v", got)
	}
	b.listen(t)
	if got := execute(t, b.claim(t), "echo back", ""); got.Out != "back\n" {
		t.Errorf("after the daemon's return: %+v", got)
	}
}

// ignoresNone matches the signals of a process that ignores none. 32 and 33 belong to the C
// library: programs that its posix_spawn starts, such as make's, ignore them.
var ignoresNone = regexp.MustCompile(`SigIgn:\t0000000[01][08]0000000`)

// No signal that the guest handles ends PID 1, and children inherit no handling.
func TestInitSurvivesSignals(t *testing.T) {
	b := newBox(t)
	client := b.claim(t)
	// All but KILL and STOP, which cannot be handled, and 32 and 34, which the Go runtime leaves
	// alone.
	if got := execute(t, client, "grep SigCgt /proc/1/status",
		""); got.Out != "SigCgt:\tfffffffd7ffbfeff\n" {
		t.Errorf("signals that PID 1 takes: %q", got.Out)
	}
	if got := execute(
		t, client,
		"for i in $(seq 1 31) 33 $(seq 35 64); do kill -$i 1; done 2>/dev/null; echo sent; grep "+
			"-E 'Sig(Blk|Ign)' /proc/self/status", ""); !strings.HasPrefix(got.Out, "sent\n") {
		t.Fatalf("%+v", got)
	} else if !strings.Contains(got.Out, "SigBlk:\t0000000000000000") ||
		!ignoresNone.MatchString(got.Out) {
		t.Errorf("a child's signals: %s", got.Out)
	}
	for i, c := range []*ssh.Client{client, b.claim(t)} {
		if got := execute(t, c, "echo alive", ""); got.Out != "alive\n" {
			t.Errorf("connection %d afterwards: %+v", i, got)
		}
	}
}

// Root in the sandbox cannot inspect PID 1.
func TestInitIsClosed(t *testing.T) {
	b := newBox(t)
	client := b.claim(t)
	for _, command := range []string{"cat /proc/1/mem", "cat /proc/1/environ", "cat /proc/1/maps",
		"ls -l /proc/1/exe", "ls -l /proc/1/fd/0"} {
		if got := execute(t, client, command, ""); got.Status == 0 ||
			!strings.Contains(got.Err, "ermission denied") {
			t.Errorf("%s: %.300q, %q, want permission denied", command, got.Out, got.Err)
		}
	}
	if got := execute(
		t, client,
		"cat /proc/1/cmdline | tr '\\0' ' ' | sed 's:.*/::'; grep -z PEM /proc/*/environ | wc -c",
		""); got.Out != Name+" init 0\n" {
		t.Errorf("keys outside of memory: %+v", got)
	}
}

// Children do not have the guest's own capabilities, and cannot regain them.
func TestInitDropsCapabilities(t *testing.T) {
	b := newBox(t)
	got := execute(t, b.claim(t),
		"grep -h Cap /proc/self/status; exec bash -c 'grep -h CapEff /proc/self/status'", "")
	for line := range strings.Lines(got.Out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		bits, err := strconv.ParseUint(value, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, k := range []int{unix.CAP_SYS_PTRACE, unix.CAP_SETPCAP} {
			if bits&(1<<k) != 0 {
				t.Errorf("%s has capability %d", name, k)
			}
		}
		if name == "CapEff" && bits&(1<<unix.CAP_CHOWN) == 0 {
			t.Error("other capabilities are gone too")
		}
	}
}

// All orphans are reaped, and no exit status is lost.
func TestInitReaps(t *testing.T) {
	b := newBox(t)
	client := b.claim(t)
	if got := execute(
		t, client,
		"for i in $(seq 200); do (true & exec true); done; (for i in $(seq 200); do sleep "+
			"0.0$((RANDOM % 9)) & done)", ""); got.Status != 0 {
		t.Fatalf("%+v", got)
	}
	for i := range 50 {
		if got := execute(t, client, fmt.Sprintf("exit %d", i), ""); got.Status != i {
			t.Errorf("status %d: %+v", i, got)
		}
	}
	await(t, "no zombie is left", func() bool {
		return execute(t, client, "ps -eo stat= | grep -c Z", "").Out == "0\n"
	})
}

func TestInitRescue(t *testing.T) {
	b := newBox(t)
	client := b.claim(t)
	order(t, client, wire.Control{Do: "hello"})
	if got := execute(
		t, client, "for i in $(seq 100); do setsid sleep 1000 >/dev/null 2>&1 & done; echo started",
		""); got.Out != "started\n" {
		t.Fatalf("%+v", got)
	}
	if r := order(t, client, wire.Control{Do: "rescue"}); r.Killed != 100 || r.Error != nil {
		t.Errorf("rescue: %+v, want 100", r)
	}
	await(t, "PID 1 is left alone", func() bool { // a killed process ends when it next gets to run
		return execute(t, client, "ps -e --no-headers | grep -vc -e ps -e bash -e grep", "").Out == "1\n"
	})
}

// When no process can start the guest still answers and reports the problem, and rescue resolves
// it.
func TestInitWithoutProcesses(t *testing.T) {
	const user = 54321 // an unused user, so that only this test uses its limit
	const most = 20
	needRoot(t)
	// A limit by user instead of by control group: both make fork fail with EAGAIN. The guest
	// inherits it, because it cannot be set later; it does not apply to root.
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC,
		&unix.Rlimit{Cur: most, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, func(c *wire.GuestConfig) { c.User = strconv.Itoa(user) })
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &before); err != nil {
		t.Fatal(err)
	}
	client := b.claim(t)
	order(t, client, wire.Control{Do: "hello"})
	if r := order(t, client, wire.Control{Do: "health"}); r.Health != "ok" {
		t.Errorf("health: %+v, want ok", r)
	}
	guest := b.guest(t)
	for _, resource := range []int{unix.RLIMIT_NOFILE, unix.RLIMIT_CPU, unix.RLIMIT_NPROC} {
		if err := unix.Prlimit(guest, resource, &unix.Rlimit{Cur: 1, Max: 1}, nil); !errors.Is(
			err, unix.EPERM) {
			t.Errorf("prlimit of guest %d, resource %d: got error %v, want %v", guest, resource,
				err, unix.EPERM)
		}
	}
	await(t, "no process is left", func() bool {
		session, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close() })
		if err := session.Start("exec sleep 1000"); err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(order(t, client, wire.Control{Do: "health"}).Health, "limit_pids")
	})
	if got := execute(t, client, "echo no", ""); got.Status != 255 ||
		!strings.Contains(got.Err, "limit_pids") {
		t.Errorf("a command: %+v, want a reason", got)
	}
	if r := order(t, client, wire.Control{Do: "rescue"}); r.Killed < most {
		t.Errorf("rescue: %+v, want %d or more", r, most)
	}
	await(t, "it is well again", func() bool {
		return order(t, client, wire.Control{Do: "health"}).Health == "ok"
	})
}

// guest returns the process ID of the guest in this namespace.
func (b *pid1) guest(t testing.TB) int {
	t.Helper()
	for _, pid := range tree(b.cmd.Process.Pid) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
			bytes.HasSuffix(line, []byte("/"+Name+"\x00init\x00")) {
			return pid
		}
	}
	return 0
}

func TestInitStops(t *testing.T) {
	b := newBox(t, func(c *wire.GuestConfig) { c.Entrypoint = []string{"sleep", "1000"} })
	client := b.claim(t)
	order(t, client, wire.Control{Do: "hello"})
	await(t, "the entrypoint runs", func() bool {
		return execute(t, client, "pgrep -x sleep", "").Status == 0
	})
	order(t, client, wire.Control{Do: "stop", GraceMS: 5000})
	select {
	case err := <-b.waited:
		if err != nil {
			t.Errorf("exit status: %v, want 0", err)
		}
		b.waited <- nil // for the cleanup
	case <-time.After(time.Minute):
		t.Error("still there")
	}
}

func TestInitWithoutConfig(t *testing.T) {
	for _, tt := range []struct{ name, stdin, want string }{
		{"empty", "", "configuration: EOF"},
		{"garbage", "secret words\n", "is not one line of JSON"},
		{"bad key", `{"version":1,"socket":"/s","host_key":"x"}` + "\n", "host key"},
		{"bad user", "", ""},
	} {
		if tt.name == "bad user" {
			k := newKeys(t)
			line, err := json.Marshal(wire.GuestConfig{Version: 1, Socket: "/s", HostKey: k.hostPEM,
				ClientKey: k.authorized, User: "no-such-user"})
			if err != nil {
				t.Fatal(err)
			}
			tt.stdin, tt.want = string(line)+"\n", "no-such-user"
		}
		t.Run(tt.name, func(t *testing.T) {
			cmd := unshare(t, "init")
			cmd.Stdin = strings.NewReader(tt.stdin)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != exitConfig || !strings.Contains(
				string(out), tt.want) || strings.Contains(string(out), "secret") {
				t.Errorf("got %q, %v; want status 78 and %q", out, err, tt.want)
			}
		})
	}
}

// A guest that is started by mistake does not harm the machine's processes.
func TestInitOnlyAsPID1(t *testing.T) {
	path, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "init")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "PID 1") {
		t.Errorf("got %q, %v", out, err)
	}
}

// Sockets that the guest makes and dials for a session user have that user's rights and identity.
func TestInitSocketsOfTheUser(t *testing.T) {
	needRoot(t)
	dir := shortdir.New(t) // other users cannot enter parents of t.TempDir
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const user = 54322
	own, closed := filepath.Join(dir, "own"), filepath.Join(dir, "closed")
	for path, mode := range map[string]os.FileMode{own: 0o700, closed: 0o700} {
		if err := os.Mkdir(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(own, user, user); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, func(c *wire.GuestConfig) { c.User = fmt.Sprintf("%d:%d", user, user) })
	client := b.claim(t)
	halfCloser(t, listenLocal(t, "unix", filepath.Join(closed, "s")))
	if _, err := dialVia(t, client, wire.ChannelDirectUnix,
		wire.DirectUnix{Path: filepath.Join(closed, "s")}); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("dial of root's socket: %v, want permission denied", err)
	}
	if _, err := client.ListenUnix(filepath.Join(closed, "mine")); err == nil {
		t.Error("a socket in root's directory was made")
	}
	l, err := client.ListenUnix(filepath.Join(own, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(own, "mine"))
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != user {
		t.Errorf("owner: %+v, %v", st, err)
	}
	l.Close()

	// The server of a dialed socket sees the user, not root.
	seen := listenLocal(t, "unix", filepath.Join(own, "peer")).(*net.UnixListener)
	defer seen.Close()
	if err := os.Chmod(filepath.Join(own, "peer"), 0o777); err != nil {
		t.Fatal(err)
	}
	ch, err := dialVia(t, client, wire.ChannelDirectUnix,
		wire.DirectUnix{Path: filepath.Join(own, "peer")})
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	conn, err := seen.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rc, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED); err != nil || cred.Uid != user || cred.Gid != user {
			t.Errorf("peer: %+v, %v; want user %d", cred, err, user)
		}
	}); err != nil {
		t.Fatal(err)
	}
	// Afterwards the guest itself is root again, and protected.
	if got := execute(
		t, client,
		"grep -h ^Uid /proc/1/status /proc/1/task/*/status | sort -u | wc -l; id -u; id -G",
		""); got.Out != fmt.Sprintf("1\n%d\n%d\n", user, user) {
		t.Errorf("afterwards: %+v", got)
	}
	if got := execute(t, client, "stat -c %U /proc/1", ""); got.Out != "root\n" {
		t.Errorf("owner of /proc/1: %+v", got)
	}
}

// TestInitUser runs the programs of one connection as another user. Others keep the session user.
func TestInitUser(t *testing.T) {
	b := newBox(t)
	client := b.claim(t)
	const who = `echo "$(id -u) $(id -g) $USER"`
	if reply := order(t, client, wire.Control{Do: "user", User: "daemon"}); reply.Error == nil ||
		reply.Error.Code != wire.CodeDenied {
		t.Errorf("before hello: got %+v, want denied", reply.Error)
	}
	order(t, client, wire.Control{Do: "hello"})
	for _, tt := range []struct {
		user, want string
		code       wire.Code
	}{
		{"daemon", "1 1 daemon\n", ""},
		{"54321:7", "54321 7 54321\n", ""},
		{"nosuchuser", "54321 7 54321\n", wire.CodeNotFound}, // the one before stays
		{"", "54321 7 54321\n", wire.CodeUsage},
		{"0", "0 0 root\n", ""},
	} {
		reply := order(t, client, wire.Control{Do: "user", User: tt.user})
		if reply.Error == nil && tt.code != "" || reply.Error != nil &&
			reply.Error.Code != tt.code {
			t.Errorf("user %q: got %+v, want code %q", tt.user, reply.Error, tt.code)
		}
		if got := execute(t, client, who, ""); got.Out != tt.want {
			t.Errorf("user %q: got %+v, want %q", tt.user, got, tt.want)
		}
	}
	order(t, client, wire.Control{Do: "user", User: "daemon"})
	if got := execute(t, b.claim(t), who, ""); got.Out != "0 0 root\n" {
		t.Errorf("another connection: got %+v", got)
	}
}
