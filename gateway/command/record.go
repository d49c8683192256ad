package command

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

func recordCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{logCommand(env), replayCommand(env)}
}

// lineText returns the command line of c. It renders a typed one from the recording, and returns
// nothing for one in private mode.
func lineText(ctx context.Context, r *record.Reader, c *record.Command) string {
	if !c.Typed() {
		return c.Text
	}
	const most = 4 << 10
	var line lineBuffer
	from := max(c.Line[0], c.Line[1]-min(c.Line[1], 4*most))
	private := false
	if err := record.Copy(ctx, &line, r, from, c.Line[1],
		func(*record.GapError) { private = true }); err != nil || private {
		return ""
	}
	shown, _ := text.Render(line, most)
	return strings.TrimSpace(shown)
}

// lineBuffer appends what is written to it.
type lineBuffer []byte

func (b *lineBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// place parses a position in a recording and returns its offset: a time since the start such as
// 12m30s, an offset such as @4096, or a command such as #3, or #-1 for the last.
func place(r *record.Reader, s string) (uint64, error) {
	switch {
	case strings.HasPrefix(s, "@"):
		off, err := strconv.ParseUint(s[1:], 10, 63)
		if err != nil {
			return 0, usage("invalid offset %q: write @ and a number of bytes", s)
		}
		return min(off, r.End()), nil
	case strings.HasPrefix(s, "#"):
		n, err := strconv.Atoi(s[1:])
		if err != nil {
			return 0, usage("invalid command %q: write # and a number", s)
		}
		_, c, err := numbered(r, n)
		if err != nil {
			return 0, err
		}
		return c.Line[0], nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, usage(
			"invalid position %q: write a time such as 12m30s, an offset such as @4096, "+
				"or a command such as #3", s)
	}
	return r.At(time.UnixMilli(r.Begin().TimeUnix).Add(d)), nil
}

// numbered returns command n of a recording, and its number from 1. A negative n counts from the
// end.
func numbered(r *record.Reader, n int) (int, *record.Command, error) {
	all := r.Commands()
	i := n - 1
	if n < 0 {
		i = len(all) + n
	}
	if n == 0 || i < 0 || i >= len(all) {
		return 0, nil, usage("no command %d: the recording has %d commands", n, len(all))
	}
	return i + 1, &all[i], nil
}
