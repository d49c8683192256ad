package lifecycle

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// End is a scheduled end of a sandbox, which comes whether or not the sandbox is in use. The zero
// value is none.
type End struct {
	// By the daemon's clock; if the daemon is down then, at its next start.
	At time.Time `json:"at,omitzero"`
	// pause and keep it; otherwise remove it with its files
	Pause bool `json:"pause,omitempty"`
}

// Limits of Labels.
const (
	maxLabels     = 64
	maxLabelBytes = 16 << 10 // of all keys and values together
)

// planEnd checks the scheduled end and the labels of spec.
func (o *Options) planEnd(spec NewSpec, be sandbox.Backend) error {
	if err := spec.End.check(be); err != nil {
		return err
	}
	if len(spec.Labels) > maxLabels {
		return wire.Errorf(wire.CodeUsage, "labels: %d; the limit is %d", len(spec.Labels),
			maxLabels)
	}
	n := 0
	for key, value := range spec.Labels {
		if n += len(key) + len(value); key == "" || !utf8.ValidString(key) ||
			!utf8.ValidString(value) {
			return wire.Errorf(wire.CodeUsage,
				"label %q: key is empty, or key or value is not UTF-8", oneLine(key, 64))
		}
	}
	if n > maxLabelBytes {
		return wire.Errorf(wire.CodeUsage, "labels: %d bytes; the limit is %d", n, maxLabelBytes)
	}
	return nil
}

// check returns an error if be does not support e, or e is in the past.
func (e End) check(be sandbox.Backend) error {
	_, pauses := be.(sandbox.Pauser)
	switch {
	case e == End{}:
		return nil
	case isHost(be):
		return wire.Errorf(wire.CodeUsage,
			"end: hosts cannot have one; the daemon does not remove the machine")
	case e.Pause && !pauses:
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: "end: this backend cannot pause sandboxes",
			Hint:    "leave pause out: the sandbox is then removed"}
	case !e.At.IsZero() && !time.Now().Before(e.At):
		return wire.Errorf(wire.CodeUsage, "end: %s is in the past",
			e.At.UTC().Format(time.RFC3339))
	}
	return nil
}

// SetEnd replaces the sandbox's scheduled end; the zero End removes it.
func (sb *Sandbox) SetEnd(ctx context.Context, by string, end End) (Info, error) {
	reg := sb.reg
	var info Info
	err := sb.act(ctx, func(ctx context.Context, f Record) error {
		be, err := reg.options.backend(f.Instance.Backend)
		if err == nil {
			err = end.check(be)
		}
		if err != nil {
			return err
		}
		if err := sb.transition(ctx, func(f *Record) { f.End = end }); err != nil {
			return err
		}
		reg.journal.add(sb.id, "end", map[string]any{"by": by, "end": end})
		info = sb.Info()
		return nil
	})
	return info, err
}

// endScheduled carries out the scheduled end of sb, if it is still due once the act has begun.
func (e *expiry) endScheduled(ctx context.Context) {
	reg := e.sb.reg
	if f := e.sb.get(); f.End.Pause {
		err := e.sb.act(ctx, func(ctx context.Context, f Record) error {
			if !f.overdue() || !f.End.Pause {
				return nil
			}
			if f.State == Running {
				if err := e.sb.pause(ctx, f, "its end", false); err != nil {
					return err
				}
			}
			return e.sb.transition(ctx, func(f *Record) { f.End.At = time.Time{} })
		})
		if err != nil && ctx.Err() == nil {
			reg.log.Warn("sandbox not paused at its end", "id", e.sb.id, "name", f.Name, "err", err)
		}
		return
	}
	_, err := reg.removals.removeIf(ctx, e.sb, func(f Record) bool {
		over := f.overdue() && !f.End.Pause
		if over {
			reg.log.Info("sandbox removed: its scheduled end has come", "id", e.sb.id,
				"name", f.Name, "end", f.End.At)
		}
		return over
	})
	if err != nil && ctx.Err() == nil {
		reg.log.Warn("removal failed, will retry", "id", e.sb.id, "err", err)
	}
}

// Text formats e for people; empty for none.
func (e End) Text() string {
	if e.At.IsZero() {
		return ""
	}
	what := "REMOVED WITH ITS FILES"
	if e.Pause {
		what = "paused"
	}
	return fmt.Sprintf("%s in %v, used or not", what, time.Until(e.At).Round(time.Second))
}
