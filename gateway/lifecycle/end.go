package lifecycle

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// End is a moment at which a sandbox ends, whoever uses it. The zero value is none.
type End struct {
	At    time.Time `json:"at,omitzero"`     // by the daemon's clock, also when that was not running then
	Pause bool      `json:"pause,omitempty"` // it is paused and kept; otherwise it is removed with its files
}

// Bounds of Labels.
const (
	maxLabels     = 64
	maxLabelBytes = 16 << 10 // of all together
)

// planEnd checks what spec says of the sandbox's end, and its labels.
func (o *Options) planEnd(spec NewSpec, be sandbox.Backend) error {
	if err := spec.End.check(be); err != nil {
		return err
	}
	if len(spec.Labels) > maxLabels {
		return wire.Errorf(wire.CodeUsage, "%d labels are more than %d", len(spec.Labels), maxLabels)
	}
	n := 0
	for key, value := range spec.Labels {
		if n += len(key) + len(value); key == "" || !utf8.ValidString(key) || !utf8.ValidString(value) {
			return wire.Errorf(wire.CodeUsage, "label %q is not UTF-8 under a name", oneLine(key, 64))
		}
	}
	if n > maxLabelBytes {
		return wire.Errorf(wire.CodeUsage, "the labels have %d bytes; %d are allowed", n, maxLabelBytes)
	}
	return nil
}

// check says why e cannot be had of be, if it cannot.
func (e End) check(be sandbox.Backend) error {
	_, pauses := be.(sandbox.Pauser)
	switch {
	case e == End{}:
		return nil
	case isHost(be):
		return wire.Errorf(wire.CodeUsage, "a machine that is taken as it is has no end: the daemon does not remove it")
	case e.Pause && !pauses:
		return &wire.Error{Code: wire.CodeUnavailable, Message: "this backend pauses no sandboxes", Hint: "have it removed at its end"}
	case !e.At.IsZero() && !time.Now().Before(e.At):
		return wire.Errorf(wire.CodeUsage, "an end at %s is in the past", e.At.UTC().Format(time.RFC3339))
	}
	return nil
}

// SetEnd gives a sandbox another end; the zero End takes it away. Whether it is used makes no
// difference to it.
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
		if err := sb.become(ctx, func(f *Record) { f.End = end }); err != nil {
			return err
		}
		reg.journal.add(sb.id, "end", map[string]any{"by": by, "end": end})
		info = sb.Info()
		return nil
	})
	return info, err
}

// finish does what sb asked for at its end, if that has come still by the time that this waited for
// its turn.
func (e *expiry) finish(ctx context.Context) {
	reg := e.sb.reg
	if f := e.sb.get(); f.End.Pause {
		err := e.sb.act(ctx, func(ctx context.Context, f Record) error {
			if !f.overdue() || !f.End.Pause {
				return nil
			}
			if f.State == Running {
				if err := e.sb.freeze(ctx, f, "its end"); err != nil {
					return err
				}
			}
			return e.sb.become(ctx, func(f *Record) { f.End.At = time.Time{} })
		})
		if err != nil && ctx.Err() == nil {
			reg.log.Warn("a sandbox is not paused at its end", "id", e.sb.id, "name", f.Name, "err", err)
		}
		return
	}
	_, err := reg.removals.removeIf(ctx, e.sb, func(f Record) bool {
		over := f.overdue() && !f.End.Pause
		if over {
			reg.log.Info("removed: its end has come", "id", e.sb.id, "name", f.Name, "end", f.End.At)
		}
		return over
	})
	if err != nil && ctx.Err() == nil {
		reg.log.Warn("removal waits", "id", e.sb.id, "err", err)
	}
}

// Text says it in words, empty for none.
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
