package machine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxTerminals bounds the pseudo-terminals of a sandbox. The machine has some 3,000 in total
// (kernel.pty.max less kernel.pty.reserve). A sandbox that took all of them would leave none for
// sessions of others.
const MaxTerminals = 256

// CapTerminals limits the terminals of a container through its file system, because the engine has
// no option for it. pid is its first process. It needs CAP_SYS_ADMIN and a kernel of 5.6 or later;
// without them it returns an error and changes nothing.
func CapTerminals(pid int) error {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root",
		unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("limit terminals: %w", os.NewSyscallError("open", err))
	}
	defer unix.Close(root)
	// The sandbox controls the path, so no link in it is followed: it could lead to this machine's
	// terminals.
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS}
	dir, err := unix.Openat2(root, "dev/pts", &how)
	if err != nil {
		return fmt.Errorf("limit terminals: %w", os.NewSyscallError("openat2", err))
	}
	defer unix.Close(dir)
	var fs unix.Statfs_t
	var theirs, ours unix.Stat_t
	if err := errors.Join(unix.Fstatfs(dir, &fs), unix.Fstat(dir, &theirs)); err != nil {
		return fmt.Errorf("limit terminals: %w", err)
	}
	if fs.Type != unix.DEVPTS_SUPER_MAGIC || unix.Stat("/dev/pts", &ours) == nil &&
		ours.Dev == theirs.Dev {
		return errors.New("limit terminals: the container has no terminals of its own")
	}
	conf, err := unix.Fspick(dir, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("limit terminals: %w", os.NewSyscallError("fspick", err))
	}
	defer unix.Close(conf)
	// Options that are not repeated would return to the kernel's defaults.
	options, err := terminalOptions(pid)
	if err != nil {
		return fmt.Errorf("limit terminals: %w", err)
	}
	for _, o := range append(options, "max="+strconv.Itoa(MaxTerminals)) {
		name, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(conf, name, value); err != nil {
			return fmt.Errorf("limit terminals: %s: %w", name, os.NewSyscallError("fsconfig", err))
		}
	}
	if err := unix.FsconfigReconfigure(conf); err != nil {
		return fmt.Errorf("limit terminals: %w", os.NewSyscallError("fsconfig", err))
	}
	return nil
}

// terminalOptions returns the owner and modes of a container's terminals, as the runtime mounted
// them (proc_pid_mountinfo(5)).
func terminalOptions(pid int) ([]string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		mount, super, _ := strings.Cut(line, " - ")
		m, s := strings.Fields(mount), strings.Fields(super)
		if len(m) < 5 || m[4] != "/dev/pts" || len(s) < 3 || s[0] != "devpts" {
			continue
		}
		return slices.DeleteFunc(strings.Split(s[2], ","), func(o string) bool {
			return !strings.Contains(o, "=") || strings.HasPrefix(o, "max=")
		}), nil
	}
	return nil, errors.New("no /dev/pts is mounted")
}
