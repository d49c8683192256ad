package host

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/sandboxd/sandboxd/sandbox"
)

// passwordOf returns the password of an account.
type passwordOf func(ctx context.Context, user, addr string) (string, error)

// accountKey identifies an account on a machine that a sandbox uses: its own, or that of a jump
// host.
type accountKey struct{ id, user, addr string } // id is Instance.ID

// asking is the source of one login's passwords that no file has: the owner of the Backend, what
// was typed when the machine was added, or the person behind the call.
type asking struct {
	own passwordOf // asked first; may be nil
	ask sandbox.Ask
	b   *Backend // stores passwords that worked
	id  string   // Instance.ID

	said map[accountKey]string // typed by a person during this login
}

func (b *Backend) asking(ctx context.Context, id string) *asking {
	return &asking{own: b.own.Password, ask: sandbox.AskOf(ctx), b: b, id: id,
		said: make(map[accountKey]string)}
}

// of returns the source of the password for the account at e, nil if there is none.
func (a *asking) of(e endpoint) passwordOf {
	if a.own != nil {
		return a.own
	}
	if a.b == nil {
		return nil
	}
	who := accountKey{a.id, e.user, e.addr()}
	a.b.mu.Lock()
	password, known := a.b.typed[who]
	a.b.mu.Unlock()
	switch {
	case known:
		return func(context.Context, string, string) (string, error) { return password, nil }
	case a.ask == nil:
		return nil
	}
	return func(ctx context.Context, user, addr string) (string, error) {
		password, err := a.ask(ctx, fmt.Sprintf("password of %s@%s: ", user, addr))
		if err == nil && password == "" {
			err = errors.New("no password was typed")
		}
		if err == nil {
			a.said[who] = password
		}
		return password, err
	}
}

// forgetPasswords drops passwords that were typed for a sandbox, and for its jump hosts.
func (b *Backend) forgetPasswords(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.typed, func(k accountKey, _ string) bool { return k.id == id })
}

// record stores passwords that a person typed and that worked, only in memory, and drops one that
// no longer works.
func (a *asking) record(err error) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	var refused *LoginError
	switch {
	case err == nil:
		maps.Copy(a.b.typed, a.said)
	case errors.As(err, &refused):
		delete(a.b.typed, accountKey{a.id, refused.User, refused.Addr})
	}
}
