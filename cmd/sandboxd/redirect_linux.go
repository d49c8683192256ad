package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// redirect makes the descriptor of to, of this process, one of file.
func redirect(to, file *os.File) error { return unix.Dup3(int(file.Fd()), int(to.Fd()), 0) }
