// Package marks makes a shell report where its prompts and commands begin and end. It also removes
// these marks from the terminal's output again.
//
// A mark is a private terminal sequence:
//
//	ESC ] 7337 ; kind ; nonce ; counter [; fields] BEL      (or ST instead of BEL)
//
// The nonce is 128 random bits that only the shell and the [Parser] know. The counter is the number
// of the prompt that the mark belongs to. A sequence with another nonce, or with a counter out of
// order, is ordinary output.
//
// The package does not use terminals, processes or descriptors. It returns how to start a shell
// ([For]) and what to type to run a command ([Integration.Command]), and parses bytes.
package marks

import (
	"crypto/rand"
	"encoding/hex"
)

// Nonce is the secret shared by one shell and the parser of its output. It is never in a place
// where another program of the sandbox can read it without tracing the shell: not in an
// environment, an argument list or a file.
type Nonce [16]byte

// NewNonce returns a fresh random nonce.
func NewNonce() Nonce {
	var n Nonce
	rand.Read(n[:]) // never fails: crypto/rand ends the program instead
	return n
}

// String returns the nonce as in marks: 32 lower-case hexadecimal digits.
func (n Nonce) String() string { return hex.EncodeToString(n[:]) }

// Kind is the kind of a mark.
type Kind int

// The kinds, in the order in which a shell prints them.
const (
	PromptStart Kind = iota + 1 // the shell is about to print its prompt; carries Exit and Cwd
	// The prompt is complete; the echo of typed input follows.
	PromptEnd
	// The shell shows PS2: the typed input is not a complete command yet.
	Continuation
	CommandStart // a command starts to run; its output follows
	CommandEnd   // the command has ended; carries Exit
	// Instead of CommandStart with Run: the command is not complete, and the shell has not run it.
	Refused
	PromptAgain // the prompt was redrawn up to its end, after ^L or a resize
	// Instead of CommandStart with Run: the shell found no new command on CommandFD and ran
	// nothing.
	Unread
	// A shell behind a relay has read what [Ask] returns, and reads the script; carries Shell.
	Ready
)

// String returns the name of the kind that the documentation uses.
func (k Kind) String() string {
	switch k {
	case PromptStart:
		return "prompt-start"
	case PromptEnd:
		return "prompt-end"
	case Continuation:
		return "continuation"
	case CommandStart:
		return "command-start"
	case CommandEnd:
		return "command-end"
	case Refused:
		return "refused"
	case PromptAgain:
		return "prompt-again"
	case Unread:
		return "unread"
	case Ready:
		return "ready"
	}
	return "unknown"
}

// Mark is one valid mark of the shell.
type Mark struct {
	Kind Kind
	// Exit is the value of $? after the last command, for PromptStart and CommandEnd.
	Exit int
	// Cwd is the shell's $PWD, any bytes, for PromptStart. Empty if the shell could not report it.
	Cwd string
	// Shell is the name of the shell, for Ready: bash, zsh, ksh, or ash for any other.
	Shell string
	// Run is set on the CommandStart of a command from [Integration.Command]. Most shells print two
	// of them for such a command: one without Run, as for every typed line, then one with Run.
	Run bool
	// Number is the number that was passed to Command, if Run is set.
	Number uint64
	// At is the position of the mark in the bytes that Parse returned with it: the shell printed
	// all bytes before At before the mark.
	At int
}
