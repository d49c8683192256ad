package agent

import (
	"errors"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Error is an error with a code to branch on. Find it with errors.As, or compare by code:
//
//	errors.Is(err, &agent.Error{Code: agent.CodeNotFound})
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`           // what happened
	Hint    string `json:"hint,omitempty"`    // what to do about it
	Reason  string `json:"reason,omitempty"`  // of CodeLost: why, a Lost constant
	Refused int    `json:"refused,omitempty"` // of input: bytes that the terminal did not take
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Is reports whether target is an Error of the same code that has no message.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case *Error:
		return t.Code == e.Code && t.Message == ""
	case *wire.Error:
		return Code(t.Code) == e.Code && t.Message == ""
	}
	return false
}

// As gives the error to packages of the daemon, which know it as a *wire.Error.
func (e *Error) As(target any) bool {
	t, ok := target.(**wire.Error)
	if ok {
		*t = &wire.Error{Code: wire.Code(e.Code), Message: e.Message, Hint: e.Hint, Reason: e.Reason, Refused: e.Refused}
	}
	return ok
}

// Code names what went wrong. Go, JSON and the command line use the same words.
type Code string

// Codes of errors.
const (
	CodeNotFound       Code = "not_found"       // the caller has no such sandbox or session
	CodeNotPrompt      Code = "not_prompt"      // the shell is not at its prompt
	CodeNotWaiting     Code = "not_waiting"     // an answer was given, and no program asks
	CodeSyntax         Code = "syntax"          // the command is not complete shell syntax
	CodeKeyboardHeld   Code = "keyboard_held"   // somebody else holds the keyboard
	CodeLineTooLong    Code = "line_too_long"   // the terminal does not take a line of that length
	CodeLost           Code = "lost"            // the connection or the sandbox is gone, and what was under way with it
	CodeDenied         Code = "denied"          // the caller may not do that
	CodeUnavailable    Code = "unavailable"     // it cannot be had here, or not now
	CodeUsage          Code = "usage"           // the call itself is wrong
	CodeExists         Code = "exists"          // the name is taken
	CodeInternal       Code = "internal"        // a fault of the gateway; the message has an ID to find in its log
	CodeLimitSessions  Code = "limit_sessions"  // the sandbox has as many sessions as it may have
	CodeLimitSandboxes Code = "limit_sandboxes" // the owner has as many sandboxes as they may have
	CodeLimitQuota     Code = "limit_quota"     // the sandboxes of the owner have all that they may have together
	CodeLimitPids      Code = "limit_pids"      // the sandbox has as many processes as it may have
	CodeLimitPtys      Code = "limit_ptys"      // the sandbox, or its machine, has no terminal left
	CodeLimitOps       Code = "limit_ops"       // too many calls are under way at once
)

// Reasons for which a call was lost: Error.Reason of an error with CodeLost, and one of
// Result.Notes.
const (
	LostStopped   = "sandbox_stopped"     // somebody stopped the sandbox
	LostKilled    = "sandbox_killed"      // its processes were killed from outside
	LostMemory    = "oom_killed"          // it ran out of memory
	LostEngine    = "engine_restarted"    // the container engine was restarted
	LostHost      = "host_unreachable"    // the connection to the host broke
	LostGuest     = "guest_died"          // the process that serves the sandbox's sessions ended
	LostRemoved   = "sandbox_removed"     // somebody removed the sandbox
	LostPaused    = "sandbox_paused"      // somebody paused the sandbox; what was begun goes on when it is resumed
	LostShell     = "shell_ended"         // the shell that the call was first given to ended
	LostForgotten = "result_forgotten"    // the call was made, and its result is no longer known
	LostRecord    = "record_failed"       // its output could not be recorded, as the sandbox demands
	LostGateway   = "gateway_unreachable" // the connection to the gateway broke
	LostDetached  = "detached"            // the caller was disconnected from the session
	LostPartly    = "partly_done"         // some of it was typed, or the shell does not say whether it took the command
)

// explained is an error, and the Error that it means to callers.
type explained struct {
	error
	what *Error
}

func (e *explained) Unwrap() []error { return []error{e.error, e.what} }

// public returns err as the package's callers get it: with an Error in its chain where the daemon
// or a package below gave a code.
func public(err error) error {
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	w, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return err
	}
	e := newError(w)
	if error(w) == err { //nolint:errorlint // not wrapped: nothing else is in it
		return e
	}
	return &explained{err, e}
}
