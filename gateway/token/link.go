package token

import (
	"context"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MaxLink limits the lifetime of a link's token.
const MaxLink = 30 * 24 * time.Hour

// maxLinks limits the links of one principal, also those whose sandbox was removed.
const maxLinks = 100

// linksOf counts the links that a principal has made and that have not ended.
func (r *Registry) linksOf(maker string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetExpiredLocked()
	for _, l := range r.live {
		if by, link := gateway.LinkOf(l.Principal); link && by == maker {
			n++
		}
	}
	return n
}

// Link makes a token with which anyone who has it may watch one of p's sandboxes until it expires.
// maker is the token that p would get now; the link's expires no later, and is only valid while
// maker's key may log in. Links to the sandbox that have expired are removed.
func (r *Registry) Link(ctx context.Context, hub *gateway.Hub, p gateway.Principal, sandbox string,
	maker Token) (secret string, made Token, err error) {
	if maker.Expires == nil || time.Until(*maker.Expires) > MaxLink {
		return "", made, wire.Errorf(wire.CodeUsage, "a link must expire within 30 days")
	}
	r.linking.Lock() // a link without a token yet would count as expired
	defer r.linking.Unlock()
	info, err := hub.Get(ctx, p, sandbox)
	if err != nil {
		return "", made, err
	}
	for _, share := range info.SharedWith {
		if _, link := gateway.LinkOf(share.Principal); link && len(r.List(share.Principal)) == 0 {
			if _, err := hub.Unshare(ctx, p, sandbox, share.Principal); err != nil {
				return "", made, err
			}
		}
	}
	if n := r.linksOf(p.Name); n >= maxLinks {
		return "", made, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("%s has %d links, the maximum", p.Name, n),
			Hint:    "end some with sandboxd unshare, or wait until they expire"}
	}
	principal, err := hub.Sessions.Link(ctx, p, sandbox)
	if err != nil {
		return "", made, err
	}
	secret, made, err = r.Create(ctx, Token{Principal: principal, Kind: wire.Person,
		Rights: wire.RightWatch, Label: "link", Line: maker.Line, Expires: maker.Expires})
	if err != nil {
		_, _ = hub.Unshare(context.WithoutCancel(ctx), p, sandbox, principal)
	}
	return secret, made, err
}
