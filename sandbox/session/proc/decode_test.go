//go:build linux

package proc

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// TestDecode decodes lines of /proc/PID/syscall as kernels of both architectures print them for the
// same waits. The lines of arm64 differ only in numbers and addresses.
func TestDecode(t *testing.T) {
	type table struct {
		name string
		find func(int) call
	}
	amd64, arm64, i386 := table{"amd64", amd64.call}, table{"arm64", arm64.call},
		table{"i386", i386.call}
	for _, test := range []struct {
		table
		line  string
		name  string
		kind  callKind
		timed bool
		first uint64
	}{
		{amd64, "0 0x0 0x7f1c6f2b4000 0x20000 0x22 0x7ffd8c7a1d10 0x0 0x7ffd8c7a1e28 0x7f1c6f3d3a5d", "read", callRead, false, 0},
		{amd64, "7 0x7ffee0b6a7c0 0x1 0xffffffff 0x0 0x0 0x0 0x7ffee0b6a778 0x7f1c6f3d3a5d", "poll", callPoll, false, 0x7ffee0b6a7c0},
		{amd64, "7 0x7ffee0b6a7c0 0x2 0x1f4 0x0 0x0 0x0 0x7ffee0b6a778 0x7f1c6f3d3a5d", "poll", callPoll, true, 0x7ffee0b6a7c0},
		{amd64, "23 0x1 0x7ffc1d1b6d60 0x0 0x0 0x7ffc1d1b6cf0 0x0 0x7ffc1d1b6c88 0x7f3e8d0dd4c4", "select", callSelect, true, 1},
		{amd64, "270 0x1 0x7ffd5e7ed0d0 0x0 0x0 0x0 0x7ffd5e7ed050 0x7ffd5e7ed010 0x7f4bb6e7f7a4", "pselect6", callSelect, false, 1},
		{amd64, "271 0x7f00a0 0x3 0x0 0x0 0x8 0x0 0x7ffd5e7ed010 0x7f4bb6e7f7a4", "ppoll", callPoll, false, 0x7f00a0},
		{amd64, "232 0x4 0x55d0c0 0x1 0xffffffff 0x0 0x0 0x7ffd5e7ed010 0x7f4bb6e7f7a4", "epoll_wait", callEpoll, false, 4},
		{amd64, "281 0xd 0x7ffd3e 0x400 0x1388 0x0 0x8 0x7ffd3d 0x7f4bb6", "epoll_pwait", callEpoll, true, 13},
		{amd64, "202 0xc000052148 0x80 0x0 0x0 0x0 0x0 0x7ffe 0x46d823", "futex", callFutex, false, 0xc000052148},
		{amd64, "202 0x5d1f80 0x80 0x0 0x7f2d1e7fbe58 0x0 0x0 0x7f2d 0x46d823", "futex", callFutex, true, 0x5d1f80},
		{amd64, "61 0xffffffffffffffff 0x7ffd0c 0x0 0x0 0x0 0x0 0x7ffd 0x7f4b", "wait4", callWait, false, 1<<64 - 1},
		{amd64, "34 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f4b", "pause", callWait, false, 0},
		{amd64, "219 0x7ffee0b6a7c0 0x1 0xffffffff 0x0 0x0 0x0 0x7ffee0b6a778 0x7f1c", "restart_syscall", callRestart, false, 0x7ffee0b6a7c0},
		{amd64, "63 0x0 0xffffa7e3f000 0x20000 0x0 0x0 0x0 0x7ffd 0x7f4b", "in system call 63", callUnknown, false, 0}, // arm64's read

		{arm64, "63 0x0 0xffffa7e3f000 0x20000 0x22 0xffffffffffffffff 0x0 0xfffff3b1f0c0 0xffffa7fb4a0c", "read", callRead, false, 0},
		{arm64, "73 0xfffff3b1f0c0 0x1 0x0 0x0 0x8 0x0 0xfffff3b1f050 0xffffa7fbd3a8", "ppoll", callPoll, false, 0xfffff3b1f0c0},
		{arm64, "73 0xfffff3b1f0c0 0x1 0xfffff3b1f070 0x0 0x8 0x0 0xfffff3b1f050 0xffffa7fbd3a8", "ppoll", callPoll, true, 0xfffff3b1f0c0},
		{arm64, "72 0x1 0xfffff3b1f0c0 0x0 0x0 0x0 0xfffff3b1f048 0xfffff3b1f030 0xffffa7fbd4f0", "pselect6", callSelect, false, 1},
		{arm64, "22 0x4 0xffff8c0012a0 0x1 0xffffffff 0x0 0x8 0xfffff3b1f030 0xffffa7fc6a24", "epoll_pwait", callEpoll, false, 4},
		{arm64, "441 0x4 0xffff8c0012a0 0x1 0xfffff3b1f070 0x0 0x8 0xfffff3b1f030 0xffffa7fc6a24", "epoll_pwait2", callEpoll, true, 4},
		{arm64, "98 0xaaaae1a2b3c8 0x189 0x0 0x0 0x0 0xffffffff 0xfffff3b1f030 0xffffa7f5a7d4", "futex", callFutex, false, 0xaaaae1a2b3c8},
		{arm64, "98 0xaaaae1a2b3c8 0x189 0x0 0xffff8d7fe848 0x0 0xffffffff 0xffff8d7fe7f0 0xffffa7f5a7d4", "futex", callFutex, true, 0xaaaae1a2b3c8},
		{arm64, "260 0xffffffffffffffff 0xfffff3b1f0c4 0x2 0x0 0x0 0x0 0xfffff3b1f030 0xffffa7f8b7c8", "wait4", callWait, false, 1<<64 - 1},
		{arm64, "133 0xfffff3b1f0c0 0x8 0x0 0x0 0x0 0x0 0xfffff3b1f030 0xffffa7f8b7c8", "rt_sigsuspend", callWait, false, 0xfffff3b1f0c0},
		{arm64, "115 0x0 0x0 0xfffff3b1f0c0 0x0 0x0 0x0 0xfffff3b1f030 0xffffa7f8b7c8", "clock_nanosleep", callOther, false, 0},
		{arm64, "0 0x0 0x7f1c6f2b4000 0x20000 0x22 0x7ffd8c7a1d10 0x0 0x7ffd 0x7f4b", "in system call 0", callUnknown, false, 0}, // amd64's read
		{arm64, "7 0x7ffee0b6a7c0 0x1 0xffffffff 0x0 0x0 0x0 0x7ffe 0x7f1c", "in system call 7", callUnknown, false, 0x7ffee0b6a7c0},

		{i386, "3 0x0 0x804908c 0x64 0x0 0x0 0x0 0xffd5c5d0 0x8049025", "read", callRead, false, 0},
		{i386, "0 0x804a000 0x0 0x0 0x0 0x0 0x0 0xffd5c5d0 0x8049010", "restart_syscall", callRestart, false, 0x804a000},
		{i386, "7 0xffffffff 0x0 0x0 0x0 0x0 0x0 0xffd5c5d0 0x8049010", "waitpid", callWait, false, 0xffffffff},
		{i386, "422 0x81d1f80 0x80 0x0 0x9c3fe58 0x0 0x0 0xffd5c5d0 0x8049010", "futex_time64", callFutex, true, 0x81d1f80},

		{amd64, "running", "running", callUnknown, false, 0},
		{arm64, "-1 0xfffff3b1f030 0xffffa7f8b7c8", "blocked in the kernel", callUnknown, false, 0},
		{amd64, "", "blocked in the kernel", callUnknown, false, 0},
		{amd64, "0 0x0 0x7g 0x20000 0x22 0x7ffd8c7a1d10 0x0 0x7ffd 0x7f4b", "in an unreadable call", callUnknown, false, 0},
	} {
		c, a := decode(test.line, test.find)
		if c.name != test.name || c.kind != test.kind || c.timed(a) != test.timed ||
			c.kind != callUnknown && a[0] != test.first {
			t.Errorf("%s, %q: got %+v, %#x", test.table.name, test.line, c, a)
		}
	}
}

// TestNumbers compares the tables with the numbers that the compiler has compared with the
// system's. It checks that the tables list no other calls.
func TestNumbers(t *testing.T) {
	for arch, table := range map[string]func(int) call{"amd64": amd64.call, "arm64": arm64.call,
		"386": i386.call} {
		source, err := os.ReadFile("calls_linux_" + arch + "_test.go")
		if err != nil {
			t.Fatal(err)
		}
		names := map[int]string{}
		for _, m := range regexp.MustCompile(`uint\(unix\.SYS_(\w+)-(\d+)\)`).FindAllStringSubmatch(
			string(source), -1) {
			nr, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			names[nr] = strings.ToLower(m[1])
		}
		for nr := range 1000 {
			if got := table(nr).name; got != names[nr] {
				t.Errorf("%s: call %d is %q, want %q", arch, nr, got, names[nr])
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("0 0x0 0x7f1c6f2b4000 0x20000 0x22 0x7ffd8c7a1d10 0x0 0x7ffd8c7a1e28 0x7f1c6f3d3a5d")
	f.Add("running")
	f.Add("-1 0xfffff3b1f030 0xffffa7f8b7c8")
	f.Fuzz(func(t *testing.T, line string) {
		for _, table := range []func(int) call{amd64.call, arm64.call, i386.call} {
			if c, a := decode(line, table); c.name == "" || c.kind == callUnknown && c.timed(a) {
				t.Errorf("%q: got %+v", line, c)
			}
		}
	})
}

func TestParseEpoll(t *testing.T) {
	const info = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\n" +
		"tfd:        0 events:       19 data:                0  pos:0 ino:6 sdev:19\n" +
		"tfd:       12 events: 80000018 data: ffffffff0000000c  pos:0 ino:421 sdev:f\n" +
		"tfd:        5 events: 80000001 data:                5  pos:0 ino:421 sdev:f\n" +
		"tfd:        7 events: 40000000 data:                7  pos:0 ino:422 sdev:f\n"
	want := []watched{{0, 6, 0x19}, {^12, 0x421, 0xf}, {5, 0x421, 0xf}}
	if fds, ok := parseEpoll(info); !ok || !slices.Equal(fds, want) {
		t.Errorf("got %v, %v, want the two that are read, and one that is only written", fds, ok)
	}
	for _, bad := range []string{"tfd: x events: 19", "tfd: 1 events: zz",
		"tfd: 1 events: 19 data: 0 pos:0 ino:x"} {
		if fds, ok := parseEpoll(bad); ok {
			t.Errorf("%q: got %v, want that it cannot be known", bad, fds)
		}
	}
}

func FuzzParseEpoll(f *testing.F) {
	f.Add("tfd:        0 events:       19 data:                0  pos:0 ino:6 sdev:19\n")
	f.Fuzz(func(t *testing.T, info string) {
		if fds, ok := parseEpoll(info); !ok && fds != nil {
			t.Errorf("%q: got %v of what cannot be known", info, fds)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) b) (c) S 1 7 6 34817 8 4194304 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseStat(7, b); err == nil && p.pid != 7 {
			t.Errorf("%q: got %+v", b, p)
		}
	})
}

// timespecs are not on a stack, which the garbage collector may move: their addresses are numbers.
var timespecs struct{ none, some [16]byte }

// TestOnlyLooks checks that a call with a timeout of zero does not count as a wait.
func TestOnlyLooks(t *testing.T) {
	x := &inspector{dir: "/proc/self"}
	defer x.close()
	timespecs.some[8] = 1
	none := uint64(uintptr(unsafe.Pointer(&timespecs.none)))
	some := uint64(uintptr(unsafe.Pointer(&timespecs.some)))
	for name, test := range map[string]struct {
		kind  timeoutKind
		value uint64
		want  bool
	}{
		"no timeout":         {timeoutNone, 0, false},
		"none, as an int":    {timeoutMillis, 1<<32 - 1, false},
		"0 ms":               {timeoutMillis, 0, true},
		"500 ms":             {timeoutMillis, 500, false},
		"none, by a pointer": {timeoutPointer, 0, false},
		"0 s":                {timeoutPointer, none, true},
		"1 ns":               {timeoutPointer, some, false},
		"what is not there":  {timeoutPointer, 1, false},
	} {
		if got := x.onlyLooks(call{timeout: test.kind, arg: 2},
			arguments{2: test.value}); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
