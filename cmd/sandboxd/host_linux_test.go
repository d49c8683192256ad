package main

import (
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/pty"
)

// makesTerminals reports whether an sshd of this user can make terminals. It gives them to the
// group tty (pty_setowner in OpenSSH), which only root and members of that group may, unless the
// mount of /dev/pts does it.
func makesTerminals() (bool, error) {
	if os.Geteuid() == 0 {
		return true, nil
	}
	tty, err := user.LookupGroup("tty")
	if err != nil {
		return false, err
	}
	gid, err := strconv.Atoi(tty.Gid)
	if err != nil {
		return false, err
	}
	master, slave, err := pty.Open()
	if err != nil {
		return false, err
	}
	defer master.Close()
	defer slave.Close()
	var st unix.Stat_t
	if err := unix.Stat(slave.Name(), &st); err != nil {
		return false, err
	}
	groups, err := os.Getgroups()
	return int(st.Gid) == gid || slices.Contains(groups, gid), err
}
