//go:build linux

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is one line of /proc/PID/stat.
type process struct {
	pid, ppid, pgrp, sid int
	tty                  uint64 // device number of the controlling terminal
	tpgid                int    // foreground group of that terminal
	state                byte
	ending               bool // all of it; it executes nothing of its program any more
}

// leaderless is the state that is given to a process whose first thread has ended while others run:
// the kernel calls it a zombie.
const leaderless = 'z'

// ends is the flag of a thread that is ending: PF_EXITING of the kernel.
const ends = 0x4

// read is read into l.buf.
func (l *look) read(path string) ([]byte, error) { return read(path, l.buf[:]) }

func (l *look) stat(pid int) (*process, error) {
	b, err := l.read("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	return parseStat(pid, b)
}

// parseStat reads /proc/PID/stat (proc_pid_stat(5)). The name of the program is in parentheses and
// may hold any byte.
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
		flags, _ := strconv.ParseUint(f[6], 10, 32) // 0 where there are none
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
	// As new_encode_dev in the kernel packs it: 12 bits of major between 8 and 12 bits of minor.
	u := uint32(dev)
	p.tty = unix.Mkdev(u>>8&0xfff, u&0xff|u>>12&0xfff00)
	return p, nil
}

func (l *look) argv(pid int) []string {
	b, err := l.read("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// cwd returns the working directory of pid, or nothing if it may not be read.
func (l *look) cwd(pid int) string {
	l.as(pid)
	path, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return ""
	}
	return path
}

// as takes the credentials by which pid may be looked into: its own, or root's for a program that
// changed its user and is for CAP_SYS_PTRACE alone. The owner of its files in /proc tells the two
// apart; its directory's is always its user (proc_pid(5)).
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
		return l.scan(is) // the shell is gone, its session may live on
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
		// Of others the parent may have died: they hang below whatever adopts here, the shell's own
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

// strays returns those that descend from members without being in their session.
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

// walk calls visit for the processes below pid, and for those below each for which it returns true.
// It reports whether the kernel lists children at all.
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

// list returns the numbers among the names in dir.
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

// follow returns the terminals whose masters p waits for by these descriptors, with the groups in
// front of them, which are below p: sudo, script and python's pty.spawn pass the keyboard on to
// them. There is an error if there is nobody on any. Where there is nobody on one of them, coming
// says that a process below p may be on the way to it: just begun, and on no terminal of its own.
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
		// Unix98 slaves have the majors from 136 on, 256 to each.
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
		inner = append(inner, in)
	}
	if inner == nil {
		return nil, false,
			fmt.Errorf("pid %d passes the keyboard on to a terminal on which nobody is below it",
				p.pid)
	}
	return inner, coming, nil
}

// field returns the value of the line of text that begins with name.
func field(text, name string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}
