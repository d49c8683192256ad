package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shownOn returns the writer for output of a daemon: w unchanged, or plain text if w is a terminal.
// The daemon (--gateway) and the sandbox may be untrusted.
func shownOn(w io.Writer) io.WriteCloser {
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		return text.NewTerminal(f)
	}
	if w == nil {
		w = io.Discard
	}
	return asItIs{w}
}

// asItIs is a writer that shownOn does not filter, even if it is a terminal. Closing it does
// nothing.
type asItIs struct{ io.Writer }

func (asItIs) Close() error { return nil }

// maxLine is the longest line of a daemon's answer, in bytes: the images of a python call.
const maxLine = 256 << 20

// held collects an answer. It ends the call if the answer is too long.
type held struct {
	most int
	stop func(error) // ends the call
	all  bytes.Buffer
}

func (h *held) Write(p []byte) (int, error) {
	if len(p) > h.most-h.all.Len() {
		err := &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("answer of the daemon: longer than %d MiB", h.most>>20),
			Hint:    "check that --gateway names your daemon"}
		h.stop(err)
		return 0, err
	}
	return h.all.Write(p)
}

func (h *held) Bytes() []byte { return h.all.Bytes() }
