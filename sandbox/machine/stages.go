package machine

import (
	"context"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Stages knows at which stage a Boot or a Start is.
type Stages struct {
	Stage   sandbox.Stage
	Entered func(sandbox.Stage) // called at the beginning of each stage; may be nil
}

// Enter begins a stage. It returns the cause of ctx if that has ended.
func (s *Stages) Enter(ctx context.Context, stage sandbox.Stage) error {
	s.Stage = stage
	if s.Entered != nil {
		s.Entered(stage)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Error returns a *sandbox.BootError with the stage, and with the hint of err.
func (s *Stages) Error(err error) error {
	return sandbox.AtStage(s.Stage, err)
}
