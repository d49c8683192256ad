package hostdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A directory that a link replaces during the check is never opened by that link.
func TestCheckSwapped(t *testing.T) {
	base, rules := machine(t)
	victim, aside := base+"/allowed/sub", base+"/allowed/aside"
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(victim, aside)
			_ = os.Symlink(base+"/elsewhere", victim)
			_ = os.Remove(victim)
			_ = os.Rename(aside, victim)
		}
	}()
	defer func() { close(stop); <-done }()
	secret, err := os.Stat(base + "/elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	given := 0
	// A busy machine takes longer for the first success.
	for i := 0; i < 2000 || given == 0 && i < 1e6; i++ {
		got, err := rules.Check(victim)
		if err != nil {
			continue
		}
		given++
		if got.Ino == secret.Sys().(*syscall.Stat_t).Ino {
			t.Fatalf("got %+v, which is elsewhere", got)
		}
	}
	if given == 0 {
		t.Error("it was never given: nothing was tested")
	}
}

func TestCheck(t *testing.T) {
	base, rules := machine(t)
	for _, tt := range []struct {
		path   string // below base unless absolute
		want   string // below base; empty: an error
		why    string
		denied bool
	}{
		{path: "allowed/project", want: "allowed/project"},
		{path: "allowed/project/", want: "allowed/project"},
		{path: "allowed//project/.", want: "allowed/project"},
		{path: "allowed/sub/deep", want: "allowed/sub/deep"},
		{path: "allowed/in", want: "allowed/project"},
		{path: "allowed/a, b", want: "allowed/a, b"},
		{path: "allowed/home/user/p", want: "allowed/home/user/p"},
		{path: "allowed/out", why: "is outside of the directories that sandboxes may use: ", denied: true},
		{path: "allowed/out/secret", why: "is outside of the directories that sandboxes may use: ", denied: true},
		{path: "allowed/etc", why: "is /etc, which is not allowed for sandboxes", denied: true},
		{path: "allowed/proc", denied: true},
		{path: "allowed/loop", why: "cannot be checked"},
		{path: "allowed/gone", why: "does not exist"},
		{path: "allowed/missing", why: "does not exist"},
		{path: "allowed/file", why: "not a directory"},
		{path: "allowed/fifo", why: "not a directory"},
		{path: "allowed/file/x", why: "not a directory"},
		{path: "allowed/col:on", why: "has a colon"},
		{path: "allowed/nl\n", why: "has a control character"},
		{path: "allowed/bad\xff", why: "is not UTF-8"},
		{path: "allowed/project\x00", why: "has a control character"},
		{path: "allowed/../elsewhere", why: "has .. in it"},
		{path: "allowed/project/..", why: "has .. in it"},
		{path: "elsewhere", why: "is outside of the directories that sandboxes may use: ", denied: true},
		{path: "allowed-too", why: "is outside of the directories that sandboxes may use: ", denied: true},
		{path: "allowed/state", why: "is not allowed for sandboxes", denied: true},
		{path: "allowed/state/x", why: "is in", denied: true},
		{path: "allowed", why: "contains", denied: true},
		{path: "allowed/home", why: "contains the home directory", denied: true},
		{path: "allowed/home/user", why: "is a home directory", denied: true},
		{path: "/", denied: true},
		{path: "/etc", why: "is not allowed for sandboxes", denied: true},
		{path: "/etc/ssl", why: "is in /etc", denied: true},
		{path: "/proc", why: "is not allowed for sandboxes", denied: true},
		{path: "/proc/self", denied: true},
		{path: "/sys", denied: true},
		{path: "/dev", denied: true},
		{path: "/var/run", denied: true},
		{path: "/var", why: "contains ", denied: true}, // /var/run, or the home of this test
		{path: "/" + strings.Repeat("long/", 1000), why: "is longer than 4095 bytes"},
	} {
		t.Run(strings.ToValidUTF8(tt.path[:min(len(tt.path), 40)], "?"), func(t *testing.T) {
			path := tt.path
			if !filepath.IsAbs(path) {
				path = base + "/" + path
			}
			got, err := rules.Check(path)
			if tt.want != "" {
				if err != nil || got.Path != base+"/"+tt.want {
					t.Fatalf("got %+v, error %v, want %s", got, err, tt.want)
				}
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if st := info.Sys().(*syscall.Stat_t); got.Ino != st.Ino || got.UID != st.Uid {
					t.Errorf("got %+v, want inode %d of user %d", got, st.Ino, st.Uid)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %+v, error %v, want an *Error", got, err)
			}
			if !strings.Contains(e.Error(), tt.why) || e.Denied != tt.denied {
				t.Errorf("got %q, denied %t, want %q and %t", e, e.Denied, tt.why, tt.denied)
			}
		})
	}
	for path, why := range map[string]string{"": "has no name", "relative": "is not absolute",
		"./x": "is not absolute", "~/x": "is not absolute"} {
		if _, err := rules.Check(path); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: got error %v, want %q", path, err, why)
		}
	}
	if _, err := (Rules{}).Check(base + "/allowed/project"); err == nil ||
		!strings.Contains(err.Error(), "no directories are allowed") {
		t.Errorf("no roots: got error %v", err)
	}
}

// machine makes a directory tree for the tests:
//
//	allowed/{project,sub/deep,file,fifo,"a, b","col:on"}, allowed/out -> elsewhere, allowed/in -> project, allowed/home/user
//	elsewhere/secret, state
func machine(t *testing.T) (string, Rules) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"allowed/project", "allowed/sub/deep", "allowed/a, b",
		"allowed/col:on", "allowed/nl\n", "allowed/bad\xff", "elsewhere/secret",
		"allowed/state/x", "allowed/home/user/p", "allowed-too"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "allowed/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(base, "allowed/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"out": base + "/elsewhere", "in": "project",
		"etc": "/etc", "loop": "loop", "proc": "/proc/self/cwd", "gone": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(base, "allowed", link)); err != nil {
			t.Fatal(err)
		}
	}
	return base, Rules{Roots: []string{base + "/allowed"}, Never: []string{base + "/allowed/state"},
		Homes: []string{base + "/allowed/home/user"}}
}
