package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxWholes is how many outputs that fit no frame are rendered at once, and held until they are printed.
const maxWholes = 4

var errWholes = errors.New("the daemon renders as many outputs as it does at once; run the command again, or read the log")

// Whole gives r, the answer to a request that wanted maxOutput of its output, what its frame had no room for: from the
// record, up to wire.MaxWhole bytes of it. Where that cannot be read r says so in its notes, and has what came in the frame.
// The caller calls release when it has printed r.
func (a *Attachment) Whole(ctx context.Context, r *wire.Result, maxOutput int) (release func()) {
	if r.Ended == wire.Lost || !r.Lacks(maxOutput) { // what is known of a lost call is there
		return func() {}
	}
	select {
	case a.hub.wholes <- struct{}{}:
	default:
		r.Unreadable(errWholes)
		return func() {}
	}
	to := min(r.To, r.From+wire.MaxWhole)
	output, cut, missing, err := a.live.render(ctx, r.From, to, maxOutput)
	if err != nil {
		r.Unreadable(err)
	} else {
		r.Complete(output, cut, to, missing)
	}
	return func() { <-a.hub.wholes }
}

// render returns [from, to) of the log as a person would read it, with at most limit bytes. missing is the last gap in
// it that nobody made on purpose. With an error it could not be read to its end.
func (l *Live) render(ctx context.Context, from, to uint64, limit int) (output string, cut bool, missing, err error) {
	w := text.NewWriter(limit)
	buf := make([]byte, 32<<10)
	read := false
	for at := from; at < to; {
		n, err := l.ReadAt(ctx, at, buf[:min(uint64(len(buf)), to-at)])
		var lagged *LaggedError
		switch {
		case errors.As(err, &lagged) && lagged.To > at:
			gap := record.GapError{From: at, To: min(lagged.To, to), Why: lagged.Why}
			if gap.Why != record.WhyPrivate {
				missing = &gap
			}
			_, _ = fmt.Fprintf(w, "%s\r\n", record.Missing(&gap)) // in memory, here and below: it takes everything
			at = gap.To
		case err != nil:
			return w.String(), w.Truncated(), missing, err
		default:
			_, _ = w.Write(buf[:n])
			at += uint64(n)
			read = true
		}
	}
	if !read && missing != nil {
		return "", false, nil, missing
	}
	return w.String(), w.Truncated(), missing, nil
}
