// Package token authenticates callers over HTTP: a secret stands for a principal, like a key over
// SSH. A secret is shown once, when it is made; only its hash is stored. When a token is revoked or
// expires, all uses of it end.
package token

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Prefix begins every secret, so that scanners of repositories and logs find leaked ones.
const Prefix = "sbx_"

// Limits of a token's fields, and of the number of tokens of one principal.
const (
	maxLabel  = 64
	maxTokens = 1000
)

// Errors that end the context of a token in use. Clients may see the last two.
var (
	ErrUnbacked       = errors.New("the token is no longer good")
	ErrRevoked  error = &wire.Error{Code: wire.CodeDenied, Message: "the token was revoked"}
	ErrExpired  error = &wire.Error{Code: wire.CodeDenied, Message: "the token has expired"}
)

// ErrNone is the error of a secret or an ID without a token: it never existed, or has ended.
var ErrNone = errors.New("no such token")

// unbacked is the error of a token whose maker could not make it now. It wraps ErrUnbacked and a
// *wire.Error.
type unbacked struct{ why error }

func (e *unbacked) Error() string { return ErrUnbacked.Error() + ": " + e.why.Error() }

func (e *unbacked) Unwrap() []error {
	return []error{ErrUnbacked, &wire.Error{Code: wire.CodeDenied,
		Message: "this token is no longer good: " + e.why.Error(),
		Hint:    "make a new one with a key that can log in: sandboxd token new"}}
}

// Token describes a token, without its secret.
type Token struct {
	ID        string         `json:"id"`
	Principal string         `json:"principal"`
	Kind      wire.PartyKind `json:"kind"`
	Rights    wire.Rights    `json:"rights"`
	Label     string         `json:"label,omitempty"`
	// Line of the key that made it, as Principal.Line.
	Line    string     `json:"key,omitempty"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"` // nil is never
}

func (t Token) withDefaults() Token {
	t.Kind, t.Rights = cmp.Or(t.Kind, wire.Agent), cmp.Or(t.Rights, wire.RightDrive)
	return t
}

// AsPrincipal returns the principal of a caller with this token.
func (t Token) AsPrincipal() gateway.Principal {
	return gateway.Principal{Name: t.Principal, Kind: t.Kind, Rights: t.Rights,
		Key: "token " + t.ID, Line: t.Line}
}

// Registry has all tokens of a daemon. Its methods may be called concurrently.
type Registry struct {
	store *store.Store

	backed func(Token) error

	linking sync.Mutex // held while a link is made; taken before mu

	mu    sync.Mutex
	live  map[[sha256.Size]byte]*used // guarded by mu
	byID  map[string]*used            // guarded by mu; the same tokens
	codes codes                       // guarded by mu
}

// used is a token with the context of its uses.
type used struct {
	Token
	hash [sha256.Size]byte
	ctx  context.Context //nolint:containedctx // ends with the token; its cause says why
	end  context.CancelCauseFunc
}

// Open reads the tokens of a store, and removes expired ones. backed returns why the maker of a
// token could not make it now, nil if they could: by its Principal, Kind, Rights and Line. It is
// called for every request.
func Open(ctx context.Context, s *store.Store, backed func(Token) error) (*Registry, error) {
	rows, err := s.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	r := &Registry{store: s, backed: backed, live: make(map[[sha256.Size]byte]*used),
		byID: make(map[string]*used), codes: make(codes)}
	for _, row := range rows {
		if !row.Expires.IsZero() && !time.Now().Before(row.Expires) {
			if err := s.DeleteToken(ctx, row.ID); err != nil {
				return nil, err
			}
			continue
		}
		if len(row.Hash) != sha256.Size {
			return nil, fmt.Errorf("token %s: a hash of %d bytes", row.ID, len(row.Hash))
		}
		t := Token{ID: row.ID, Principal: row.Principal, Kind: wire.PartyKind(row.Kind),
			Rights: wire.Rights(row.Rights), Label: row.Label, Line: row.Line, Created: row.Created}
		if !row.Expires.IsZero() {
			t.Expires = &row.Expires
		}
		r.add([sha256.Size]byte(row.Hash), t)
	}
	return r, nil
}

// Close ends the contexts of all tokens.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.live {
		l.end(lifecycle.ErrClosed)
	}
}

// add indexes t by its hash.
func (r *Registry) add(hash [sha256.Size]byte, t Token) {
	l := &used{Token: t, hash: hash}
	l.begin()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetExpiredLocked()
	r.live[hash], r.byID[t.ID] = l, l
}

// begin makes the context that ends with the token.
func (l *used) begin() {
	l.ctx, l.end = context.WithCancelCause(context.Background())
	if l.Expires != nil {
		ctx, cancel := context.WithDeadlineCause(l.ctx, *l.Expires, ErrExpired)
		end := l.end
		l.ctx, l.end = ctx, func(cause error) { end(cause); cancel() }
	}
}

// forgetExpiredLocked drops expired tokens, so that many short-lived ones do not fill memory. Their
// rows are removed when another token is made, or at the next Open. It is called with mu held.
func (r *Registry) forgetExpiredLocked() {
	for _, l := range r.live {
		if errors.Is(context.Cause(l.ctx), ErrExpired) {
			delete(r.live, l.hash)
			delete(r.byID, l.ID)
		}
	}
}

// Create makes a token from t's Principal, Kind (empty is agent), Rights (empty is drive), Label,
// Line and Expires. secret is what its holder presents; it cannot be read again. Create rejects a
// token that would be invalid.
func (r *Registry) Create(ctx context.Context, t Token) (secret string, made Token, err error) {
	t = t.withDefaults()
	now := time.Now()
	if err := r.check(t, now); err != nil {
		return "", Token{}, err
	}
	secret = Prefix + random(16)
	t.ID, t.Created = random(6), now.Truncate(time.Millisecond)
	row := store.Token{ID: t.ID, Principal: t.Principal, Kind: string(t.Kind),
		Rights: string(t.Rights), Label: t.Label, Line: t.Line, Created: t.Created}
	if t.Expires != nil {
		row.Expires = *t.Expires
	}
	hash := hashOf(secret)
	row.Hash = hash[:]
	if err := r.store.DeleteExpiredTokens(ctx, now); err != nil {
		return "", Token{}, err
	}
	if err := r.store.AddToken(ctx, row); err != nil {
		return "", Token{}, err
	}
	r.add(hash, t)
	return secret, t, nil
}

func (r *Registry) check(t Token, now time.Time) error {
	switch {
	case t.Principal == "":
		return errors.New("a token needs a principal")
	case t.Kind != wire.Agent && t.Kind != wire.Person:
		return wire.Errorf(wire.CodeUsage, "kind %q: must be agent or person", t.Kind)
	case t.Rights != wire.RightDrive && t.Rights != wire.RightWatch:
		return wire.Errorf(wire.CodeUsage, "rights %q: must be drive or watch", t.Rights)
	case len(t.Label) > maxLabel:
		return wire.Errorf(wire.CodeUsage, "label: %d bytes; at most %d are allowed", len(t.Label),
			maxLabel)
	case strings.ContainsFunc(t.Label, func(c rune) bool { return c < ' ' || c > '~' }):
		return wire.Errorf(wire.CodeUsage, "label %q: must be printable ASCII", t.Label)
	case t.Expires != nil && !now.Before(*t.Expires):
		return wire.Errorf(wire.CodeUsage, "the token's expiry is in the past")
	}
	if err := r.backed(t); err != nil {
		return &wire.Error{Code: wire.CodeDenied, Message: "token denied: " + err.Error(),
			Hint: "log in with a key that may make it"}
	}
	if n := len(r.List(t.Principal)); n >= maxTokens {
		return &wire.Error{Code: wire.CodeDenied,
			Message: fmt.Sprintf("%s has %d tokens, which is the limit", t.Principal, n),
			Hint:    "revoke one: sandboxd token rm ID"}
	}
	return nil
}

// List returns the tokens of a principal, oldest first.
func (r *Registry) List(principal string) []Token {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Token
	for l := range maps.Values(r.live) {
		if l.Principal == principal && l.ctx.Err() == nil {
			all = append(all, l.Token)
		}
	}
	slices.SortFunc(all, func(a, b Token) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Revoke ends a principal's token and its uses. A token of another principal does not exist for
// this one.
func (r *Registry) Revoke(ctx context.Context, principal, id string) error {
	unknown := &wire.Error{Code: wire.CodeNotFound, Message: fmt.Sprintf("no token %q", id),
		Hint: "sandboxd token ls lists them"}
	r.mu.Lock()
	l := r.byID[id]
	r.mu.Unlock()
	if l == nil || l.Principal != principal {
		return unknown
	}
	if err := r.store.DeleteToken(ctx, id); err != nil && !errors.Is(err, store.ErrNoToken) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l.end(ErrRevoked)
	delete(r.live, l.hash)
	delete(r.byID, l.ID)
	return nil
}

// Verify returns the token of a secret. live ends, with ErrRevoked, ErrExpired or ErrUnbacked, when
// the token does. The error is ErrNone, or wraps ErrUnbacked: then t is that token. Its duration
// reveals nothing about secrets, because it looks up a hash.
func (r *Registry) Verify(secret string) (t Token, live context.Context, err error) {
	if !strings.HasPrefix(secret, Prefix) {
		return Token{}, nil, ErrNone
	}
	return r.good(func() *used { return r.live[hashOf(secret)] })
}

// ByID is like Verify, for a caller who has already proven the secret.
func (r *Registry) ByID(id string) (t Token, live context.Context, err error) {
	return r.good(func() *used { return r.byID[id] })
}

// good returns the token that find finds, if it exists and is valid.
func (r *Registry) good(find func() *used) (t Token, ends context.Context, err error) {
	r.mu.Lock()
	l := find()
	if l != nil {
		t, ends = l.Token, l.ctx
	}
	r.mu.Unlock()
	if l == nil || ends.Err() != nil {
		return Token{}, nil, ErrNone
	}
	if err := r.backed(t); err != nil {
		return t, nil, &unbacked{err}
	}
	return t, ends, nil
}

// way identifies tokens that were made in the same way, and are therefore valid together.
type way struct {
	principal string
	kind      wire.PartyKind
	rights    wire.Rights
	line      string
}

func (t Token) way() way { return way{t.Principal, t.Kind, t.Rights, t.Line} }

// EndUnbacked ends uses of tokens whose makers could not make them now. The tokens themselves stay,
// and are valid again if that changes: a file of keys that is briefly unreadable invalidates no
// token.
func (r *Registry) EndUnbacked() {
	r.mu.Lock()
	ways := make(map[way]Token)
	for _, l := range r.live {
		ways[l.way()] = l.Token
	}
	r.mu.Unlock()
	ended := make(map[way]error)
	for w, t := range ways {
		if err := r.backed(t); err != nil {
			ended[w] = err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.live {
		if why := ended[l.way()]; why != nil && l.ctx.Err() == nil {
			l.end(&unbacked{why})
			l.begin()
		}
	}
}

func hashOf(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
