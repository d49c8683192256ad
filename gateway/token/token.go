// Package token knows who calls over HTTP: secrets that stand for a principal, as keys do over SSH. A secret is shown once, when
// it is made; only its hash is kept. A token that is revoked or that expires ends what it is being used for.
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
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Prefix begins every secret, so that scanners of repositories and logs find one that leaked.
const Prefix = "sbx_"

// Limits of what a token says of itself, and of how many one principal has.
const (
	maxLabel  = 64
	maxTokens = 1000
)

// Errors that end the context of a token in use.
var (
	ErrRevoked = errors.New("the token was revoked")
	ErrExpired = errors.New("the token has expired")
)

// Token is what is known of one, but for the secret.
type Token struct {
	ID        string         `json:"id"`
	Principal string         `json:"principal"`
	Kind      wire.PartyKind `json:"kind"`
	Rights    wire.Rights    `json:"rights"`
	Label     string         `json:"label,omitempty"`
	Created   time.Time      `json:"created"`
	Expires   *time.Time     `json:"expires,omitempty"` // nil is never
}

func (t Token) withDefaults() Token {
	t.Kind, t.Rights = cmp.Or(t.Kind, wire.Agent), cmp.Or(t.Rights, wire.RightDrive)
	return t
}

// AsPrincipal is who a caller with this token is.
func (t Token) AsPrincipal() gateway.Principal {
	return gateway.Principal{Name: t.Principal, Kind: t.Kind, Rights: t.Rights, Key: "token " + t.ID}
}

// Registry is every token of a daemon. Its methods may be called at once.
type Registry struct {
	store *store.Store

	mu    sync.Mutex
	live  map[[sha256.Size]byte]*live // guarded by mu
	codes codes                       // guarded by mu
}

// live is a token in use: ctx ends with it.
type live struct {
	Token
	ctx context.Context //nolint:containedctx // ends with the token; its cause says why
	end context.CancelCauseFunc
}

// Open reads the tokens that a store has. Those that have expired are removed from it.
func Open(ctx context.Context, s *store.Store) (*Registry, error) {
	rows, err := s.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	r := &Registry{store: s, live: make(map[[sha256.Size]byte]*live), codes: make(codes)}
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
		t := Token{ID: row.ID, Principal: row.Principal, Kind: wire.PartyKind(row.Kind), Rights: wire.Rights(row.Rights), Label: row.Label, Created: row.Created}
		if !row.Expires.IsZero() {
			t.Expires = &row.Expires
		}
		r.add([sha256.Size]byte(row.Hash), t)
	}
	return r, nil
}

// Close ends what every token is used for.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.live {
		l.end(gateway.ErrClosed)
	}
}

// add makes t known by its hash.
func (r *Registry) add(hash [sha256.Size]byte, t Token) {
	l := &live{Token: t}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	if t.Expires != nil {
		ctx, cancel := context.WithDeadlineCause(l.ctx, *t.Expires, ErrExpired)
		end := l.end
		l.ctx, l.end = ctx, func(cause error) { end(cause); cancel() }
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[hash] = l
}

// Create makes a token of what t says: Principal, Kind (empty is agent), Rights (empty is drive), Label and Expires. secret is
// what its holder shows; nobody can get it again.
func (r *Registry) Create(ctx context.Context, t Token) (secret string, made Token, err error) {
	t = t.withDefaults()
	now := time.Now()
	if err := r.check(t, now); err != nil {
		return "", Token{}, err
	}
	secret = Prefix + random(16)
	t.ID, t.Created = random(6), now.Truncate(time.Millisecond)
	row := store.Token{ID: t.ID, Principal: t.Principal, Kind: string(t.Kind), Rights: string(t.Rights), Label: t.Label, Created: t.Created}
	if t.Expires != nil {
		row.Expires = *t.Expires
	}
	hash := hashOf(secret)
	row.Hash = hash[:]
	if err := r.store.AddToken(ctx, row); err != nil {
		return "", Token{}, err
	}
	r.add(hash, t)
	return secret, t, nil
}

func (r *Registry) check(t Token, now time.Time) error {
	switch {
	case t.Principal == "":
		return errors.New("a token of nobody")
	case t.Kind != wire.Agent && t.Kind != wire.Person:
		return wire.Errorf(wire.CodeUsage, "kind %q: agent or person", t.Kind)
	case t.Rights != wire.RightDrive && t.Rights != wire.RightWatch:
		return wire.Errorf(wire.CodeUsage, "rights %q: drive or watch", t.Rights)
	case len(t.Label) > maxLabel:
		return wire.Errorf(wire.CodeUsage, "the label has %d bytes; %d are allowed", len(t.Label), maxLabel)
	case strings.ContainsFunc(t.Label, func(c rune) bool { return c < ' ' || c > '~' }):
		return wire.Errorf(wire.CodeUsage, "the label %q: printable ASCII only", t.Label)
	case t.Expires != nil && !now.Before(*t.Expires):
		return wire.Errorf(wire.CodeUsage, "the token would have expired already")
	}
	if n := len(r.List(t.Principal)); n >= maxTokens {
		return &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("%s has %d tokens, the most there may be", t.Principal, n), Hint: "revoke one: sandboxd token rm ID"}
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
	slices.SortFunc(all, func(a, b Token) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return all
}

// Revoke ends a principal's token, and what it is being used for. One of somebody else is one that does not exist.
func (r *Registry) Revoke(ctx context.Context, principal, id string) error {
	unknown := &wire.Error{Code: wire.CodeNotFound, Message: fmt.Sprintf("no token %q", id), Hint: "sandboxd token ls lists them"}
	hash, ok := r.find(principal, id)
	if !ok {
		return unknown
	}
	if err := r.store.DeleteToken(ctx, id); err != nil && !errors.Is(err, store.ErrNoToken) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.live[hash]; l != nil {
		l.end(ErrRevoked)
		delete(r.live, hash)
	}
	return nil
}

func (r *Registry) find(principal, id string) (hash [sha256.Size]byte, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hash, l := range r.live {
		if l.ID == id && l.Principal == principal {
			return hash, true
		}
	}
	return hash, false
}

// Verify says whose secret it is. live ends, with ErrRevoked or ErrExpired, when the token does. The time it takes says nothing of
// any secret: what is looked up is its hash.
func (r *Registry) Verify(secret string) (t Token, live context.Context, ok bool) {
	if !strings.HasPrefix(secret, Prefix) {
		return Token{}, nil, false
	}
	hash := hashOf(secret)
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.live[hash]
	if l == nil || l.ctx.Err() != nil {
		return Token{}, nil, false
	}
	return l.Token, l.ctx, true
}

// ByID is Verify for who was shown the secret before, and has proof of it. live is as there.
func (r *Registry) ByID(id string) (t Token, live context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.live {
		if l.ID == id && l.ctx.Err() == nil {
			return l.Token, l.ctx, true
		}
	}
	return Token{}, nil, false
}

func hashOf(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
