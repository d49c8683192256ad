package machine

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHalted(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if Halted(pid) {
		t.Error("a running process is halted")
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("%v, %v", status, err)
	}
	if !Halted(pid) {
		t.Error("a stopped process is not halted")
	}
	if Halted(-1) {
		t.Error("a missing process is halted")
	}
}
