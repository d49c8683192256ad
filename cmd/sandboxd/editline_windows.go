package main

import "golang.org/x/term"

// editLine lets this program edit lines of the terminal instead of the system.
func editLine(fd int) (restore func(), err error) {
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, before) }, nil
}
