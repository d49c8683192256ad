// Command sandboxd-guest runs inside every sandbox as its PID 1: the SSH server, the sessions, and nothing of the image
// around it. It is built static, and takes its keys from standard input.
package main

import (
	"os"

	"github.com/sandboxd/sandboxd/sandbox/guest"
)

func main() { os.Exit(guest.Main(os.Args)) }
