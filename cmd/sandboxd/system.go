package main

import (
	"runtime"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// system is the operating system, unless a test has set another one with the linker.
var system = runtime.GOOS

// runsDaemon returns an error if no daemon runs on this kind of system. On macOS one runs with a
// Docker engine, which counts as one on another machine. All other commands work with a daemon
// elsewhere.
func runsDaemon() error {
	if system == "linux" || system == "darwin" {
		return nil
	}
	return lacks("the daemon runs on Linux and macOS")
}

// needsLinux returns an error if this is not Linux. What the product needs of Linux is in files
// whose names end in _linux.go.
func needsLinux() error {
	if system == "linux" {
		return nil
	}
	return lacks("this needs Linux")
}

func lacks(what string) error {
	return &wire.Error{Code: wire.CodeUnavailable, Message: what + ", and this is " + system,
		Hint: "start a daemon on a machine with Linux, and use it from here with " +
			"--gateway ssh://HOST:PORT; see docs/how-to/install.md"}
}

// installSSH returns what to do if there is no ssh(1) or scp(1).
func installSSH() string {
	if system == "windows" {
		return "add the optional feature OpenSSH Client in the settings of Windows"
	}
	return "install openssh-client"
}
