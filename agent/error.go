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
	Message string `json:"message"`          // what happened
	Hint    string `json:"hint,omitempty"`   // what to do about it
	Reason  string `json:"reason,omitempty"` // with CodeLost: a Lost constant
	// of input: number of bytes that the terminal did not take
	Refused int `json:"refused,omitempty"`
}

// Error returns Message.
func (e *Error) Error() string { return e.Message }

// Is reports whether target is an Error with the same Code and an empty Message.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case *Error:
		return t.Code == e.Code && t.Message == ""
	case *wire.Error:
		return Code(t.Code) == e.Code && t.Message == ""
	}
	return false
}

// As converts the error to a *wire.Error, for packages of the daemon.
func (e *Error) As(target any) bool {
	t, ok := target.(**wire.Error)
	if ok {
		*t = &wire.Error{
			Code:    wire.Code(e.Code),
			Message: e.Message,
			Hint:    e.Hint,
			Reason:  e.Reason,
			Refused: e.Refused,
		}
	}
	return ok
}

// Code is the kind of an error. Go, JSON and the command line use the same codes.
type Code string

// Codes of errors.
const (
	CodeNotFound     Code = "not_found"     // the caller has no such sandbox or session
	CodeNotPrompt    Code = "not_prompt"    // the shell is not at its prompt
	CodeNotWaiting   Code = "not_waiting"   // an answer was sent, but no program asks
	CodeSyntax       Code = "syntax"        // the command is incomplete shell syntax
	CodeKeyboardHeld Code = "keyboard_held" // another party holds the keyboard
	CodeLineTooLong  Code = "line_too_long" // the line is longer than the terminal accepts
	// CodeLost means that the connection or the sandbox is gone, so the outcome of the call is
	// unknown.
	CodeLost        Code = "lost"
	CodeDenied      Code = "denied"      // the caller is not allowed to do that
	CodeUnavailable Code = "unavailable" // not possible here, or not now
	CodeUsage       Code = "usage"       // the arguments of the call are wrong
	CodeExists      Code = "exists"      // the name is in use
	// CodeInternal means that the gateway failed; the message has an ID to find in its log.
	CodeInternal       Code = "internal"
	CodeLimitSessions  Code = "limit_sessions"  // the sandbox has reached its limit of sessions
	CodeLimitSandboxes Code = "limit_sandboxes" // the owner has reached the limit of sandboxes
	// CodeLimitQuota means that the owner's sandboxes together have reached a quota.
	CodeLimitQuota Code = "limit_quota"
	CodeLimitPids  Code = "limit_pids" // the sandbox has reached its limit of processes
	CodeLimitPtys  Code = "limit_ptys" // no terminal is left in the sandbox or on its machine
	CodeLimitOps   Code = "limit_ops"  // too many calls at the same time
)

// Reasons why a call was lost. Error.Reason of an error with CodeLost has one, and Result.Notes
// repeats it.
const (
	LostStopped = "sandbox_stopped"  // the sandbox was stopped
	LostKilled  = "sandbox_killed"   // its processes were killed from outside
	LostMemory  = "oom_killed"       // it ran out of memory
	LostEngine  = "engine_restarted" // the container engine was restarted
	LostHost    = "host_unreachable" // the connection to the host broke
	LostGuest   = "guest_died"       // the process that serves the sandbox's sessions ended
	LostRemoved = "sandbox_removed"  // the sandbox was removed
	// LostPaused means that the sandbox was paused; the command continues when it is resumed.
	LostPaused = "sandbox_paused"
	// LostShell means that the call was repeated, and the shell of its first attempt has ended.
	LostShell     = "shell_ended"
	LostForgotten = "result_forgotten" // the call was repeated, and its result is no longer stored
	// LostRecord means that the sandbox requires a recording, and the output could not be recorded.
	LostRecord   = "record_failed"
	LostGateway  = "gateway_unreachable" // the connection to the gateway broke
	LostDetached = "detached"            // the caller was disconnected from the session
	// LostPartly means that part of the text was typed, or the shell did not confirm the command.
	LostPartly = "partly_done"
)

// explained is an error together with the Error for callers.
type explained struct {
	error
	what *Error
}

func (e *explained) Unwrap() []error { return []error{e.error, e.what} }

// public returns err for callers of this package: a *wire.Error in its chain becomes an *Error.
func public(err error) error {
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	w, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return err
	}
	e := newError(w)
	if error(w) == err { //nolint:errorlint // err itself, not wrapped
		return e
	}
	return &explained{err, e}
}
