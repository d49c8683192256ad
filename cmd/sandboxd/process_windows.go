package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

func ownSession() *syscall.SysProcAttr { return ownGroup() }

// terminate is for daemons, which do not run here.
func terminate(int) error { return errors.ErrUnsupported }

// become runs another program, and ends with its exit code; it returns only an error.
func become(path string, args []string) error {
	cmd := exec.Command(path, args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return err
	}
	os.Exit(cmd.ProcessState.ExitCode())
	return nil
}

// notifyResize does nothing: consoles send no signal. A session keeps its first size.
func notifyResize(chan<- os.Signal) {}
