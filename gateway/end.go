package gateway

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
func (h *Hub) planEnd(spec NewSpec, be sandbox.Backend) error {
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
func (h *Hub) SetEnd(ctx context.Context, p Principal, name string, end End) (Info, error) {
	var info Info
	err := h.act(ctx, p, name, "saying when it ends", func(ctx context.Context, b *box, f facts) error {
		be, err := h.backend(f.inst.Backend)
		if err == nil {
			err = end.check(be)
		}
		if err != nil {
			return err
		}
		f.end = end
		if err := h.note(b.id, f); err != nil {
			return stored(err)
		}
		if err := b.become(ctx, func(f *facts) { f.end = end }); err != nil {
			return err
		}
		h.journal.add(b.id, "end", map[string]any{"by": p.Name, "end": end})
		info = b.info()
		return nil
	})
	return info, err
}

// overdue reports whether its end has come.
func (f facts) overdue() bool {
	switch f.state {
	case Creating, Deleting, Lost, Warm:
		return false
	}
	return !f.end.At.IsZero() && !time.Now().Before(f.end.At)
}

// finish does what b asked for at its end, if that has come still by the time that this waited for
// its turn.
func (b *box) finish(ctx context.Context) {
	h := b.hub
	if f := b.get(); f.end.Pause {
		p := Principal{Name: f.owner}
		err := h.act(ctx, p, f.name, "pausing", func(ctx context.Context, b *box, f facts) error {
			if !f.overdue() || !f.end.Pause {
				return nil
			}
			if f.state == Running {
				if err := b.freeze(ctx, f, "its end"); err != nil {
					return err
				}
			}
			return b.become(ctx, func(f *facts) { f.end.At = time.Time{} })
		})
		if err != nil && ctx.Err() == nil {
			h.log.Warn("a sandbox is not paused at its end", "id", b.id, "name", f.name, "err", err)
		}
		return
	}
	_, err := b.removeIf(ctx, func(f facts) bool {
		over := f.overdue() && !f.end.Pause
		if over {
			h.log.Info("removed: its end has come", "id", b.id, "name", f.name, "end", f.end.At)
		}
		return over
	})
	if err != nil && ctx.Err() == nil {
		h.log.Warn("removal waits", "id", b.id, "err", err)
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
