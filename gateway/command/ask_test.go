package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A password prompt handles the editing keys and echoes nothing.
func TestAsk(t *testing.T) {
	for typed, want := range map[string]string{"horse\r": "horse", "hx\x7forse\n": "horse",
		"\x7fx\x15horse\rrest": "horse", "\r": ""} {
		var shown bytes.Buffer
		env := &Env{Stdin: strings.NewReader(typed), Stderr: &shown, Pty: &wire.PtyReq{}}
		got, err := sandbox.AskOf(env.asking(t.Context(), false))(t.Context(), "password: ")
		if got != want || err != nil || shown.String() != "password: \n" {
			t.Errorf("%q: got %q, %v, and shown %q", typed, got, err, shown.String())
		}
	}
	for _, typed := range []string{"", "half", "\x04", strings.Repeat("x", 2*maxSecret)} {
		if got, err := typedLine(strings.NewReader(typed), io.Discard); err == nil {
			t.Errorf("%.10q: got %q, want an error", typed, got)
		}
	}
	if sandbox.AskOf((&Env{}).asking(t.Context(), false)) != nil {
		t.Error("asks without a terminal")
	}
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	env := &Env{Stdin: r, Stderr: io.Discard, Pty: &wire.PtyReq{}}
	if _, err := sandbox.AskOf(env.asking(ctx, false))(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: got %v", err)
	}
}

func TestConfirm(t *testing.T) {
	for typed, want := range map[string]bool{"y\r": true, "YES\n": true, "n\r": false, "\r": false,
		"yellow\r": false, "nx\x7f\x7fy\r": true} {
		var shown bytes.Buffer
		env := &Env{Stdin: strings.NewReader(typed), Stderr: &shown, Pty: &wire.PtyReq{}}
		if got, err := env.confirm(t.Context(), "sure?"); got != want || err != nil ||
			!strings.HasPrefix(shown.String(), "sure? [y/N] "+typed[:1]) && typed != "\r" {
			t.Errorf("%q: got %v, %v, and shown %q", typed, got, err, shown.String())
		}
	}
	for _, typed := range []string{"", "y", "y\x03", "\x04"} {
		env := &Env{Stdin: strings.NewReader(typed), Stderr: io.Discard, Pty: &wire.PtyReq{}}
		if got, err := env.confirm(t.Context(), ""); got || err == nil {
			t.Errorf("%q: got %v, %v, want an error", typed, got, err)
		}
	}
}
