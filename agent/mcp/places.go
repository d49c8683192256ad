package mcp

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxPlaces = 16 // sandboxes that one client has open
	maxShells = 32 // shells that it has open, in all of them
)

// places are the sandboxes that a client has open, by name.
type places struct {
	server *Server
	naming sync.Mutex // held while the sandbox is made that is meant where none is named; before mu

	mu     sync.Mutex
	byName map[string]*place // guarded by mu
	shells int               // guarded by mu; all that are open, or about to be
	begun  []string          // guarded by mu; sessions of the Server's own that calls were in
	ours   string            // guarded by mu; the sandbox that is meant where none is named, once it is known to be there
}

// place is one sandbox as a client has it open. Whoever opens something there holds opening.
type place struct {
	name    string
	opening chan struct{} // semaphore

	gone   bool                    // of the holder of opening; it is in no list any more
	client *agent.Client           // the same
	files  *connect.Files          // the same
	shells map[string]*agent.Shell // the same; by session
	python *lent                   // the same
}

// lent is an Interpreter that calls share.
type lent struct {
	*python.Interpreter
	users int  // guarded by places.mu; calls under way
	gone  bool // guarded by places.mu; no other call gets it, and the last one closes it
}

// target reads which session a call means.
func (p *places) target(ctx context.Context, w where) (wire.Target, error) {
	t := wire.Target{Session: p.server.options.Session}
	var err error
	if w.Session != "" {
		name, err := wire.ParseLabel("session name", w.Session)
		if err != nil {
			return t, err
		}
		if name == wire.NewSession {
			return t, &agent.Error{Code: agent.CodeUsage, Message: "session \"new\" is reserved", Hint: "choose another name: a session that does not exist is started"}
		}
		t.Session = name
		if own := p.server.options.Session; p.server.options.Own && name != own {
			if t.Session, err = wire.ParseLabel("session name", own+"-"+name); err != nil {
				return t, err
			}
		}
	}
	if w.Sandbox != "" {
		t.Sandbox, err = wire.ParseSandbox(w.Sandbox)
	} else {
		t.Sandbox, err = p.own(ctx)
	}
	return t, err
}

// own is the sandbox that is meant where none is named, made if it is missing.
func (p *places) own(ctx context.Context) (string, error) {
	o := p.server.options
	if o.Ensure == nil {
		if o.Sandbox == "" {
			return "", &agent.Error{Code: agent.CodeUsage, Message: "no sandbox named", Hint: "name one with the argument sandbox; sandboxes lists them, new_sandbox makes one"}
		}
		return o.Sandbox, nil
	}
	p.naming.Lock()
	defer p.naming.Unlock()
	p.mu.Lock()
	ours := p.ours
	p.mu.Unlock()
	if ours != "" {
		return ours, nil
	}
	ours, err := o.Ensure(ctx)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	p.ours = ours
	p.mu.Unlock()
	return ours, nil
}

// open holds the place called name for the caller, who calls release; its client is connected.
func (p *places) open(ctx context.Context, name string) (at *place, release func(), err error) {
	for {
		if at, err = p.at(name); err != nil {
			return nil, nil, err
		}
		select {
		case at.opening <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		if !at.gone {
			break
		}
		<-at.opening // of an earlier connection
	}
	release = func() { <-at.opening }
	if at.client != nil {
		return at, release, nil
	}
	if at.client, err = p.server.gateway.Dial(ctx, name); err != nil {
		at.client, at.gone = nil, true
		p.forget(name, at)
		release()
		return nil, nil, err
	}
	return at, release, nil
}

// at returns the place called name, which may be new.
func (p *places) at(name string) (*place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.byName[name]
	switch {
	case at != nil:
		return at, nil
	case len(p.byName) >= maxPlaces:
		return nil, &agent.Error{Code: agent.CodeLimitSandboxes, Message: fmt.Sprintf("this connection has %d sandboxes open, and may have no more", maxPlaces),
			Hint: "go on in one of those, or connect again"}
	case p.byName == nil:
		p.byName = make(map[string]*place)
	}
	at = &place{name: name, opening: make(chan struct{}, 1), shells: make(map[string]*agent.Shell)}
	p.byName[name] = at
	return at, nil
}

// forget takes at, or whatever place has that name if at is nil, out of the list, and returns it.
func (p *places) forget(name string, at *place) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at == nil {
		at = p.byName[name]
	}
	if p.byName[name] == at {
		delete(p.byName, name)
	}
	if p.ours == name { // it may have to be made again
		p.ours = ""
	}
	return at
}

// shell returns the shell of a session, attached by the first caller. A session that does not exist is started, and its sandbox.
func (p *places) shell(ctx context.Context, t wire.Target) (*agent.Shell, error) {
	return p.attach(ctx, t, agent.ShellOptions{Session: t.Session})
}

// existing is shell for what a program is to read: it starts nothing, so that no new shell runs an answer as a command.
func (p *places) existing(ctx context.Context, t wire.Target) (*agent.Shell, error) {
	return p.attach(ctx, t, agent.ShellOptions{Session: t.Session, NoNew: true})
}

func (p *places) attach(ctx context.Context, t wire.Target, o agent.ShellOptions) (*agent.Shell, error) {
	at, release, err := p.open(ctx, t.Sandbox)
	if err != nil {
		return nil, err
	}
	defer release()
	if sh := at.shells[t.Session]; sh != nil {
		return sh, nil
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	sh, err := at.client.Attach(ctx, o)
	if err != nil {
		p.leave(1)
		return nil, err
	}
	at.shells[t.Session] = sh
	p.began(t.Session)
	return sh, nil
}

// sftp returns the file connection to a sandbox, opened by the first caller.
func (p *places) sftp(ctx context.Context, name string) (*connect.Files, error) {
	at, release, err := p.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer release()
	if at.files == nil {
		files, err := at.client.BoundedFiles(ctx)
		if err != nil {
			return nil, err
		}
		at.files = files
	}
	return at.files, nil
}

// unfile closes a file connection on which something is done that nobody waits for any more; the next one is a new one.
func (p *places) unfile(name string, files *connect.Files) {
	files.Close()
	p.mu.Lock()
	at := p.byName[name]
	p.mu.Unlock()
	if at == nil {
		return
	}
	at.opening <- struct{}{}
	defer func() { <-at.opening }()
	if at.files == files {
		at.files = nil
	}
}

// began keeps in mind that there is a session, for EndSessions.
func (p *places) began(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server.options.Own && !slices.Contains(p.begun, session) {
		p.begun = append(p.begun, session)
	}
}

// enter counts a shell in, leave some out.
func (p *places) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shells >= maxShells {
		return &agent.Error{Code: agent.CodeLimitSessions, Message: fmt.Sprintf("this connection has %d sessions open, and may have no more", maxShells), Hint: "go on in one of those"}
	}
	p.shells++
	return nil
}

func (p *places) leave(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shells -= n
}

// lost closes what is open at a sandbox after a call whose connection broke, so that the next one begins anew: the sandbox may have
// been removed, or the daemon may be another one by now.
func (p *places) lost(name string) {
	if at := p.forget(name, nil); at != nil {
		p.shut(at)
	}
}

// close closes all; nobody opens anything any more.
func (p *places) close() {
	p.mu.Lock()
	all := p.byName
	p.byName = nil
	p.mu.Unlock()
	for _, at := range all {
		p.shut(at)
	}
}

func (p *places) shut(at *place) {
	at.opening <- struct{}{}
	defer func() { <-at.opening }()
	at.gone = true
	p.leave(len(at.shells))
	for _, sh := range at.shells {
		sh.Close()
	}
	clear(at.shells)
	if at.files != nil {
		at.files.Close()
		at.files = nil
	}
	if at.python != nil {
		at.python.Close()
		at.python = nil
	}
	if at.client != nil {
		at.client.Close()
		at.client = nil
	}
}
