//go:build linux

package proc

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// What an interactive shell ignores. A script that asks by read -e does not ignore the signals of
// job control, whatever traps it has.
const jobControl = 1<<(syscall.SIGTERM-1) | 1<<(syscall.SIGTSTP-1) | 1<<(syscall.SIGTTOU-1)

// shellAtPrompt returns the shell that p is, if p is an interactive shell that reads its terminal
// as at its prompt; otherwise nil. line is the system call by which p reads, as in
// /proc/PID/syscall. m are the modes of the terminal.
//
// The name is that of the executed file, because a program chooses the arguments of its child. A
// line editor reads single keys without echo; the builtin read reads lines, or keys with echo, and
// bash's does not wait in pselect(2) before. Dash has no line editor: it reads blocks at its
// prompt, and single bytes for read. ^C clears the line of none that ignores SIGINT.
//
// It was started in the session, by processes that still run: what has put itself in the background
// does not count, because it may have come to the front by itself.
//
// The second prompt of an incomplete command and read -e look the same as a prompt.
func (l *look) shellAtPrompt(p *process, line string, m modes) *session.PromptShell {
	if p.pid != l.leader && !slices.Contains(Above(p.pid), l.leader) {
		return nil
	}
	l.as(p.pid)
	dir := "/proc/" + strconv.Itoa(p.pid)
	exe, err := os.Readlink(dir + "/exe")
	if err != nil || !trusted(dir+"/exe") {
		return nil
	}
	name := filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
	switch name {
	case "bash", "zsh", "dash":
	case "busybox":
		argv := l.argv(p.pid)
		if program(argv) == name { // busybox ash
			argv = argv[1:]
		}
		if applet := strings.TrimPrefix(program(argv), "-"); applet != "sh" && applet != "ash" {
			return nil
		}
		name = "ash"
	default:
		return nil
	}
	b, err := l.read(dir + "/status")
	if err != nil {
		return nil
	}
	mask, _ := field(string(b), "SigIgn:")
	nsPIDs, _ := field(string(b), "NSpid:")
	userIDs, _ := field(string(b), "Uid:")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	if err != nil || ignored&jobControl != jobControl || ignored&(1<<(syscall.SIGINT-1)) != 0 {
		return nil
	}
	c, a := decode(line, callHere)
	switch {
	case name == "dash":
		if !m.canonical || !m.echo || m.keeps || a[2] <= 1 {
			return nil
		}
	case m.canonical, m.echo, name == "bash" && c.kind != callSelect && c.kind != callPoll:
		return nil
	}
	users := strings.Fields(userIDs)
	if len(users) < 4 {
		return nil
	}
	sh := &session.PromptShell{Name: name, PID: p.pid, Image: p.stack}
	if sh.UID, err = strconv.Atoi(users[3]); err != nil { // of the file system
		return nil
	}
	if ids := strings.Fields(nsPIDs); len(ids) > 0 { // none on a kernel without PID namespaces
		sh.PID, err = strconv.Atoi(ids[len(ids)-1])
	}
	if err != nil {
		return nil
	}
	sh.User = strconv.Itoa(sh.UID)
	if u, err := user.LookupId(sh.User); err == nil {
		sh.User = u.Username
	}
	return sh
}

// trusted reports whether only root can have written the program: others may give theirs the name
// of a shell.
func trusted(exe string) bool {
	var st unix.Stat_t
	return unix.Stat(exe, &st) == nil && st.Uid == 0 && st.Mode&0o022 == 0
}
