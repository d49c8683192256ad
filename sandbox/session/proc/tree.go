//go:build linux

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is the contents of /proc/PID/stat.
type process struct {
	pid, ppid, pgrp, sid int
	tty                  uint64 // device number of the controlling terminal
	tpgid                int    // foreground group of that terminal
	stack                uint64 // address of its stack, new after each execve(2); 0 if not known
	state                byte
	ending               bool // the whole process is ending and runs no more code of its program
}

// leaderless is our state for a process whose first thread has ended while others run. The kernel
// calls it a zombie.
const leaderless = 'z'

// ends is the kernel's flag for a thread that is ending: PF_EXITING.
const ends = 0x4

// read reads the beginning of a file into l.buf.
func (l *look) read(path string) ([]byte, error) { return read(path, l.buf[:]) }

func (l *look) stat(pid int) (*process, error) {
	b, err := l.read("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	return parseStat(pid, b)
}

// parseStat parses /proc/PID/stat (proc_pid_stat(5)). The name of the program is in parentheses and
// may contain any byte.
func parseStat(pid int, b []byte) (*process, error) {
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 6 {
		return nil, fmt.Errorf("stat of %d: %q", pid, b)
	}
	p := &process{pid: pid, state: f[0][0]}
	if p.state == 'Z' && len(f) > 17 && f[17] > "1" {
		p.state = leaderless
	}
	if len(f) > 6 && p.state != leaderless {
		flags, _ := strconv.ParseUint(f[6], 10, 32) // 0 if there are no flags
		p.ending = flags&ends != 0
	}
	var dev int
	for j, v := range []*int{&p.ppid, &p.pgrp, &p.sid, &dev, &p.tpgid} {
		n, err := strconv.Atoi(f[j+1])
		if err != nil {
			return nil, fmt.Errorf("stat of %d: %q", pid, b)
		}
		*v = n
	}
	if len(f) > 25 {
		p.stack, _ = strconv.ParseUint(f[25], 10, 64)
	}
	// The format of new_encode_dev in the kernel: 12 bits of major between 8 and 12 bits of minor.
	u := uint32(dev)
	p.tty = unix.Mkdev(u>>8&0xfff, u&0xff|u>>12&0xfff00)
	return p, nil
}

// InFront reports whether the group of a process is in the foreground of the terminal that the
// process has.
func InFront(pid int) (bool, error) {
	p, err := (&look{}).stat(pid)
	return err == nil && p.pgrp == p.tpgid, err
}

// Above returns the process that started pid, the one that started that, and so on. It ends early
// where one ends meanwhile, and is empty if pid has ended.
func Above(pid int) (pids []int) {
	for l := (&look{}); pid > 1; {
		p, err := l.stat(pid)
		if err != nil || p.ppid == 0 || slices.Contains(pids, p.ppid) {
			break
		}
		pid = p.ppid
		pids = append(pids, pid)
	}
	return pids
}

// Runs reports whether a process exists and is not stopped.
func Runs(pid int) bool {
	p, err := (&look{}).stat(pid)
	return err == nil && !strings.ContainsRune("TtZX", rune(p.state))
}

func (l *look) argv(pid int) []string {
	b, err := l.read("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// cwd returns the working directory of pid, or "" if it is not readable.
func (l *look) cwd(pid int) string {
	l.as(pid)
	path, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return ""
	}
	return path
}

// as takes credentials that allow inspecting pid. These are the process's own, or root's if the
// program changed its user, which then needs CAP_SYS_PTRACE. The owner of the files in its /proc
// directory tells the two apart. The owner of the directory itself is always the user
// (proc_pid(5)).
func (l *look) as(pid int) {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid)+"/stat", &st) == nil {
		l.self.become(int(st.Uid), int(st.Gid))
	}
}

// group returns the processes of group pgrp in the session of the process shell.
func (l *look) group(shell, pgrp int) ([]*process, error) {
	return l.members(shell, func(p *process) bool { return p.pgrp == pgrp })
}

// members returns the processes in the session of the process shell for which is returns true.
func (l *look) members(shell int, is func(*process) bool) ([]*process, error) {
	sh, err := l.stat(shell)
	if err != nil {
		return l.scan(is) // the shell has ended, but its session may still exist
	}
	var found []*process
	add := func(p *process) {
		if is(p) && p.state != 'Z' && p.state != 'X' {
			found = append(found, p)
		}
	}
	add(sh)
	ok := l.walk(shell, func(p *process) bool {
		add(p)
		return p.sid == sh.sid
	})
	if ok {
		// Processes whose parent has ended are below the process that adopts orphans: the shell's
		// parent.
		ok = l.walk(sh.ppid, func(p *process) bool {
			if p.sid == sh.sid && p.pid != shell {
				add(p)
				return true
			}
			return false
		})
	}
	if !ok || len(found) == 0 {
		return l.scan(is)
	}
	return found, nil
}

// strays returns the descendants of members that are in another session.
func (l *look) strays(members []*process) (found []*process) {
	for _, m := range members {
		l.walk(m.pid, func(p *process) bool {
			if p.sid != m.sid && p.state != 'Z' && p.state != 'X' {
				found = append(found, p)
			}
			return true
		})
	}
	return found
}

// walk calls visit for the children of pid, and for the children of each process for which visit
// returns true. It returns false if the kernel does not list children.
func (l *look) walk(pid int, visit func(*process) bool) bool {
	tids, err := list("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return true // it has ended
	}
	for _, tid := range tids {
		b, err := l.read("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/children")
		if err != nil {
			if tid == pid && errors.Is(err, unix.ENOENT) &&
				exists("/proc/"+strconv.Itoa(pid)+"/task/"+strconv.Itoa(tid)) {
				return false // CONFIG_PROC_CHILDREN is not set
			}
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			p, err := l.stat(child)
			if err == nil && visit(p) {
				l.walk(child, visit)
			}
		}
	}
	return true
}

// scan returns the processes of the whole system for which ok returns true.
func (l *look) scan(ok func(*process) bool) (found []*process, err error) {
	pids, err := list("/proc")
	if err != nil {
		return nil, fmt.Errorf("no /proc: %w", err)
	}
	for _, pid := range pids {
		if p, err := l.stat(pid); err == nil && p.state != 'Z' && p.state != 'X' && ok(p) {
			found = append(found, p)
		}
	}
	return found, nil
}

// list returns the names in dir that are numbers.
func list(dir string) (ids []int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil
}

// follow returns the terminals with these master descriptors of p, and their foreground groups
// among the descendants of p. Programs such as sudo, script and python's pty.spawn forward the
// keyboard to them. If one of them has none, coming says that a descendant may be about to open it:
// a running process without a terminal of its own. It returns an error if none has a group, and
// none is coming.
func (l *look) follow(p *process, masters []int) (inner []layer, coming bool, err error) {
	l.as(p.pid)
	for _, fd := range masters {
		b, err := l.read("/proc/" + strconv.Itoa(p.pid) + "/fdinfo/" + strconv.Itoa(fd))
		if err != nil {
			continue
		}
		index, ok := field(string(b), "tty-index:")
		n, err := strconv.ParseUint(index, 10, 20)
		if !ok || err != nil {
			continue
		}
		// Unix98 slaves have major numbers from 136 on, with 256 slaves each.
		in := layer{dev: unix.Mkdev(uint32(136+n/256), uint32(n%256))}
		below := map[int][]*process{} // by group
		tpgid, begun := 0, false
		l.walk(p.pid, func(c *process) bool {
			begun = begun || (c.tty == 0 || c.tty == p.tty) && (c.state == 'R' || c.state == 'D')
			if c.tty == in.dev && c.state != 'Z' && c.state != 'X' {
				below[c.pgrp] = append(below[c.pgrp], c)
				tpgid = c.tpgid
			}
			return true
		})
		if len(below[tpgid]) == 0 {
			coming = coming || begun
			continue
		}
		in.members = below[tpgid]
		if in.modes, in.pending, err = slaveModes("/dev/pts/" + index); err != nil {
			return nil, false, err
		}
		in.works = unread(p.pid, fd)
		inner = append(inner, in)
	}
	if inner == nil && !coming {
		return nil, false,
			fmt.Errorf("pid %d passes the keyboard on to a terminal on which nobody is below it",
				p.pid)
	}
	return inner, coming, nil
}

// field returns the rest of the line of text that begins with name.
func field(text, name string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}
