package session

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A call that the end of the sandbox interrupts is lost, and no internal error.
func TestCallAtTheEnd(t *testing.T) {
	s := &session{name: "main"}
	got := s.public(fmt.Errorf("start: %w", context.Canceled))
	if got.Code != wire.CodeLost || !strings.Contains(got.Message, "session main is ending") {
		t.Errorf("got %v, want lost", got)
	}
}

func TestFatal(t *testing.T) {
	const status = "Name:\tsleep\nState:\tS " +
		"(sleeping)\nSigQ:\t0/31\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n" +
		"SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"
	if !fatal([]byte(status), syscall.SIGINT) {
		t.Error("a program that does nothing about INT does not die of it")
	}
	for _, field := range []string{"SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"} {
		if fatal(
			[]byte(
				strings.Replace(
					status,
					field+":\t0000000000000000",
					field+":\t0000000000000002",
					1,
				),
			),
			syscall.SIGINT,
		) {
			t.Errorf("%s does not count", field)
		}
	}
	for _, bad := range []string{"", "State:\tS",
		strings.Replace(status, "S (sleeping)", "Z (zombie)", 1),
		strings.ReplaceAll(status, "0000", "x")} {
		if fatal([]byte(bad), syscall.SIGINT) {
			t.Errorf("%q: would die", bad)
		}
	}
}

// TestSurvives checks real processes: one that INT would end, and this one, which handles INT.
func TestSurvives(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if !survives(cmd.Process.Pid, syscall.SIGTERM) {
		t.Error("sleep does something about TERM")
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	defer signal.Stop(c)
	if survives(os.Getpid(), syscall.SIGTERM) {
		t.Error("we do nothing about TERM")
	}
}
