package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MemoryOfPID1 attacks the guest's keys, which are only in its memory: root cannot read it, trace
// the process or write to it.
func (a Suite) MemoryOfPID1(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{})
	fails(t, c, []string{
		"head -c 1 /proc/1/mem",
		"dd if=/dev/zero of=/proc/1/mem bs=1 count=1 seek=4194304",
		"cat /proc/1/maps | grep .",
		"cat /proc/1/environ | tr '\\0' '\\n' | grep . || cat /proc/1/environ",
		"ls -l /proc/1/fd/",
		"readlink -v /proc/1/exe",
		"cat /proc/1/stack || cat /proc/1/auxv",
		"cat /proc/1/root/etc/passwd",
		"cat /proc/1/task/*/mem | head -c 1 | grep .",
		Python("must(libc.ptrace(16, 1, 0, 0))     # PTRACE_ATTACH"),
		Python("must(libc.ptrace(0x4206, 1, 0, 0)) # PTRACE_SEIZE"),
		Python(
			"b = ctypes.create_string_buffer(8)\nv = (ctypes.c_void_p * 2)(ctypes.addressof(b), " +
				"8)\nr = (ctypes.c_void_p * 2)(0x400000, 8)\nmust(libc.process_vm_readv(1, v, 1, " +
				"r, 1, 0))"),
		Python(
			"fd = libc.syscall(434, 1, 0)       # pidfd_open\nmust(fd)\nfor n in range(16): " +
				"must(libc.syscall(438, fd, n, 0))"),
		Python("must(libc.syscall(312, 1, os.getpid(), 0, 0, 0)) # kcmp"),
	}, "Permission denied", "Operation not permitted", "permission denied")
	if got := health(t, control(t, b, inst)); got != "ok" {
		t.Errorf("afterwards: got health %q", got)
	}
	// The files of PID 1 that root may read contain no credential.
	seen := mustSh(t, c, "env; cat /proc/1/cmdline /proc/1/status; cat /proc/self/mountinfo")
	k := a.keys(t, b, inst)
	for _, secret := range []string{strings.Split(k.Guest.HostKey, "\n")[2],
		strings.Split(k.ClientKey, "\n")[2]} {
		if strings.Contains(seen, secret) {
			t.Error("a key can be seen from inside")
		}
	}
}

// Signals attacks PID 1, which ignores all signals that a Go program can handle. kill -1 does not
// end the sandbox.
func (a Suite) Signals(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{})
	const first = "cat /proc/1/stat | cut -d ' ' -f 22; hostname; cat /proc/sys/kernel/random/boot_id"
	before := mustSh(t, c, first) // when PID 1 started
	mustSh(
		t, c,
		"for n in $(seq 1 31) 33 $(seq 35 64); do kill -$n 1 2>/dev/null; done; for n in $(seq 1 "+
			"31); do kill -$n 1; kill -$n 1; done; true")
	fails(t, c, []string{
		"prlimit --pid 1 --nofile=1:1", // no descriptor for a connection, a shell, /dev/null
		"prlimit --pid 1 --cpu=1:1",    // beyond it the kernel sends SIGKILL
		"prlimit --pid 1 --as=4096:4096",
		"setpriv --regid 1 --clear-groups prlimit --pid 1 --nofile=1:1",
	}, "Operation not permitted")
	for range 3 { // it kills its own shell, too
		_, _ = sh(t, c, "kill -9 -1")
		_, _ = sh(
			t, c,
			"kill -QUIT 1; kill -ABRT 1; kill -SEGV 1; kill -STOP 1; kill -9 1; pkill guest; "+
				"killall5 -9")
	}
	if after := mustSh(t, login(t, b, inst), first); after != before {
		t.Errorf("PID 1 did not survive: it was %q, and is %q", before, after)
	}
	began := time.Now()
	if got := mustSh(t, login(t, b, inst), "echo here"); got != "here" ||
		time.Since(began) > 20*time.Second {
		t.Errorf("afterwards: got %q after %v", got, time.Since(began))
	}
}

// Start leaves a file at the path of the guest's program, which does not become PID 1 at the next
// start. A vulnerable runtime follows the link to one place when it mounts and to another when it
// executes.
func (a Suite) Start(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{})
	program := mustSh(t, c, "tr '\\0' '\\n' < /proc/1/cmdline | head -n 1")
	mustSh(t, c, fmt.Sprintf(`set -e
dir=$(dirname %[1]s)
mv $dir /moved 2>/dev/null || true
mv /.sandboxd /aside
for d in $dir /.sandboxd; do test -e $d || ln -s /proc/self/cwd $d || true; done
for f in /$(basename %[1]s) /bin/$(basename %[1]s) $dir/$(basename %[1]s); do
	test -e $f || { printf '#!/bin/sh\nid > /won; exec sleep 60\n' > $f; chmod 755 $f; } || true
done`, program))
	life := b.(sandbox.Lifecycle)
	if err := life.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	// The start may fail: that harms only this sandbox.
	if started, err := life.Start(t.Context(), inst); err == nil {
		if got := mustSh(t, login(t, b, started), "echo here"); got != "here" {
			t.Errorf("afterwards: got %q", got)
		}
	}
	if a.Has(t, b, inst, "/won") {
		t.Error("the sandbox's own program ran as PID 1")
	}
}

// Mounts attacks the paths that are mounted from this machine: none accepts 1 GB or a setuid file,
// and nothing there can be renamed, linked, chmodded, removed, remounted or unmounted.
func (a Suite) Mounts(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{})
	before := a.trees(t, b)

	mounts := strings.Fields(mustSh(t, c, "awk '$2 ~ /\\/.sandboxd/ {print $2}' /proc/mounts"))
	if len(mounts) != 3 {
		t.Fatalf("got mounts %q, want the guest, the socket's directory and the certificates",
			mounts)
	}
	for _, path := range mounts {
		in := path // a file to write: the path itself, or one in it
		if path == machine.GuestRun || path == machine.GuestTrust {
			in += "/new"
		}
		fails(t, c, []string{
			"dd if=/dev/zero of=" + in + " bs=1M count=1024 conv=notrunc",
			"cp /bin/su " + in + " && chmod 4755 " + in,
			"chmod 4777 " + path,
			"chown 1:1 " + path,
			"touch " + path,
			"rm -rf " + path,
			"mv " + path + " /tmp/x",
			"ln " + path + " /tmp/x",
			"ln -s /etc/shadow " + in,
			"mknod " + in + ".dev b 8 0",
			"mount -o remount,rw " + path,
			"mount -o remount,bind,rw " + path,
			"umount " + path,
			"umount -l " + path,
			"setfattr -n user.x -v y " + path + " || " + Python("import os; os.setxattr('"+path+"', 'user.x', b'y')"),
		}, "Read-only file system", "Operation not permitted", "ermission denied",
			"must be superuser", "Device or resource busy",
			"Text file busy", "Invalid cross-device link", "hard link not allowed",
			"not a directory", "Not a directory", "File exists", "No such file")
	}
	for _, command := range []string{"dd if=/dev/zero bs=1M count=1 conv=notrunc of=",
		"chmod 4777 ", "rm -f ", "cp /bin/su ", "ln -sf /etc/shadow "} {
		fails(t, c, []string{command + machine.GuestCA}, "Read-only file system",
			"ermission denied")
	}
	_, _ = sh(t, c, "rm -rf --no-preserve-root /.sandboxd /dev/.sandboxd; rm -f "+machine.GuestSocket)
	after := a.trees(t, b)
	for path, was := range before {
		if after[path] != was {
			t.Errorf("%s changed: was %s, is %s", path, was, after[path])
		}
		delete(after, path)
	}
	if len(after) > 0 {
		t.Errorf("new on this machine: %v", after)
	}
	if got := mustSh(t, login(t, b, inst), "echo here"); got != "here" {
		t.Errorf("afterwards: got %q", got)
	}

	// The files with its names are the sandbox's own, and count as its disk. Outside, only root can
	// reach them, so a setuid file there is of no use.
	mustSh(t, c, "cp /bin/su /etc/hosts && chmod 4755 /etc/hosts && test -u /etc/hosts")
	for _, path := range a.Names(t, b, inst) {
		closed := false
		for dir := filepath.Dir(path); dir != "/" && !closed; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if errors.Is(err, fs.ErrPermission) { // a parent is closed to this user
				closed = os.Geteuid() != 0
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			closed = info.Mode().Perm()&0o007 == 0
		}
		if !closed {
			t.Errorf("%s can be reached by every user of this machine", path)
		}
	}
}

// Socket attacks the socket to the daemon, which all processes can see. The server drops connections that are not from PID 1, and they
// do not block others.
func (a Suite) Socket(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{})
	mustSh(t, c, Python(`
held = []
for n in range(300):
    s = socket.socket(socket.AF_UNIX)
    s.connect("/.sandboxd/run/s")
    try: s.sendall(b"SSH-2.0-impostor\r\n" + b"\0" * 4096)
    except OSError: pass
    held.append(s)
for s in held:
    s.settimeout(10)
    try: data = s.recv(1)
    except ConnectionError: data = b""
    if data: sys.exit("an impostor was answered")
`))
	stop := make(chan error, 1)
	flood, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	go func() {
		_, err := flood.CombinedOutput(Python(`
while True:
    s = socket.socket(socket.AF_UNIX)
    try: s.connect("/.sandboxd/run/s")
    except OSError: pass
`))
		stop <- err
	}()
	for range 20 {
		began := time.Now()
		if got := mustSh(t, login(t, b, inst), "echo here"); got != "here" {
			t.Errorf("during the flood: got %q", got)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("during the flood: took %v", took)
		}
	}
	mustSh(t, c, "pkill python3")
	if <-stop == nil {
		t.Error("the flood ended by itself")
	}
}

// ForkBomb prevents new processes in the sandbox. The guest still answers, reports the limit by
// name, and ends it.
func (a Suite) ForkBomb(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{PIDs: 200})
	daemon := control(t, b, inst)
	bomb, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer bomb.Close()
	if err := bomb.Start(`bash -c 'bomb() { bomb | bomb & }; bomb; sleep 1000'`); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		got := health(t, daemon)
		if strings.HasPrefix(got, "limit_pids") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got health %q, want limit_pids", got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	reply, err := daemon.Do(ctx, wire.Control{Do: "rescue"})
	if err != nil || reply.Killed < 10 {
		t.Fatalf("rescue: got %+v, error %v; want the processes killed", reply, err)
	}
	t.Logf("rescue killed %d processes in %v", reply.Killed, time.Since(began))
	if got := health(t, daemon); got != "ok" {
		t.Errorf("after the rescue: got health %q", got)
	}
	if got := mustSh(t, login(t, b, inst), "echo here"); got != "here" {
		t.Errorf("after the rescue: got %q", got)
	}
}

// Memory fills memory and /dev/shm, which stop at their limits, and the sandbox stays alive.
func (a Suite) Memory(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{Memory: 128 << 20, Shm: 16 << 20})
	if out, err := sh(t, c,
		Python("x = []\nwhile True: x.append(bytearray(1 << 20))")); err == nil {
		t.Errorf("memory without end: got %q and no error", out)
	}
	// Each process is smaller than the guest, which must not be the one that the kernel kills.
	// The shell's own errors may come behind.
	if out, err := sh(
		t, c,
		`for i in $(seq 100); do perl -e '$x = "a" x 3000000; sleep 3' & done 2>/dev/null; wait; echo over`); err != nil || !strings.Contains(out, "over") {
		t.Errorf("many small programs: got %q, error %v", out, err)
	}
	fails(t, c, []string{"dd if=/dev/zero of=/dev/shm/x bs=1M count=64"}, "No space left")
	mustSh(t, c, "rm /dev/shm/x")
	if got, err := b.(sandbox.Finder).Inspect(t.Context(), inst); err != nil || !got.Running ||
		!got.OOMKilled {
		t.Errorf("got %+v, error %v; want it to run, and to tell that it ran out of memory", got,
			err)
	}
	if got := health(t, control(t, b, inst)); got != "ok" {
		t.Errorf("afterwards: got health %q", got)
	}
}

// Reserve tries to reserve a whole disk by one call: no process can, whatever the call. Calls that allocate no blocks
// work, and so do programs that write instead.
func (a Suite) Reserve(t *testing.T) {
	_, _, c := a.boot(t, sandbox.Limits{})
	const file = "f = os.open('/root/reserved', os.O_RDWR | os.O_CREAT)\n"
	fails(t, c, []string{
		"fallocate -l 1G /root/reserved",
		"fallocate -n -l 1G /root/reserved",
		"fallocate -z -l 1G /root/reserved",
		Python(
			file +
				"must(libc.syscall(285, f, ctypes.c_long(1 << 40), 0, ctypes.c_long(1 << 30)))  " +
				"# fallocate; the kernel sees half of its mode"),
		Python(
			file +
				"must(libc.syscall(16, f, 0x40305828, ctypes.create_string_buffer(48)))         " +
				"# FS_IOC_RESVSP"),
		Python(
			file +
				"must(libc.syscall(16, f, 0x4030582a, ctypes.create_string_buffer(48)))         " +
				"# FS_IOC_RESVSP64"),
		Python(
			file +
				"must(libc.syscall(16, f, 0x40305839, ctypes.create_string_buffer(48)))         " +
				"# FS_IOC_ZERO_RANGE"),
		Python(
			file +
				"must(libc.syscall(16, f, ctypes.c_long(0x14030582a), " +
				"ctypes.create_string_buffer(48)))"),
		Python(
			"must(libc.syscall(425, 1, ctypes.create_string_buffer(120)))                        " +
				"  # io_uring_setup"),
		// fallocate by a 32-bit program on its standard output: its error is its exit code.
		Python(`import struct, subprocess
code = bytes.fromhex("b844010000bb0100000031c931d231f6bf0000100031edcd8089c3f7dbb801000000cd80")
elf = b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<HHIIIIIHHHHHH8I", 2, 3, 1, 0x8048054, 52, 0, 0, 52, 32, 1, 0, 0, 0,
    1, 0, 0x8048000, 0x8048000, 84 + len(code), 84 + len(code), 5, 0x1000) + code
open("/root/program32", "wb").write(elf)
os.chmod("/root/program32", 0o700)
n = subprocess.run("/root/program32", stdout=open("/root/reserved", "r+")).returncode
if n: sys.exit(os.strerror(n))`),
	}, "Operation not supported", "mode is unsupported", "Function not implemented")
	mustSh(t, c, "head -c 1M /dev/urandom >/root/full && fallocate -p -o 0 -l 512K /root/full")
	if got := mustSh(t, c, "stat -c %b /root/full"); got != "1024" {
		t.Errorf("a hole in a file of 1 MiB left %s blocks of 512 bytes, want 1024", got)
	}
	if got := mustSh(
		t, c,
		Python(
			"f = os.open('/root/written', os.O_RDWR | os.O_CREAT)\nos.posix_fallocate(f, 0, 1 << "+
				"20)\nprint(os.fstat(f).st_blocks)")); got != "2048" {
		t.Errorf("posix_fallocate of 1 MiB got %s blocks, want 2048", got)
	}
}

// Kernel tries what a container may not do to the kernel and this machine.
func (a Suite) Kernel(t *testing.T) {
	_, _, c := a.boot(t, sandbox.Limits{})
	fails(t, c, []string{
		"mount -t tmpfs x /mnt",
		"mount -t proc x /mnt",
		"mount --bind / /mnt",
		"mknod /tmp/sda b 8 0",
		"unshare -Ur true",
		"unshare -m true",
		"unshare -n true",
		"echo b > /proc/sysrq-trigger",
		"echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
		"echo /tmp/x > /proc/sys/kernel/modprobe",
		"echo /tmp/x > /sys/kernel/uevent_helper",
		"echo 1 > /proc/sys/net/ipv4/ip_forward",
		"cd /sys/fs/cgroup/memory 2>/dev/null || cd /sys/fs/cgroup; echo 1 > notify_on_release " +
			"|| echo 1 > cgroup.procs",
		"cd /sys/fs/cgroup/memory 2>/dev/null || cd /sys/fs/cgroup; mkdir x",
		"dmesg",
		"head -c 1 /dev/mem",
		"chroot /proc/1/root true",
		"nsenter -t 1 -a true",
		"date -s 2000-01-01",
		"hostname other",
		"ip link add x type dummy || python3 -c 'import socket; socket.socket(socket.AF_PACKET, " +
			"socket.SOCK_RAW)'",
		Python("must(libc.swapon(b'/etc/hosts', 0))"),
		Python("must(libc.syscall(321, 0, 0, 0))                 # bpf"),
		Python("must(libc.syscall(298, 0, 0, 0, 0, 0))           # perf_event_open"),
		Python("must(libc.syscall(250, 0, -3, 1, 0, 0))          # keyctl"),
		Python("must(libc.syscall(323, 0))                       # userfaultfd"),
		Python("must(libc.syscall(272, 0x10000000))              # unshare(CLONE_NEWUSER)"),
		Python("must(libc.syscall(425, 1, 0))                    # io_uring_setup"),
		Python("must(libc.syscall(304, -100, 0, 0))              # open_by_handle_at"),
		Python("must(libc.syscall(175, 0, 0, 0))                 # init_module"),
		Python("socket.create_connection(('127.0.0.1', 2375), 1)"),
		Python("socket.create_connection(('169.254.169.254', 80), 1)"),
	}, "ermission denied", "not permitted", "Read-only file system", "Function not implemented",
		"only root can", "must be root", "must be superuser",
		"Network is unreachable", "Connection refused", "No such file", "No such device",
		"Directory nonexistent", "Bad address")
	for _, path := range []string{"/var/run/docker.sock", "/run/docker.sock",
		"/run/containerd/containerd.sock"} {
		fails(t, c, []string{"test -e " + path + " || { echo No such file; exit 1; }"},
			"No such file")
	}
	// Only harmless devices exist.
	if got := mustSh(t, c, "find /dev -type b -o -name 'mem' -o -name 'kmsg' | wc -l"); got != "0" {
		t.Errorf("got %s devices of this machine", got)
	}
}

// Terminals tries to take the terminals that all sandboxes of this machine share.
func (a Suite) Terminals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip(
			"only a daemon that is root limits the terminals of a sandbox " +
				"(docs/concepts/security.md)")
	}
	b, inst, c := a.boot(t, sandbox.Limits{})
	const take = `
held = []
try:
    while len(held) < 4000: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError: pass
print(len(held))`
	want := fmt.Sprint(machine.MaxTerminals)
	if got := mustSh(t, c, Python(take)); got != want {
		t.Errorf("got %s terminals, want %s", got, want)
	}
	// While they are taken, a request for a session gets an error that names terminals.
	holder := "exec 3<&0\n" + Python(take+"\nsys.stdout.flush()\nos.read(3, 1)")
	hold, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	release, err := hold.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := hold.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(holder); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAtLeast(out, make([]byte, 16), len(want)+1); err != nil {
		t.Fatal(err)
	}
	stream, err := control(t, b, inst).OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	attach := wire.Attach{Session: "main", Create: true,
		Party: &wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive}}
	if _, err := wire.Open(t.Context(), stream, attach, wire.Handler{}); !errors.Is(
		err, &wire.Error{Code: wire.CodeLimitPtys}) {
		t.Errorf("a session without terminals: got %v, want limit_ptys", err)
	}
	if err := errors.Join(release.Close(), hold.Wait()); err != nil {
		t.Errorf("the program that held them: %v", err)
	}
	if got := mustSh(t, c, "stat -c '%a %g' /dev/pts/ptmx; "+
		Python(
			"import pty\nm, s = pty.openpty()\nst = os.fstat(s)\nprint(oct(st.st_mode & 0o777), "+
				"st.st_gid)")); got != "666 0\n0o620 5" {
		t.Errorf("modes of terminals: got %q", got)
	}
	life := b.(sandbox.Lifecycle)
	if err := life.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	started, err := life.Start(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustSh(t, login(t, b, started), Python(take)); got != want {
		t.Errorf("after a restart: got %s terminals, want %s", got, want)
	}
}

// Self destroys everything inside. The sandbox answers, and reports that it is broken.
func (a Suite) Self(t *testing.T) {
	b, inst, c := a.boot(t, sandbox.Limits{})
	_, _ = sh(t, c, "rm -rf --no-preserve-root /bin /usr /lib /lib64 /sbin 2>/dev/null")
	if got := health(t, control(t, b, inst)); !strings.HasPrefix(got, "broken: ") {
		t.Errorf("got health %q, want broken and why", got)
	}
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	a.Gone(t, b, inst.ID)
}
