package lifecycle

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway/pool"
	"github.com/sandboxd/sandboxd/sandbox"
)

// staleEvery is the interval between checks for outdated pooled sandboxes.
const staleEvery = 10 * time.Second

// outdated is why an outdated pooled sandbox is removed.
const outdated = "outdated: new sandboxes have another guest or runtime"

// revisions asks backends whether the same spec and image would now give another sandbox. A backend
// that does not answer is asked once, and counts as unchanged.
type revisions struct {
	reg  *Registry
	down map[string]bool // backends that do not answer
}

// differ reports whether f is outdated.
func (r *revisions) differ(ctx context.Context, f Record) bool {
	be, err := r.reg.options.backend(f.Instance.Backend)
	if err != nil || r.down[f.Instance.Backend] {
		return false
	}
	reviser, ok := be.(sandbox.Reviser)
	if !ok {
		return false
	}
	within, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	now, err := reviser.Revision(within, f.Spec)
	if err != nil {
		r.down[f.Instance.Backend] = true
		return false
	}
	return now != f.Instance.Revision
}

// renew removes pooled sandboxes with an outdated image, guest or runtime.
func (p *pooling) renew(ctx context.Context) {
	means := make(map[string]string) // digest by name of the image
	revised := &revisions{p.reg, make(map[string]bool)}
	for _, sb := range p.Members(func(pool.Kind[Record]) bool { return true }) {
		f := sb.get()
		be, err := p.reg.options.backend(f.Instance.Backend)
		if err != nil {
			continue
		}
		if revised.differ(ctx, f) {
			p.giveUpIfPooled(ctx, sb, outdated)
			continue
		}
		r, ok := be.(sandbox.Reviser)
		if !ok {
			continue
		}
		digest, known := means[f.Instance.Image]
		if !known {
			within, cancel := context.WithTimeout(ctx, queryWithin)
			digest, err = r.Resolve(within, f.Instance.Image)
			cancel()
			if err != nil {
				digest = "" // engine away or image gone: the sandbox counts as up to date
			}
			means[f.Instance.Image] = digest
		}
		if digest != "" && digest != f.Instance.Digest {
			p.giveUpIfPooled(ctx, sb, "outdated: its image has changed")
		}
	}
}
