package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/userns"

	"github.com/sandboxd/sandboxd/sandbox"
)

// entering is set in a process that tests Enter: to the directory of sandboxes.
const entering = "SANDBOXD_TEST_ENTER"

// reportEnter enters, and prints what this process is then. It does not return.
func reportEnter() {
	if err := Enter(context.Background(), os.Getenv(entering), "ENTERED=yes"); err != nil {
		fmt.Println(err, "/", sandbox.HintOf(err))
		os.Exit(1)
	}
	u, err := user.LookupId("0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	space, err := os.Readlink("/proc/self/ns/user")
	_, apart := Outside()
	// Another of its users owns a file.
	fmt.Println(os.Geteuid(), u.Username, u.HomeDir, os.Getenv("ENTERED"), apart,
		os.Chown(u.HomeDir+"/file", 1000, 1000), err)
	fmt.Println(space)
	if _, err := os.Stat(u.HomeDir + "/wait"); err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	os.Exit(0)
}

// TestEnter enters as an ordinary user that exists for the processes of this test only.
func TestEnter(t *testing.T) {
	if os.Geteuid() != 0 || userns.RunningInUserNS() {
		t.Skip("needs root, which starts a process of another user")
	}
	dir := t.TempDir()
	for _, path := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	home, box := filepath.Join(dir, "home"), filepath.Join(dir, "all", "one")
	for _, path := range []string{home, box} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const uid = 42424
	for _, path := range []string{home, write("home/file", ""), write("home/wait", "")} {
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	passwd := write("passwd", "root:x:0:0::/root:/bin/sh\nann:x:42424:42424::"+home+":/bin/sh\n")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "oci.test") // where ann may read it
	if err := exec.CommandContext(t.Context(), "cp", self, program).Run(); err != nil {
		t.Fatal(err)
	}
	// start returns a command of ann, who has users of her own.
	start := func(t *testing.T, users string) *exec.Cmd {
		t.Helper()
		subuid := write("users", users)
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c",
			`mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/subuid && `+
				`mount --bind "$2" /etc/subgid && `+
				`exec setpriv --reuid 42424 --regid 42424 --clear-groups "$3"`,
			"sh", passwd, subuid, program)
		cmd.Env = append(os.Environ(), entering+"="+filepath.Dir(box), "HOME="+home,
			"TMPDIR="+home)
		return cmd
	}
	t.Run("no users of its own", func(t *testing.T) {
		out, err := start(t, "").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "subuid") ||
			!strings.Contains(string(out), "usermod --add-subuids") {
			t.Errorf("got %v, %q", err, out)
		}
	})
	want := "0 ann " + home + " yes true <nil> <nil>\n"
	first := start(t, "ann:700000:65536\n")
	hold, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	said, err := lines.ReadString('\n')
	if err != nil || said != want {
		t.Errorf("got %v, %q; want %q", err, said, want)
	}
	space, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	// A later one joins the namespace of a sandbox that runs.
	p, err := processOf(first.Process.Pid)
	if err == nil {
		err = p.store(filepath.Join(box, pidFile))
	}
	if err == nil {
		err = os.Chmod(filepath.Join(box, pidFile), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	again, err := start(t, "ann:700000:65536\n").CombinedOutput()
	if got, want := string(again), want+space; err != nil || got != want {
		t.Errorf("again: got %v, %q; want %q", err, got, want)
	}
	if err := errors.Join(hold.Close(), first.Wait()); err != nil {
		t.Error(err)
	}
}
