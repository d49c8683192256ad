package docker

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsHalted(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if isHalted(pid) {
		t.Error("one that runs is halted")
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("%v, %v", status, err)
	}
	if !isHalted(pid) {
		t.Error("one that was stopped is not halted")
	}
	if isHalted(-1) {
		t.Error("one that does not exist is halted")
	}
}
