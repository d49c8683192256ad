//go:build linux

// Command sandboxd-guest runs inside every sandbox as PID 1: it is the SSH server and runs the
// sessions. It needs no file of the image. It is built static, and reads its keys from standard
// input.
package main

import (
	"os"

	"github.com/sandboxd/sandboxd/sandbox/guest"
)

func main() { os.Exit(guest.Main(os.Args)) }
