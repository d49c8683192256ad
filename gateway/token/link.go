package token

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MaxLink limits the lifetime of a link's token.
const MaxLink = 30 * 24 * time.Hour

// Link makes the token of a link to one of p's sandboxes: its owner may watch the sandbox
// until it expires. maker is the token that p would get now; the link's expires no later, and is
// only valid while maker's key may log in. Links to the sandbox that have expired are removed.
func (r *Registry) Link(ctx context.Context, hub *gateway.Hub, p gateway.Principal, sandbox string,
	maker Token) (secret string, made Token, err error) {
	if maker.Expires == nil || time.Until(*maker.Expires) > MaxLink {
		return "", made, wire.Errorf(wire.CodeUsage, "a link must expire within 30 days")
	}
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
