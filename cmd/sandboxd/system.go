package main

import (
	"runtime"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// needsLinux returns an error if this machine cannot run a daemon. All other commands work with a
// daemon on another machine: what they need of Linux is in files whose names end in _linux.go.
func needsLinux() error {
	if runtime.GOOS == "linux" {
		return nil
	}
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: "the daemon runs on Linux, and this is " + runtime.GOOS,
		Hint: "start it on a machine with Linux, and use it from here with " +
			"--gateway ssh://HOST:PORT; see docs/how-to/install.md"}
}

// installSSH returns what to do if there is no ssh(1) or scp(1).
func installSSH() string {
	if runtime.GOOS == "windows" {
		return "add the optional feature OpenSSH Client in the settings of Windows"
	}
	return "install openssh-client"
}
