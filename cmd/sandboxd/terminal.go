package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shownOn returns where what a daemon says goes: to w as it is, or, where w is a terminal, as text
// alone. A daemon may be anybody's (--gateway), and what it says may be a sandbox's.
func shownOn(w io.Writer) io.WriteCloser {
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return text.NewTerminal(f)
	}
	if w == nil {
		w = io.Discard
	}
	return asItIs{w}
}

// asItIs is a writer that shownOn leaves as it is, a terminal too. Closing it does nothing.
type asItIs struct{ io.Writer }

func (asItIs) Close() error { return nil }

// maxLine bounds one line of a daemon's answer, in bytes: the pictures of a call of python.
const maxLine = 256 << 20

// held is an answer that is read as a whole. Of one that is too long it ends the call.
type held struct {
	most int
	stop func(error) // ends the call
	all  bytes.Buffer
}

func (h *held) Write(p []byte) (int, error) {
	if len(p) > h.most-h.all.Len() {
		err := &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("the daemon's answer is longer than %d MiB", h.most>>20),
			Hint:    "see that --gateway names a daemon of yours"}
		h.stop(err)
		return 0, err
	}
	return h.all.Write(p)
}

func (h *held) Bytes() []byte { return h.all.Bytes() }
