package main

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick are checks that need no more than what scripts/setup test installs, and less than a minute
// with both behind.
const quick = `clients/(ssh: command|ssh -tt: terminal|ssh -T: shell|ssh: ControlMaster|sftp|dbclient|paramiko|half-close)$`

// A part of make -C scripts interop with each test run: nothing that passed may fail.
func TestQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a daemon, a container and an SSH server")
	}
	t.Chdir("../..")
	if _, err := os.Stat("bin/sandboxd"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatal("bin/sandboxd is not built; make build does that")
		}
		t.Skip("bin/sandboxd is not built; make build does that")
	}
	behind := "both"
	if os.Geteuid() != 0 {
		behind = container
		t.Log("a host of the test's own takes root: with a container only")
	}
	r, err := newReport(quick, behind)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken, failed, err := r.judge()
	if err != nil {
		t.Fatal(err)
	}
	if len(broken)+len(failed) > 0 {
		t.Errorf("failed:\n%s", strings.Join(append(broken, failed...), "\n"))
	}
	if want := 8 * len(r.backs); len(r.results) != want {
		t.Errorf("%d checks ran, want %d", len(r.results), want)
	}
}
