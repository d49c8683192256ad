package token

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of codes. They are only in memory: after a restart of the daemon they are invalid.
const (
	CodeTime = time.Minute // lifetime of a code
	maxCodes = 100         // of one principal
)

// coded is the token that an unused code stands for.
type coded struct {
	token Token
	until time.Time
}

// Code returns a secret for which Redeem makes the token that t describes, as Create does, once and
// within CodeTime. Use it where a token must not appear, such as in the address of a page.
func (r *Registry) Code(t Token) (code string, err error) {
	now := time.Now()
	t = t.withDefaults()
	if err := r.check(t, now); err != nil {
		return "", err
	}
	code = random(16)
	r.mu.Lock()
	defer r.mu.Unlock()
	own := 0
	for hash, c := range r.codes {
		switch {
		case !now.Before(c.until):
			delete(r.codes, hash)
		case c.token.Principal == t.Principal:
			own++
		}
	}
	if own >= maxCodes {
		return "", &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf(
			"%s has %d unused codes, which is the limit", t.Principal, own), Hint: "wait a minute"}
	}
	r.codes[hashOf(code)] = coded{t, now.Add(CodeTime)}
	return code, nil
}

// Redeem makes the token of a code. A code that was used, has expired or does not exist is an error
// with code denied.
func (r *Registry) Redeem(ctx context.Context, code string) (secret string, made Token, err error) {
	hash := hashOf(code)
	r.mu.Lock()
	c, ok := r.codes[hash]
	delete(r.codes, hash)
	r.mu.Unlock()
	if !ok || !time.Now().Before(c.until) {
		return "", Token{}, &wire.Error{Code: wire.CodeDenied,
			Message: "this code was used, or is older than a minute",
			Hint:    "get a new one with sandboxd page"}
	}
	return r.Create(ctx, c.token)
}

// codes are indexed by the hash of the code, so that the time of a lookup reveals nothing about
// other codes.
type codes map[[sha256.Size]byte]coded
