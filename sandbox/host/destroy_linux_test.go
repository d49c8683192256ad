package host

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// guestOf returns the process that serves the sessions of inst, found by its arguments.
func guestOf(t *testing.T, inst sandbox.Instance) int {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if text, err := os.ReadFile(file); err == nil &&
			strings.Contains(string(text), "host\x00") && strings.Contains(string(text), inst.ID) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	t.Fatal("no guest runs")
	return 0
}

// A guest that does not end keeps its directory, by which a second Destroy finds it.
func TestDestroyGoesOn(t *testing.T) {
	p := openSSH(t, settings{})
	b := newBackend(t)
	inst := boot(t, b, p.spec(t))
	c := dialSessions(t, b, inst, TierGuest)
	run(t, attach(t, c, "main", wire.Start{}), "true")
	c.Close()
	guest := guestOf(t, inst)
	if err := syscall.Kill(guest, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(guest, syscall.SIGCONT) }) // may have ended
	err := b.Destroy(timeout(t), inst)
	if err == nil || !strings.Contains(err.Error(), p.uri()) ||
		!strings.Contains(err.Error(), "stop the guest") {
		t.Errorf(
			"Destroy of a stopped guest: got %v, want an error that names the host and the step",
			err)
	}
	if _, err := os.Stat(filepath.Join(p.home, ".cache", folder, inst.ID, "sock")); err != nil {
		t.Errorf("its directory is gone: %v", err)
	}
	if err := syscall.Kill(guest, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Errorf("Destroy of a guest that continues: %v", err)
	}
	until(t, "no process of ours is left", func() bool { return len(ours(t, p.home)) == 0 })
}

// Destroy ends a guest even if its program was removed.
func TestDestroyWithoutProgram(t *testing.T) {
	p := openSSH(t, settings{})
	b := newBackend(t)
	inst := boot(t, b, p.spec(t))
	run(t, attach(t, dialSessions(t, b, inst, TierGuest), "main", wire.Start{}), "true")
	guests, _ := filepath.Glob(filepath.Join(p.home, ".cache", folder, "guest-*"))
	for _, file := range guests {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Fatal(err)
	}
	until(t, "no process of ours is left", func() bool { return len(ours(t, p.home)) == 0 })
	if _, err := os.Stat(filepath.Join(p.home, ".cache", folder)); err == nil {
		t.Error("its directory is left")
	}
}

// If the machine denies the login its files stay, and the error of Destroy says so.
func TestDestroyShutOut(t *testing.T) {
	p := openSSH(t, settings{})
	b := newBackend(t)
	inst := boot(t, b, p.spec(t))
	dir := t.TempDir()
	other := keyPair(t, filepath.Join(dir, "other"))
	changed, refused := inst, inst
	changed.Host.Keys = []string{strings.TrimSpace(
		string(ssh.MarshalAuthorizedKey(other.PublicKey())))}
	refused.Host.Identity = filepath.Join(dir, "other")
	for _, tt := range []struct {
		name string
		inst sandbox.Instance
		want string
	}{
		{"key changed", changed, "has CHANGED"},
		{"login refused", refused, "denied the login"},
	} {
		err := b.Destroy(timeout(t), tt.inst)
		var left *sandbox.LeftError
		if !errors.As(err, &left) || !strings.Contains(left.Error(), tt.want) ||
			!strings.Contains(left.Error(), p.uri()) || !strings.Contains(left.Hint, inst.ID) {
			t.Errorf("%s: got %v, want that it was not cleaned up, and what to do", tt.name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(p.home, ".cache", folder, inst.ID)); err != nil {
		t.Errorf("the files are gone: %v", err)
	}
}
