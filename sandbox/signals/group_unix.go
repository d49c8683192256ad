//go:build unix

package signals

import (
	"os/exec"
	"syscall"
)

// EndTogether makes a program, before its start, and all that it starts get a signal when its
// context ends: they are a process group of their own, which the terminal's keys do not reach.
func EndTogether(cmd *exec.Cmd, sig syscall.Signal) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, sig) }
}
