package agent

import "github.com/sandboxd/sandboxd/sandbox/wire"

// These functions convert the types of the wire protocol to the types of this package. TestConvert
// fails if a type lacks a field.

func newResult(r wire.Result) Result {
	return Result{
		Sandbox: r.Sandbox, Session: r.Session,
		Ended: Ended(r.Ended), Phase: Phase(r.Phase), Want: Want(r.Want), Prompt: r.Prompt,
		ExitCode: r.ExitCode, Signal: r.Signal,
		Listens: r.Listens, Attention: r.Attention, QuietMS: r.QuietMS, Notice: r.Notice,
		Output: r.Output, Truncated: r.Truncated, From: r.From, To: r.To,
		Cwd: r.Cwd, Foreground: optional(r.Foreground, newProcess),
		Shell: optional(r.Shell, newNestedShell), Program: r.Program,
		LooksLikeShell: r.LooksLikeShell,
		Basis:          each(r.Basis, newBasis), Disputed: each(r.Disputed, newBasis),
		ElapsedMS: r.ElapsedMS, Keyboard: r.Keyboard, Notes: r.Notes,
		Denied:  each(r.Denied, newDenial),
		Receipt: optional(r.Receipt, newReceipt), Error: optional(r.Error, newErrorValue),
		Screen: optional(r.Screen, newScreen), TakenOver: optional(r.TakenOver, newHandover),
	}
}

func newState(s wire.State) State {
	return State{
		Phase: Phase(s.Phase), Want: Want(s.Want), ExitCode: s.ExitCode, Signal: s.Signal,
		Reason: s.Reason,
		Cwd:    s.Cwd, Foreground: optional(s.Foreground, newProcess), Prompt: s.Prompt,
		Shell: optional(s.Shell, newNestedShell), Program: s.Program,
		LooksLikeShell: s.LooksLikeShell,
		Listens:        s.Listens, Attention: s.Attention, QuietMS: s.QuietMS,
		Basis: each(s.Basis, newBasis), Disputed: each(s.Disputed, newBasis),
		Offset: s.Offset, SinceUnix: s.SinceUnix, LastLine: s.LastLine, AltScreen: s.AltScreen,
	}
}

func newNestedShell(s wire.Shell) NestedShell {
	return NestedShell{Pid: s.Pid, Name: s.Name, Argv: s.Argv, User: s.User, Depth: s.Depth}
}

func newScreen(s wire.Screen) Screen {
	return Screen{
		Text: s.Text, Cols: s.Cols, Rows: s.Rows, CursorX: s.CursorX, CursorY: s.CursorY,
		Visible:   s.Visible,
		AltScreen: s.AltScreen, Title: s.Title, Offset: s.Offset, Stopped: s.Stopped,
		BracketedPaste: s.BracketedPaste,
	}
}

func newHandover(h wire.Handover) Handover {
	return Handover{
		By:       h.By,
		Offset:   h.Offset,
		Until:    h.Until,
		Commands: each(h.Commands, newTypedCommand),
	}
}

func newErrorValue(e wire.Error) Error {
	return Error{
		Code:    Code(e.Code),
		Message: e.Message,
		Hint:    e.Hint,
		Reason:  e.Reason,
		Refused: e.Refused,
	}
}

func newError(e *wire.Error) *Error             { return optional(e, newErrorValue) }
func newProcess(p wire.Process) Process         { return Process(p) }
func newTypedCommand(c wire.Typed) TypedCommand { return TypedCommand(c) }
func newDenial(d wire.Denial) Denial            { return Denial(d) }
func newReceipt(r wire.Receipt) Receipt         { return Receipt(r) }
func newBasis(b wire.Basis) Basis               { return Basis(b) }

// optional converts a value that may be nil.
func optional[From, To any](from *From, convert func(From) To) *To {
	if from == nil {
		return nil
	}
	to := convert(*from)
	return &to
}

// each converts a list. nil stays nil, because JSON distinguishes it from an empty list.
func each[From, To any](from []From, convert func(From) To) []To {
	if from == nil {
		return nil
	}
	to := make([]To, len(from))
	for i, f := range from {
		to[i] = convert(f)
	}
	return to
}
