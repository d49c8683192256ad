package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// dropbearSuite is where scripts/setup puts the tests of Debian's source package of Dropbear.
const dropbearSuite = "scripts/interop/dropbear-tests/test"

// dropbearTest is a test function of the suite, with all its parameters.
type dropbearTest struct{ name, note string }

var dropbearTests = []dropbearTest{
	{"test_exitcode", ""},
	{"test_signal", "the suite expects a failure: dbclient has no signals yet"},
	{"test_roundtrip", ""},
	{"test_read_pty", ""},
	{"test_bg_sleep", "limit 8 s instead of 2: the machine may be busy"},
	{"test_idle",
		"`-I 3` instead of `-I 1`: dbclient counts whole seconds from before the login, so some " +
			"connections end before the command prints, on any server"},
	{"test_netcat",
		"the suite's server listens on the host's loopback; its xfail for remote servers is removed"},
	{"test_tcpflushout", "as above"},
}

// dropbearEdits make the suite test a remote server whose loopback is this machine's.
var dropbearEdits = map[string][]edit{"test_channels.py": {
	{"timeout=2,", "timeout=8,", ""},
	{"\"-I\", \"1\"", "\"-I\", \"3\"", ""},
	{"\tif opt.remote:\n\t\tpytest.xfail(\"don't know netcat address for remote\")\n", "", ""},
	{"\tif opt.remote:\n\t\tpytest.xfail(\"don't know address for remote\")\n", "", ""},
	// The listener's start and the client's end have a tenth of a second each, which is too little
	// through two servers.
	{"\"sleep 0.1; echo -n done\"", "\"sleep 3; echo -n done\"", ""},
	{"\t\t# time to let the listener start\n\t\ttime.sleep(0.1)", "\t\ttime.sleep(2)", ""},
	{"\t\ttime.sleep(0.1)\n\t\tassert r.poll() == 0", "\t\tassert r.wait(10) == 0", ""},
}}

// dropbear runs the suite against the lab.
func dropbear(ctx context.Context, r *report) error {
	wanted := slices.DeleteFunc(slices.Clone(dropbearTests),
		func(d dropbearTest) bool { return !r.wants("dropbear", d.name) })
	if len(wanted) == 0 {
		return nil
	}
	if _, err := os.Stat(dropbearSuite); err != nil {
		return fmt.Errorf("%w; scripts/setup interop fetches it", err)
	}
	var list []client
	for _, d := range wanted {
		list = append(list, client{d.name, d.note, func(l *lab) error {
			return l.dropbear(d.name)
		}})
	}
	return inLab(ctx, r, "dropbear", list)
}

func (l *lab) dropbear(test string) error {
	dir := l.file("dropbear")
	key := l.file("dropbear_key")
	if _, err := os.Stat(dir); err != nil {
		if err := copySuite(dir); err != nil {
			return err
		}
	}
	if err := l.must("dropbearconvert", "openssh", "dropbear", l.at.Identity, key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	c := exec.CommandContext(ctx, debianPython, "-m", "pytest", "-q", "--no-header", "-p",
		"no:cacheprovider", "--remote", "127.0.0.1", "--port", l.port, "--user", "demo",
		"--dbclient", "dbclient -i "+key, "test_channels.py", "-k", test)
	c.Dir = dir
	// It would say that none answers.
	c.Env = slices.DeleteFunc(l.command(ctx, "true").Env,
		func(v string) bool { return strings.HasPrefix(v, "SSH_AUTH_SOCK=") })
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tail(string(out), 40))
	}
	if want := test == "test_signal"; strings.Contains(string(out), "xfailed") != want ||
		strings.Contains(string(out), "skipped") {
		return fmt.Errorf("not all of it ran\n%s", tail(string(out), 10))
	}
	return nil
}

// copySuite copies the suite with its edits to dir.
func copySuite(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"conftest.py", "test_dropbear.py", "test_channels.py"} {
		text, err := os.ReadFile(filepath.Join(dropbearSuite, name))
		if err != nil {
			return err
		}
		for _, e := range dropbearEdits[name] {
			if !strings.Contains(string(text), e.old) {
				return fmt.Errorf("%s no longer has %q", name, e.old)
			}
			text = []byte(strings.ReplaceAll(string(text), e.old, e.new))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
