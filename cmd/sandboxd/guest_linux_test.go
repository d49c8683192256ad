package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// goInstallCmd installs this program into a directory, as go install does without a C compiler.
//
//	goinstall DIR
func goInstallCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: goinstall DIR")
	}
	// with -trimpath as in make build, whose packages are in the cache
	install := exec.Command("go", "install", "-trimpath", ".")
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
		{"/home/me/.cache/guest-01 stdio /x", "/home/me/.cache/guest-01 stdio /x"},
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
