package attach

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxWholes is how many outputs that fit no frame are rendered at once, and held until they are
// printed.
const maxWholes = 4

var errWholes = errors.New(
	"the daemon renders as many outputs as it does at once; run the command again, or read the log")

// Whole gives r, the answer to a request that wanted maxOutput of its output, what its frame had no
// room for: from the record, up to wire.MaxWhole bytes of it. Where that cannot be read r says so
// in its notes, and has what came in the frame. The caller calls release when it has printed r.
func (a *Attachment) Whole(ctx context.Context, r *wire.Result, maxOutput int) (release func()) {
	if r.Ended == wire.Lost || !r.Lacks(maxOutput) { // what is known of a lost call is there
		return func() {}
	}
	select {
	case a.all.wholes <- struct{}{}:
	default:
		r.Unreadable(errWholes)
		return func() {}
	}
	to := min(r.To, r.From+wire.MaxWhole)
	output, cut, missing, err := live.Render(ctx, a.live, r.From, to, maxOutput)
	if err != nil {
		r.Unreadable(err)
	} else {
		r.Complete(output, cut, to, missing)
	}
	return func() { <-a.all.wholes }
}
