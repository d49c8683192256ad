//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// ownGroup are attributes of a program that does not get the keys of this terminal.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// ownSession are attributes of a program that survives this terminal.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// terminate asks a process to end.
func terminate(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }

// become runs another program in place of this one; it returns only an error.
func become(path string, args []string) error { return syscall.Exec(path, args, os.Environ()) }

// notifyResize makes changes receive when the size of the terminal changes.
func notifyResize(changes chan<- os.Signal) { signal.Notify(changes, syscall.SIGWINCH) }
