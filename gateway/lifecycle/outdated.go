package lifecycle

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway/pool"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Pooled sandboxes are to be what would be booted now. staleEvery is between two looks whether it
// is.
const staleEvery = 10 * time.Second

const madeOtherwise = "what is made now has another guest or runtime"

// revisions asks backends whether they would make something else now of the same spec and image.
// One that does not answer is asked once: it makes the same, for all that is known.
type revisions struct {
	reg  *Registry
	deaf map[string]bool // backends
}

func (r *revisions) differ(ctx context.Context, f Record) bool {
	be, err := r.reg.options.backend(f.Instance.Backend)
	if err != nil || r.deaf[f.Instance.Backend] {
		return false
	}
	reviser, ok := be.(sandbox.Finder)
	if !ok {
		return false
	}
	within, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	now, err := reviser.Revision(within, f.Spec)
	if err != nil {
		r.deaf[f.Instance.Backend] = true
		return false
	}
	return now != f.Instance.Revision
}

// renew gives up what was made from an image that its name no longer means, or with a guest or a
// runtime that nothing is made with any more.
func (p *pooling) renew(ctx context.Context) {
	means := make(map[string]string) // images, by name
	revised := &revisions{p.reg, make(map[string]bool)}
	for _, sb := range p.Members(func(pool.Kind[Record]) bool { return true }) {
		f := sb.get()
		be, err := p.reg.options.backend(f.Instance.Backend)
		if err != nil {
			continue
		}
		if revised.differ(ctx, f) {
			p.giveUpIfPooled(ctx, sb, madeOtherwise)
			continue
		}
		r, ok := be.(sandbox.Finder)
		if !ok {
			continue
		}
		digest, known := means[f.Instance.Image]
		if !known {
			within, cancel := context.WithTimeout(ctx, lookWithin)
			digest, err = r.Resolve(within, f.Instance.Image)
			cancel()
			if err != nil {
				digest = "" // an engine that is away, an image that is gone: what was made stays good
			}
			means[f.Instance.Image] = digest
		}
		if digest != "" && digest != f.Instance.Digest {
			p.giveUpIfPooled(ctx, sb, "its image is an older one")
		}
	}
}
