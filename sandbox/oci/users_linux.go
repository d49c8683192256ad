package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// An ordinary user may be root of a user namespace (user_namespaces(7)), in which more users are
// theirs (subuid(5)). A daemon that runs there does what one of root does with mounts, owners and
// containers, and nothing that its user may not do outside.

// enter is the command that starts a program as root of a new user namespace, with a namespace for
// mounts: unshare(1). What is mounted outside later appears inside, too. enterAgain is the same
// without the former.
var (
	enter = []string{"unshare", "--map-root-user", "--map-auto", "--mount", "--propagation",
		"slave", "--"}
	enterAgain = []string{"unshare", "--mount", "--propagation", "slave", "--"}
)

// Enter makes this process one that may have a Backend, and read its images. That of an ordinary
// user it replaces by the same program with the same arguments, as root of a user namespace, with
// env added to its environment; it returns only if that fails, and the error says what is missing
// on this machine. The namespace is that of the sandboxes in dir that run, if any do, or a new one:
// elsewhere nobody may do anything with them.
func Enter(ctx context.Context, dir string, env ...string) error {
	if os.Geteuid() == 0 {
		return keepHome()
	}
	if err := mayEnter(ctx); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	how := enter
	if first := running(dir); first.pid != 0 {
		how = slices.Concat([]string{"nsenter", fmt.Sprintf("--user=/proc/%d/ns/user", first.pid),
			"--"}, enterAgain)
	}
	program, err := exec.LookPath(how[0])
	if err != nil {
		return err
	}
	args := slices.Concat(how, []string{self}, os.Args[1:])
	return os.NewSyscallError("exec", unix.Exec(program, args, append(os.Environ(), env...)))
}

// running returns the first process of a sandbox in dir that runs, and the zero value if none does.
func running(dir string) process {
	all, _ := os.ReadDir(dir) // none in one that does not exist yet
	for _, e := range all {
		if p := readProcess(filepath.Join(dir, e.Name(), pidFile)); p.runs() {
			return p
		}
	}
	return process{}
}

// keepHome shows the home directory of the ordinary user, whose process this is, where programs
// such as ssh(1) look for that of root.
func keepHome() error {
	u, ok := Outside()
	if !ok {
		return nil
	}
	root, err := user.LookupId("0")
	if err != nil {
		return err
	}
	if err := unix.Mount(u.HomeDir, root.HomeDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("home directory %s: %w", u.HomeDir, os.NewSyscallError("mount", err))
	}
	return nil
}

// mayEnter returns an error if Enter cannot work.
func mayEnter(ctx context.Context) error {
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return sandbox.Hint(fmt.Errorf("%s is not installed", program),
				"install it: apt-get install uidmap")
		}
	}
	args := append(slices.Clone(enter[1:]), "true")
	out, err := exec.CommandContext(ctx, enter[0], args...).CombinedOutput()
	if err == nil {
		return nil
	}
	why := cmp.Or(text.End(strings.TrimSpace(string(out)), maxWhy), err.Error())
	hint := "allow user namespaces (docs/how-to/without-docker.md), or run the daemon as root"
	if strings.Contains(why, "subuid") || strings.Contains(why, "subgid") {
		hint = "give the user more users: sudo usermod --add-subuids 100000-165535 " +
			"--add-subgids 100000-165535 $USER"
	}
	return sandbox.Hint(errors.New(why), hint)
}

// Outside returns the user who runs this process as others see it, and true, if it runs in a user
// namespace whose root is an ordinary user.
func Outside() (*user.User, bool) {
	if !userns.RunningInUserNS() {
		return nil, false
	}
	// The first line is as "0 1000 1" (user_namespaces(7)).
	lines, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(lines))
	if err != nil || len(fields) < 3 || fields[0] != "0" {
		return nil, false
	}
	u, err := user.LookupId(fields[1])
	if err != nil || u.Uid == "0" { // a container of root, which has its own users
		return nil, false
	}
	return u, true
}

// byUser reports whether this process is root of an ordinary user's namespace only.
func byUser() bool {
	_, yes := Outside()
	return yes
}

// slice is the control group above those of containers that the service manager of an ordinary user
// makes (systemd.slice(5)): only it has a part of the machine's for its user.
const slice = "sandboxd.slice"

// checkManager returns an error if no service manager makes control groups for this user. groups is
// where they are mounted, and dir has the sockets of the user's session (XDG_RUNTIME_DIR).
func checkManager(groups, dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(groups, &st); err != nil ||
		st.Type != unix.CGROUP2_SUPER_MAGIC {
		return sandbox.Hint(fmt.Errorf("limits: %w: this machine has version 1 of control groups, "+
			"which an ordinary user may not use", sandbox.ErrUnsupported),
			"run the daemon as root; or start the machine with systemd.unified_cgroup_hierarchy=1")
	}
	if _, err := os.Stat(filepath.Join(dir, "bus")); dir == "" || errors.Is(err, fs.ErrNotExist) {
		return sandbox.Hint(fmt.Errorf("limits: %w: this user has no service manager, which makes "+
			"control groups", sandbox.ErrUnsupported),
			"log in again, not by su or sudo; let it run without a login: sudo loginctl "+
				"enable-linger $USER; and: apt-get install dbus-user-session")
	}
	return nil
}
