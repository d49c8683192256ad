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

// accountKey names one on a machine that a sandbox is reached by: the sandbox's own, or that of a jump host.
type accountKey struct{ id, user, addr string } // id is Instance.ID

// asking is where the passwords of one login come from that no file has: the owner of the Backend, what was typed when the machine was
// added, or the person who is behind the call.
type asking struct {
	own passwordOf // before all else; may be nil
	ask sandbox.Ask
	b   *Backend // that remembers
	id  string   // Instance.ID

	said map[accountKey]string // by a person, now
}

func (b *Backend) asking(ctx context.Context, id string) *asking {
	return &asking{own: b.own.Password, ask: sandbox.AskOf(ctx), b: b, id: id, said: make(map[accountKey]string)}
}

// of returns what has the password of the account at e, nil where there is nobody.
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
			err = errors.New("none was typed")
		}
		if err == nil {
			a.said[who] = password
		}
		return password, err
	}
}

// forgetPasswords drops what was typed for a sandbox, for its jump hosts too.
func (b *Backend) forgetPasswords(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.typed, func(k accountKey, _ string) bool { return k.id == id })
}

// settle keeps the passwords that a person typed and that let us in, in memory alone, and drops one that does not any more.
func (a *asking) settle(err error) {
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
