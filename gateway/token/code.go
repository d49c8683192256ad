package token

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of codes. They live in memory only: who restarts the daemon asks for another.
const (
	CodeTime = time.Minute // that a code is good for
	maxCodes = 100         // of one principal
)

// coded is what a code that nobody has redeemed yet stands for.
type coded struct {
	token Token
	until time.Time
}

// Code returns a secret for which Redeem makes the token that t describes, as Create does, once and within CodeTime. It is for ways on which
// a token must not go, such as the address of a page.
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
		return "", &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("%s has %d codes that nobody has used, the most there may be", t.Principal, own), Hint: "wait a minute"}
	}
	r.codes[hashOf(code)] = coded{t, now.Add(CodeTime)}
	return code, nil
}

// Redeem makes the token that a code stands for. One that was used, that is too old or that nobody made is an error with code denied.
func (r *Registry) Redeem(ctx context.Context, code string) (secret string, made Token, err error) {
	hash := hashOf(code)
	r.mu.Lock()
	c, ok := r.codes[hash]
	delete(r.codes, hash)
	r.mu.Unlock()
	if !ok || !time.Now().Before(c.until) {
		return "", Token{}, &wire.Error{Code: wire.CodeDenied, Message: "this code was used, or is older than a minute", Hint: "get another one: sandboxd page"}
	}
	return r.Create(ctx, c.token)
}

// codes are by the hash of the code: what is looked up says nothing, by the time it takes, of any other.
type codes map[[sha256.Size]byte]coded
