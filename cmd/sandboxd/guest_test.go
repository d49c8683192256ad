package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// goInstallCmd installs this program into a directory, as go install does where there is no C compiler.
//
//	goinstall DIR
func goInstallCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: goinstall DIR")
	}
	install := exec.Command("go", "install", "-trimpath", ".") // the build has its parts in the cache by that flag
	install.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+ts.MkAbs(args[0]))
	if out, err := install.CombinedOutput(); err != nil {
		ts.Fatalf("go install: %v: %s", err, out)
	}
}

func TestRunsAsGuest(t *testing.T) {
	for _, tt := range []struct {
		args, want string // want is empty for the command line
	}{
		{"sandboxd", ""},
		{"sandboxd serve", ""},
		{"/usr/local/bin/sandboxd exec guest", ""},
		{"/dev/.sandboxd/guest-0123456789ab", "/dev/.sandboxd/guest-0123456789ab"},
		{"/home/me/.cache/sandboxd-guest/guest-01 stdio /x", "/home/me/.cache/sandboxd-guest/guest-01 stdio /x"},
		{"sandboxd-guest keep", "sandboxd-guest keep"},
		{"sandboxd guest version", "sandboxd-guest version"},
		{"sandboxd guest", "sandboxd-guest"},
	} {
		got, ok := runsAsGuest(strings.Fields(tt.args))
		if ok != (tt.want != "") || !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("%q: got %q, %t, want %q", tt.args, got, ok, tt.want)
		}
	}
}

// This program is a guest of its own architecture only.
func TestGuestOfAnotherArchitecture(t *testing.T) {
	g := guests{self: "/opt/sandboxd"}
	if got, err := g.path(runtime.GOARCH); got != g.self || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, g.self)
	}
	if got, err := g.path("riscv64"); err == nil || !strings.Contains(err.Error(), "there is no guest binary for riscv64") {
		t.Errorf("got %q, %v, want an error", got, err)
	}
}

// A program that needs a loader is no guest.
func TestCheckStatic(t *testing.T) {
	if err := checkStatic("/bin/sh"); !errors.Is(err, errDynamic) {
		t.Errorf("/bin/sh: got error %v, want %v", err, errDynamic)
	}
	if err := checkStatic(filepath.Join(guestBinaries, guestPrefix+"amd64")); err != nil {
		t.Errorf("the guest: %v", err)
	}
}
