//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestLookupAccount(t *testing.T) {
	etc := t.TempDir()
	writeFile(
		t, etc, "passwd",
		"root:x:0:0:root:/root:/bin/bash\n# "+
			"comment\n\nbroken\napp:x:1000:1001::/app:/bin/zsh\nodd:x:x:0::/:/bin/sh\nnohome:x:7:7:::\n")
	writeFile(t, etc, "group",
		"root:x:0:\nstaff:x:50:app,other\naudio:x:29:other, app\nextra:x:1002:app\nbad:x:y:app\n")
	empty := t.TempDir()
	for _, tt := range []struct {
		name, etc, spec string
		want            Account
		err             string
	}{
		{"default", etc, "", Account{Name: "root", Home: "/root", Shell: "/bin/bash"}, ""},
		{"name", etc, "app", Account{Name: "app", UID: 1000, GID: 1001, Groups: []uint32{50, 1002}, Home: "/app", Shell: "/bin/zsh"}, ""},
		{"number with entry", etc, "1000", Account{Name: "app", UID: 1000, GID: 1001, Groups: []uint32{50, 1002}, Home: "/app", Shell: "/bin/zsh"}, ""},
		{"number without", etc, "4711", Account{Name: "4711", UID: 4711, Home: "/"}, ""},
		{"two numbers", etc, "4711:4712", Account{Name: "4711", UID: 4711, GID: 4712, Home: "/"}, ""},
		{"name and group", etc, "app:staff", Account{Name: "app", UID: 1000, GID: 50, Home: "/app", Shell: "/bin/zsh"}, ""},
		{"no home", etc, "nohome", Account{Name: "nohome", UID: 7, GID: 7, Home: "/"}, ""},
		{"empty image", empty, "", Account{Name: "root", Home: "/"}, ""},
		{"unknown name", etc, "nobody", Account{}, "not in the sandbox's /etc/passwd"},
		{"unknown group", etc, "app:nobody", Account{}, "not in the sandbox's /etc/group"},
		{"damaged line", etc, "odd", Account{}, "damaged line"},
		{"too large", etc, "4294967296", Account{}, "not in the sandbox's"},
		{"name in an empty image", empty, "app", Account{}, "not in the sandbox's"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := lookupAccount(tt.etc, tt.spec)
			if tt.err == "" && err != nil || tt.err != "" &&
				(err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("got error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	a, err := lookupAccount(etc, "app")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, etc, "passwd", "app:x:1000:0::/new:/bin/fish\n")
	if got, err := a.refresh(etc); err != nil || got.Home != "/new" || got.Shell != "/bin/fish" ||
		got.GID != 1001 {
		t.Errorf("refresh: %+v, want the new home and shell and the old numbers", got)
	}
	writeFile(t, etc, "passwd", "app:x:0:0::/root:/bin/fish\n")
	if got, err := a.refresh(etc); err != nil || got.Home != "/app" {
		t.Errorf("refresh: %+v takes the entry of another number", got)
	}
}

// The cache does not read an unchanged database again, but reads each changed one, however soon and
// small the change.
func TestDatabase(t *testing.T) {
	etc := t.TempDir()
	shells := []string{"/bin/fish", "/bin/dash", "/bin/bash"} // of the same length
	write := func(shell string) { writeFile(t, etc, "passwd", "app:x:1000:1000::/app:"+shell+"\n") }
	a := Account{Name: "app", UID: 1000}
	var d database
	for i := range 300 {
		shell := shells[i%len(shells)]
		write(shell)
		for range 2 {
			if got := d.refresh(a, etc, time.Now()).Shell; got != shell {
				t.Fatalf("round %d: %s, want %s", i, got, shell)
			}
		}
	}
	if d.last.Load() != nil {
		t.Error(
			"what has just changed is kept: it may change again within a tick of the file " +
				"system's clock")
	}
	later := time.Now().Add(settled + time.Minute)
	for range 2 {
		if got := d.refresh(a, etc, later).Shell; got != shells[2] || d.last.Load() == nil {
			t.Errorf("%s, kept: %v, want %s, kept", got, d.last.Load(), shells[2])
		}
	}
	writeFile(t, etc, "passwd", strings.Repeat("#", maxDatabase+1)) // too large to be read
	if got := d.refresh(a, etc, later).Shell; got != "" || d.last.Load().fresh.Shell != shells[2] {
		t.Errorf("%q, kept: %+v: what could not be read is kept", got, d.last.Load().fresh)
	}
	write(shells[0])
	if got := d.refresh(a, etc, later).Shell; got != shells[0] {
		t.Errorf("after a change %s, want %s", got, shells[0])
	}
	if err := os.Remove(filepath.Join(etc, "passwd")); err != nil {
		t.Fatal(err)
	}
	if got := d.refresh(a, etc, later).Shell; got != "" {
		t.Errorf("without a database %s, want the configured shell", got)
	}
}

// A file that the sandbox puts in place of its user database neither blocks nor fills the guest.
func TestReadSmall(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir, "large", strings.Repeat("x", 101))
	for _, name := range []string{"fifo", "large", "."} {
		got := make(chan error, 1)
		go func() { _, err := readSmall(filepath.Join(dir, name), 100); got <- err }()
		select {
		case err := <-got:
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: blocks", name)
		}
	}
}

func TestSplitCommand(t *testing.T) {
	for _, tt := range []struct {
		line string
		want []string
	}{
		{"", nil}, {"  ", nil}, {"a", []string{"a"}}, {" a  b\tc\n", []string{"a", "b", "c"}},
		{`'a b' "c d"`, []string{"a b", "c d"}}, {`a\ b`, []string{"a b"}}, {`''`, []string{""}}, {`"a\"b"`, []string{`a"b`}},
		{`'a\b'`, []string{`a\b`}}, {`a'b'"c"`, []string{"abc"}}, {`$HOME *`, []string{"$HOME", "*"}}, {`'open`, []string{"open"}},
	} {
		if got := splitCommand(tt.line); !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.line, got, tt.want)
		}
	}
}

func TestLastWins(t *testing.T) {
	got := lastWins([]string{"A=1", "B=2", "A=3", "none", "=x", "C=a\x00b", "D="})
	if want := []string{"B=2", "A=3", "D="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestShellOf(t *testing.T) {
	own := writeFile(t, t.TempDir(), "ownsh", "#!/bin/sh\n")
	if got := shellOf(Account{Shell: own}); got != "/bin/bash" {
		t.Errorf("not executable: got %q", got)
	}
	if err := unix.Chmod(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for shell, want := range map[string]string{own: own, "/usr/sbin/nologin": "/bin/bash",
		"/bin/false": "/bin/bash", "": "/bin/bash", "/gone": "/bin/bash"} {
		if got := shellOf(Account{Shell: shell}); got != want {
			t.Errorf("%q: got %q, want %q", shell, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, ok := parseStat(12, []byte("12 (a) b (c) S 3 4 5 34816 4 4194560"))
	if want := (process{pid: 12, parent: 3, group: 4, session: 5}); !ok || got != want {
		t.Errorf("got %+v, %v; want %+v", got, ok, want)
	}
	if got, ok := parseStat(1, []byte("1 (x) Z 0 0 0")); !ok || !got.zombie {
		t.Errorf("zombie: got %+v, %v", got, ok)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S", "1 (x) S a b c"} {
		if _, ok := parseStat(1, []byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestStopSignal(t *testing.T) {
	for in, want := range map[string]unix.Signal{"": unix.SIGTERM, "SIGQUIT": unix.SIGQUIT,
		"int": unix.SIGINT, "15": unix.SIGTERM,
		"3": unix.SIGQUIT, "37": 37, "nonsense": unix.SIGTERM, "-9": unix.SIGTERM,
		"99": unix.SIGTERM} {
		if got := stopSignal(in); got != want {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
	}
}

// A command runs as the user that the database has at that time, even if its channel was opened
// long before.
func TestAccountOfAnOpenChannel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes a user")
	}
	s := newSandbox(t)
	s.switches, s.etc = true, t.TempDir()
	client := s.dial(t)
	old, fresh := t.TempDir(), t.TempDir()
	entry := func(home string) string {
		return fmt.Sprintf("tester:x:%d:0::%s:/bin/bash\n", os.Getuid(), home)
	}
	writeFile(t, s.etc, "passwd", entry(old))
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	writeFile(t, s.etc, "passwd", entry(fresh))
	if out, err := session.CombinedOutput("pwd"); strings.TrimSpace(string(out)) != fresh ||
		err != nil {
		t.Errorf("got %q, %v, want %s", out, err, fresh)
	}
}
