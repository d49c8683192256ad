// Package marks teaches a shell to say where its prompts and commands begin and end, and takes
// those marks out of the terminal's output again.
//
// A mark is a private terminal sequence:
//
//	ESC ] 7337 ; kind ; nonce ; counter [; fields] BEL      (or ST instead of BEL)
//
// The nonce is 128 random bits that only the shell and the [Parser] know, the counter is the number
// of the prompt that the mark belongs to. A sequence with another nonce or with a counter out of
// order is ordinary output.
//
// The package knows no terminal, no process and no descriptor: it says how a shell has to be
// started ([For]), what has to be typed to run a command ([Integration.Command]), and reads bytes.
package marks

import (
	"crypto/rand"
	"encoding/hex"
)

// Nonce is the secret shared by one shell and the parser of its output. It is never put where
// another program of the sandbox can read it without attaching to the shell: not in an environment,
// an argument list or a file.
type Nonce [16]byte

// NewNonce returns a fresh random nonce.
func NewNonce() Nonce {
	var n Nonce
	rand.Read(n[:]) // never fails: crypto/rand ends the program instead
	return n
}

// String returns the 32 lower-case hexadecimal digits that stand in the marks.
func (n Nonce) String() string { return hex.EncodeToString(n[:]) }

// Kind says what a mark stands for.
type Kind int

// The kinds, in the order in which one cycle of a shell prints them.
const (
	PromptStart Kind = iota + 1 // the shell is about to print its prompt; carries Exit and Cwd
	// The prompt is complete, what follows is the echo of what is typed.
	PromptEnd
	// The shell shows PS2: what was typed so far is not a whole command.
	Continuation
	CommandStart // a command begins to run, what follows is its output
	CommandEnd   // the command is over; carries Exit
	// In place of CommandStart with Run: the command is not whole, and the shell is where it was.
	Refused
	PromptAgain // the prompt was drawn again, up to its end: after ^L, or a resize
	// In place of CommandStart with Run: the shell could not read a command that it had not run,
	// and ran none.
	Unread
)

// String returns the name of the kind as documentation writes it.
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
	}
	return "unknown"
}

// Mark is one valid mark of the shell.
type Mark struct {
	Kind Kind
	// Exit is the status of the last command as the shell's $? has it, for PromptStart and
	// CommandEnd.
	Exit int
	// Cwd is the shell's $PWD, any bytes, for PromptStart. Empty when the shell could not say.
	Cwd string
	// Run is set on the CommandStart that a command from [Integration.Command] prints. Most shells
	// print two for such a command: a first one without Run, as for everything that is typed, then
	// the one with it.
	Run bool
	// Number is the command's, if Run is set: what was given to Command with it.
	Number uint64
	// At is the index into the bytes that Parse returned with the mark at which it stood: all bytes
	// before At were printed before it.
	At int
}
