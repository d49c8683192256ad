package sandbox

import (
	"errors"
	"fmt"
)

// Errors that callers branch on. Backends wrap them with the action and its target.
var (
	ErrGone        = errors.New("no such instance")
	ErrStopped     = errors.New("not running")
	ErrUnsupported = errors.New("not supported by this backend")
	ErrNoImage     = errors.New("no such image")
	ErrEngine      = errors.New("engine does not answer")
	ErrRefused     = errors.New("engine refused") // the wrapping error has the engine's own text
)

// Hint returns err with what to do about it, in one sentence. A backend's BootError has it.
func Hint(err error, hint string) error { return hinted{err, hint} }

// HintOf returns the hint of err, or "".
func HintOf(err error) string {
	h, _ := errors.AsType[hinted](err)
	return h.hint
}

type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// LeftError is an error of Destroy that a retry cannot fix: the daemon can no longer reach what is
// left.
type LeftError struct {
	Where string // machine on which something is left
	Hint  string // how to remove it, in one sentence; may be empty
	Err   error  // why
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("%s was not cleaned up: %v", e.Where, e.Err)
}

func (e *LeftError) Unwrap() error { return e.Err }

// Stage is a part of the way to a running sandbox.
type Stage string

// The stages. A backend has some of them. An error of Boot at validate, connect, host key, login,
// engine or image says that nothing of the sandbox was made.
const (
	StageValidate Stage = "validate" // is the request allowed?
	StageConnect  Stage = "connect"  // to a host
	StageHostKey  Stage = "host key" // is it that host?
	StageLogin    Stage = "login"    // to the host
	StageEngine   Stage = "engine"   // can this engine or machine do it?
	StageImage    Stage = "image"    // find or pull it
	StageBuild    Stage = "build"    // of an image, by a Dockerfile or a setup
	StageKeys     Stage = "keys"     // make the files and the keys of the sandbox
	StageCreate   Stage = "create"   // the container
	StageAttach   Stage = "attach"   // to the container's input
	StageStart    Stage = "start"    // the container
	StageGuest    Stage = "guest"    // wait until it answers
)

// BootError is an error of Boot, Start, Build or Prepared, with the stage at which it happened.
type BootError struct {
	Stage Stage
	Hint  string // what to do about it, in one sentence; may be empty
	Err   error
}

// AtStage returns a *BootError with the hint of err.
func AtStage(stage Stage, err error) error {
	return &BootError{Stage: stage, Hint: HintOf(err), Err: err}
}

func (e *BootError) Error() string { return fmt.Sprintf("boot: %s: %v", e.Stage, e.Err) }
func (e *BootError) Unwrap() error { return e.Err }

// StepError is a failed step of a Dockerfile or of a setup.
type StepError struct {
	Step   string // its file and line, and the beginning of its text
	Code   int    // exit code; 0 if it did not run
	Output string // the last lines of its output, or why it did not run; safe to display
}

func (e *StepError) Error() string {
	said := e.Step
	if e.Code != 0 {
		said += fmt.Sprintf(": exit code %d", e.Code)
	}
	if e.Output != "" {
		said += ": " + e.Output
	}
	return said
}
