package agent

import "github.com/sandboxd/sandboxd/sandbox/wire"

// ShellOptions configure [Client.Attach]. The zero value attaches to the session of the client's
// URI, or main, and starts it if it does not exist. The Shell then receives the output from now on.
type ShellOptions struct {
	Session string // name of the session; with Fresh, "new" generates one
	Fresh   bool   // start a new session; an existing name is an error
	NoNew   bool   // fail with not_found instead of starting a session
	From    Offset // where in the log to begin reading
	Start   Start  // how to start a session that does not exist
	// Shell.Resume of an earlier Shell: be the same party, with the same keyboard; Session is not
	// used
	Resume string
	Window int // bytes of output that Expect searches; 0 means 64 KiB
}

// Offset is a position in the log of a session. The zero value is the current end of the log.
type Offset struct{ at wire.Offset }

// At returns the position after the first n bytes of a log. If those bytes are no longer stored,
// reading begins at the first stored byte.
func At(n uint64) Offset { return Offset{wire.At(n)} }

// Start says how to start a session. The zero value is the sandbox's login shell in a terminal of
// 120 columns and 40 rows.
type Start struct {
	// a program to run instead of the shell; the session ends with it and has no prompt
	Argv []string
	Env  []string // additional environment variables, as NAME=VALUE
	Dir  string   // working directory; empty means that of the sandbox
	Term string   // TERM; empty means xterm-256color
	Cols int      // columns; 0 means 200
	Rows int      // rows; 0 means 50
	// a plain terminal: no shell integration, and no variables that keep programs from starting a
	// pager
	Bare bool

	// Without disables layers of evidence: BasisProcess, BasisMark, BasisScreen. It is for tests.
	Without []Basis
}

func (s Start) wire() *wire.Start {
	return &wire.Start{
		Argv:    s.Argv,
		Env:     s.Env,
		Dir:     s.Dir,
		Term:    s.Term,
		Cols:    s.Cols,
		Rows:    s.Rows,
		Bare:    s.Bare,
		Without: each(s.Without, func(b Basis) wire.Basis { return wire.Basis(b) }),
	}
}
