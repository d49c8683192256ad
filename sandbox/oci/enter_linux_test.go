package oci

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/userns"

	"github.com/sandboxd/sandboxd/sandbox"
)

// entering is set in a process that tests Enter.
const entering = "SANDBOXD_TEST_ENTER"

// reportEnter enters, and prints what this process is then. It does not return.
func reportEnter() {
	if err := Enter(context.Background(), "", "ENTERED=yes"); err != nil {
		fmt.Println(err, "/", sandbox.HintOf(err))
		os.Exit(1)
	}
	u, _ := Outside()
	home, err := os.ReadFile("/root/mark")
	fmt.Println(os.Geteuid(), u.Username, os.Getenv("ENTERED"), string(home), err)
	// Another of its users owns a file.
	fmt.Println(os.Chown("/root/file", 1000, 1000))
	os.Exit(0)
}

// TestEnter enters as an ordinary user that exists for the processes of this test only.
func TestEnter(t *testing.T) {
	if os.Geteuid() != 0 || userns.RunningInUserNS() {
		t.Skip("needs root, which starts a process of another user")
	}
	dir := t.TempDir()
	for path := dir; path != "/tmp" && path != "/"; path = filepath.Dir(path) {
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
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	const uid = 42424
	write("home/mark", "home")
	file := write("home/file", "")
	for _, path := range []string{home, file} {
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
	for _, tt := range []struct{ name, users, want string }{
		{"enters", "ann:700000:65536\n", "0 ann yes home <nil>\n<nil>\n"},
		{"no users of its own", "", `in /etc/subuid: Success / give the user more users: ` +
			"sudo usermod --add-subuids"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			users := write("users", tt.users)
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c",
				`mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/subuid && `+
					`mount --bind "$2" /etc/subgid && `+
					`exec setpriv --reuid 42424 --regid 42424 --clear-groups "$3"`,
				"sh", passwd, users, program)
			cmd.Env = append(os.Environ(), entering+"=yes", "HOME="+home)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("got %v, %q; want %q", err, out.String(), tt.want)
			}
		})
	}
}
