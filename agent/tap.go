package agent

import (
	"io"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// tap copies the output of one command from a shell's stream. The session reports the offsets of
// its begin and end before it sends later bytes.
type tap struct {
	op string

	mu sync.Mutex
	// guarded by mu; receives the exact bytes; nil if not wanted or after close
	w      io.Writer
	keep   *strings.Builder // guarded by mu; collects them; may be nil
	begun  bool             // guarded by mu
	over   bool             // guarded by mu; to is set
	next   uint64           // guarded by mu; the next byte to pass on, once begun
	to     uint64           // guarded by mu; end of the command's output, once over
	broken bool             // guarded by mu; bytes are missing
}

func newTap(op string, w io.Writer, keep bool) *tap {
	t := &tap{op: op, w: w}
	if keep {
		t.keep = new(strings.Builder)
	}
	return t
}

func (t *tap) output(offset uint64, p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := offset + uint64(len(p))
	if t.over {
		end = min(end, t.to)
	}
	if !t.begun || end <= t.next { // not output of the command, or a repetition
		return
	}
	if offset > t.next {
		t.broken = true
		t.next = offset
	}
	if end <= t.next {
		return
	}
	p = p[t.next-offset : end-offset]
	t.next = end
	if t.w != nil {
		_, _ = t.w.Write(p) // ignored, as Call.Stdout documents
	}
	if t.keep != nil && !t.broken {
		if t.keep.Len()+len(p) > wire.MaxWhole {
			t.broken = true
			return
		}
		t.keep.Write(p)
	}
}

// begin sets the offset at which the command's output begins.
func (t *tap) begin(from uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.begun {
		t.begun, t.next = true, from
	}
}

// end sets the offset at which the command's output ends.
func (t *tap) end(to uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.over, t.to = true, to
	}
}

// close ends the tap; nothing is written to w afterwards. It returns the rendered output from from
// to to, and whether it is complete.
func (t *tap) close(from, to uint64) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.w = nil
	whole := t.keep != nil && t.begun && !t.broken && t.next >= to
	if !whole {
		return "", false
	}
	kept := t.keep.String()
	first := t.next - uint64(len(kept))
	if from < first {
		return "", false
	}
	// A call that returned at a question may have collected bytes that arrived after it.
	rendered, _ := text.Render(
		[]byte(kept[min(from-first, uint64(len(kept))):uint64(len(kept))-(t.next-to)]),
		-1,
	)
	return rendered, true
}
