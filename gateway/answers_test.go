package gateway_test

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A request that fits no frame is refused before it is sent: it is not lost, and the session goes
// on.
func TestRequestTooLong(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Shared(d)
	for _, r := range []wire.Request{{Verb: wire.VerbRun, Text: "true # " + strings.Repeat("x",
		2<<20)}, {Verb: wire.VerbType, Raw: true, Text: strings.Repeat("\x01", 200<<10)}} {
		reply, err := a.Request(w.Ctx(), r)
		e, ok := err.(*wire.Error) //nolint:errorlint // as sent
		if !ok || e.Code != wire.CodeUsage || reply.Result != nil {
			t.Errorf("%s: %+v, %v", r.Verb, reply.Result, err)
		}
	}
	// Of what JSON may write longer, a command has none.
	html := "cat >/dev/null <<'E'\n" + strings.Repeat("<li><a>\n", 50<<10) + "E"
	if reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: html}); err != nil ||
		reply.Result.Ended != wire.Done {
		t.Errorf("%d bytes of HTML: %+v, %v", len(html), reply.Result, err)
	}
}
