package agent

import "github.com/sandboxd/sandboxd/sandbox/wire"

// ShellOptions say how to attach to a session. The zero value attaches to the session of the
// client's URI, else to main, starts it if it does not exist, and reads what it prints from now on.
type ShellOptions struct {
	Session string // name of the session; "new" with Fresh generates one
	Fresh   bool   // start a session of that name; one that exists is an error
	NoNew   bool   // fail with not_found instead of starting a session
	From    Offset // where in the log output begins
	Start   Start  // how to start the session, if this call starts it
	Resume  string // Shell.Resume of an earlier Shell: be the same party, with the same keyboard; Session is not used
	Window  int    // bytes that Expect looks back at; 0 is 64 KiB
}

// Offset is a place in the log of a session. The zero value is the end of what has been printed so
// far.
type Offset struct{ at wire.Offset }

// At is the place behind the first n bytes of a log. Of what is no longer kept reading begins at
// the first byte that is.
func At(n uint64) Offset { return Offset{wire.At(n)} }

// Start says how a session begins. The zero value is the sandbox's login shell, in a terminal of
// 200 columns and 50 rows.
type Start struct {
	Argv []string // a program in place of the shell; the session ends with it and has no prompt
	Env  []string // NAME=VALUE, on top of the sandbox's environment
	Dir  string   // working directory; empty is the sandbox's own
	Term string   // TERM; empty is xterm-256color
	Cols int      // 0 is 200
	Rows int      // 0 is 50
	Bare bool     // a plain terminal: no shell integration, and no variables that keep programs from starting a pager

	// Without are layers of evidence that the session's states do without: BasisProcess, BasisMark,
	// BasisScreen. It is for tests.
	Without []Basis
}

func (s Start) wire() *wire.Start {
	return &wire.Start{Argv: s.Argv, Env: s.Env, Dir: s.Dir, Term: s.Term, Cols: s.Cols, Rows: s.Rows, Bare: s.Bare,
		Without: each(s.Without, func(b Basis) wire.Basis { return wire.Basis(b) })}
}
