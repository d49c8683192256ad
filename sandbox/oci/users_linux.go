package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// asRoot is the command that starts a program as root of a new user namespace, with a namespace for
// mounts: unshare(1). What is mounted outside later appears inside, too. withMounts makes only the
// namespace for mounts.
var (
	asRoot = []string{"unshare", "--map-root-user", "--map-auto", "--mount", "--propagation",
		"slave", "--"}
	withMounts = []string{"unshare", "--mount", "--propagation", "slave", "--"}
)

// outside is the environment variable that Enter sets: the number, the name and the home directory
// of the ordinary user, with colons between.
const outside = "_SANDBOXD_OUTSIDE"

// Enter makes this process one that may have a Backend, and read its images. That of an ordinary
// user it replaces by the same program with the same arguments, as root of a user namespace, with
// env in its environment; it returns only if that fails, and the error says what is missing on this
// machine. The process keeps its ID. Call it before anything is opened.
//
// The namespace is that of a sandbox in dir that runs, or a new one if none does: a process in
// another one has no rights over sandboxes.
func Enter(ctx context.Context, dir string, env ...string) error {
	if os.Geteuid() == 0 {
		return keepName()
	}
	if err := mayEnter(ctx); err != nil {
		return err
	}
	u, err := user.Current()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	how := asRoot
	if space := namespace(dir); space != nil {
		defer space.Close()
		how = slices.Concat([]string{"nsenter", "--preserve-credentials",
			fmt.Sprintf("--user=/proc/self/fd/%d", space.Fd()), "--"}, withMounts)
	}
	program, err := exec.LookPath(how[0])
	if err != nil {
		return err
	}
	// Of several variables of one name, the first counts.
	env = slices.Concat(env, []string{outside + "=" + u.Uid + ":" + u.Username + ":" + u.HomeDir},
		os.Environ())
	return os.NewSyscallError("exec", unix.Exec(program,
		slices.Concat(how, []string{self}, os.Args[1:]), env))
}

// namespace opens the user namespace of a sandbox in dir that runs, for programs that this process
// becomes. It is nil if none runs.
func namespace(dir string) *os.File {
	all, _ := os.ReadDir(dir) // none in one that does not exist yet
	for _, e := range all {
		p := readProcess(filepath.Join(dir, e.Name(), pidFile))
		if !p.runs() {
			continue
		}
		space, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.pid))
		if err != nil {
			continue
		}
		// Another process may have its number by now.
		_, err = unix.FcntlInt(space.Fd(), unix.F_SETFD, 0)
		if err == nil && p.runs() {
			return space
		}
		space.Close()
	}
	return nil
}

// keepName lets programs in this process's namespace, such as ssh(1), find the ordinary user's name
// and home directory where they look for those of root.
func keepName() error {
	u, ok := Outside()
	if !ok {
		return nil
	}
	all, err := os.ReadFile(accounts)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "sandboxd-passwd-")
	if err != nil {
		return err
	}
	defer f.Close()
	defer os.Remove(f.Name()) // the mount keeps it
	// The first line of a number counts (passwd(5)).
	_, err = fmt.Fprintf(f, "%s:x:0:0::%s:/bin/sh\n%s", u.Username, u.HomeDir, all)
	if err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount(f.Name(), accounts, "", unix.MS_BIND, ""))
}

const accounts = "/etc/passwd"

// mayEnter returns an error if Enter cannot work.
func mayEnter(ctx context.Context) error {
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return sandbox.Hint(fmt.Errorf("%s is not installed", program),
				"install it: apt-get install uidmap")
		}
	}
	args := append(slices.Clone(asRoot[1:]), "true")
	out, err := exec.CommandContext(ctx, asRoot[0], args...).CombinedOutput()
	if err == nil {
		return nil
	}
	why := cmp.Or(text.End(strings.TrimSpace(string(out)), maxWhy), err.Error())
	hint := "docs/how-to/without-docker.md says what an ordinary user needs; or run the daemon as root"
	if strings.Contains(why, "subuid") || strings.Contains(why, "subgid") {
		hint = "give the user 65,536 numbers that no line of /etc/subuid and /etc/subgid has, such " +
			"as: sudo usermod --add-subuids 300000-365535 --add-subgids 300000-365535 $USER"
	}
	return sandbox.Hint(errors.New(why), hint)
}

// Outside returns the ordinary user whose process this is, as others see it, if Enter has made it
// root of a user namespace. Of the user it has the number, the name and the home directory.
func Outside() (*user.User, bool) {
	fields := strings.SplitN(os.Getenv(outside), ":", 3)
	if len(fields) != 3 || !userns.RunningInUserNS() {
		return nil, false
	}
	// The first line is as "0 1000 1" (user_namespaces(7)).
	lines, err := os.ReadFile("/proc/self/uid_map")
	if words := strings.Fields(string(lines)); err != nil || len(words) < 3 || words[0] != "0" ||
		words[1] != fields[0] {
		return nil, false
	}
	return &user.User{Uid: fields[0], Username: fields[1], HomeDir: fields[2]}, true
}

// byUser reports whether this process is root of an ordinary user's namespace only.
func byUser() bool {
	_, yes := Outside()
	return yes
}

// slice is the control group above those of containers that the service manager of an ordinary user
// makes (systemd.slice(5)): only it has a part of the machine's for its user.
const slice = "sandboxd.slice"

// groupsRoot is where control groups are mounted.
const groupsRoot = "/sys/fs/cgroup"

// checkManager returns an error if no service manager makes control groups for this user. groups is
// where they are mounted, and dir has the sockets of the user's session (XDG_RUNTIME_DIR).
func checkManager(groups, dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(groups, &st); err != nil {
		return fmt.Errorf("control groups: %s: %w", groups, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return sandbox.Hint(fmt.Errorf("limits: %w: this machine has version 1 of control groups, "+
			"which an ordinary user may not use", sandbox.ErrUnsupported),
			"run the daemon as root; or start the machine with systemd.unified_cgroup_hierarchy=1")
	}
	if _, err := os.Stat(filepath.Join(dir, "bus")); dir == "" || err != nil {
		return sandbox.Hint(fmt.Errorf("limits: %w: this user has no service manager, which makes "+
			"control groups", sandbox.ErrUnsupported),
			"log in again, not by su or sudo; let it run without a login: sudo loginctl "+
				"enable-linger $USER; and: apt-get install dbus-user-session")
	}
	return nil
}

// lockedOptions returns the options that the mounts of p must keep. Those of files that do not
// exist yet are those of the state directory, in which they will be.
func lockedOptions(p plan) (map[string][]string, error) {
	all := make(map[string][]string)
	for _, m := range p.mounts("") {
		var st unix.Statfs_t
		path := m.Source
		err := unix.Statfs(path, &st)
		for errors.Is(err, unix.ENOENT) && path != "/" {
			path = filepath.Dir(path)
			err = unix.Statfs(path, &st)
		}
		if err != nil {
			return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
		for _, of := range []struct {
			flag   int64
			option string
		}{{unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"},
			{unix.ST_RDONLY, "ro"}, {unix.ST_NOATIME, "noatime"},
			{unix.ST_NODIRATIME, "nodiratime"}} {
			if st.Flags&of.flag != 0 {
				all[m.Source] = append(all[m.Source], of.option)
			}
		}
	}
	return all, nil
}
