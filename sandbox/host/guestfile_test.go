package host

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A program is the guest only for its own architecture.
func TestGuestOfAnotherArchitecture(t *testing.T) {
	g := Guests{self: "/opt/sandboxd"}
	if got, err := g.Path(runtime.GOARCH); got != g.self || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, g.self)
	}
	const want = "no guest binary for riscv64"
	if got, err := g.Path("riscv64"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, %v, want an error: %s", got, err, want)
	}
}

// A program that needs a loader cannot be the guest.
func TestGuestItself(t *testing.T) {
	if _, err := GuestItself("/bin/sh"); !errors.Is(err, errDynamic) {
		t.Errorf("/bin/sh: got error %v, want %v", err, errDynamic)
	}
	guest, err := shared.guest()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := GuestItself(guest); err != nil {
		t.Errorf("the guest: %v", err)
	}
}

// GuestsBeside finds guests beside a program, also if the program's path is a link.
func TestGuestsBeside(t *testing.T) {
	dir := t.TempDir()
	program, link := filepath.Join(dir, "bin", "sandboxd"), filepath.Join(dir, "link")
	guest := filepath.Join(dir, "libexec", "sandboxd", guestPrefix+"arm64")
	for _, path := range []string{program, guest} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if g, ok := GuestsBeside(program); ok {
			t.Errorf("got %+v before there is a guest", g)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	g, ok := GuestsBeside(link)
	got, err := g.Path("arm64")
	if !ok || got != guest || err != nil {
		t.Errorf("got %q, %t, %v, want %q", got, ok, err, guest)
	}
}
