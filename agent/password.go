package agent

import (
	"context"
	"sync"
)

// passwords are what Options.Host.Password said, for as long as it gets in.
type passwords struct {
	ask func(ctx context.Context, user, host string) (string, error) // nil without any

	mu    sync.Mutex
	known map[string]string // guarded by mu; by user@host
}

func newPasswords(ask func(ctx context.Context, user, host string) (string, error)) *passwords {
	return &passwords{ask: ask, known: make(map[string]string)}
}

// source is get where there is anything to get.
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
