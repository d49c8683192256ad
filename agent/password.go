package agent

import (
	"context"
	"sync"
)

// passwords caches the passwords that Options.Host.Password returned, until a login with one is
// rejected.
type passwords struct {
	ask func(ctx context.Context, user, host string) (string, error) // may be nil

	mu    sync.Mutex
	known map[string]string // guarded by mu; by user@host
}

func newPasswords(ask func(ctx context.Context, user, host string) (string, error)) *passwords {
	return &passwords{ask: ask, known: make(map[string]string)}
}

// source returns get, or nil if there are no passwords.
func (p *passwords) source() func(ctx context.Context, user, host string) (string, error) {
	if p.ask == nil {
		return nil
	}
	return p.get
}

func (p *passwords) get(ctx context.Context, user, host string) (string, error) {
	account := user + "@" + host
	p.mu.Lock()
	text, known := p.known[account]
	p.mu.Unlock()
	if known {
		return text, nil
	}
	text, err := p.ask(ctx, user, host)
	if err == nil {
		p.mu.Lock()
		p.known[account] = text
		p.mu.Unlock()
	}
	return text, err
}
