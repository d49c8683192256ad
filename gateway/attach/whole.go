package attach

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxWholes limits the outputs larger than a frame that are rendered and held until printed at the
// same time.
const maxWholes = 4

var errWholes = errors.New(
	"the daemon renders as many outputs as it does at once; run the command again, or read the log")

// Whole completes r, the answer to a request for maxOutput bytes of output, with the output that
// did not fit its frame. It reads up to wire.MaxWhole bytes from the record. If it cannot read
// them, r keeps the output of the frame, and its notes say so. The caller calls release when it has
// printed r.
func (a *Attachment) Whole(ctx context.Context, r *wire.Result, maxOutput int) (release func()) {
	if r.Ended == wire.Lost || !r.Lacks(maxOutput) { // a lost call has the known output already
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
