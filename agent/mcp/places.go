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
	maxPlaces = 16 // open sandboxes of one client
	maxShells = 32 // open shells of one client, in all sandboxes
)

// places holds the open sandboxes of a client.
type places struct {
	server *Server
	naming sync.Mutex // held while the default sandbox is created; locked before mu

	mu     sync.Mutex
	byName map[string]*place // guarded by mu
	shells int               // guarded by mu; shells that are open or being opened
	begun  []string          // guarded by mu; sessions that calls used, with Options.Own
	// guarded by mu; the default sandbox, once it exists
	ours string
}

// place is one open sandbox of a client. The holder of opening may open and close its connections.
type place struct {
	name    string
	opening chan struct{} // semaphore

	gone   bool                    // guarded by opening; removed from places
	client *agent.Client           // guarded by opening
	files  *connect.Files          // guarded by opening
	shells map[string]*agent.Shell // guarded by opening; by session
	python *lent                   // guarded by opening
}

// lent is an Interpreter that calls share.
type lent struct {
	*python.Interpreter
	users int  // guarded by places.mu; running calls
	gone  bool // guarded by places.mu; later calls do not use it, and the last user closes it
}

// target returns the session of a call.
func (p *places) target(ctx context.Context, w where) (wire.Target, error) {
	t := wire.Target{Session: p.server.options.Session}
	var err error
	if w.Session != "" {
		name, err := wire.ParseLabel("session name", w.Session)
		if err != nil {
			return t, err
		}
		if name == wire.NewSession {
			return t, &agent.Error{
				Code:    agent.CodeUsage,
				Message: "session name \"new\" is reserved",
				Hint:    "choose another name; a missing session is started",
			}
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

// own returns the default sandbox and creates it if it does not exist.
func (p *places) own(ctx context.Context) (string, error) {
	o := p.server.options
	if o.Ensure == nil {
		if o.Sandbox == "" {
			return "", &agent.Error{
				Code:    agent.CodeUsage,
				Message: "no sandbox named",
				Hint: "set the argument sandbox; the tool sandboxes lists them, new_sandbox " +
					"creates one",
			}
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

// open connects to the sandbox name and locks its place. The caller calls release.
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
		<-at.opening // a closed place
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

// at returns the place of the sandbox name, which may be new.
func (p *places) at(name string) (*place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.byName[name]
	switch {
	case at != nil:
		return at, nil
	case len(p.byName) >= maxPlaces:
		return nil, &agent.Error{
			Code: agent.CodeLimitSandboxes,
			Message: fmt.Sprintf(
				"this connection has reached its limit of %d sandboxes",
				maxPlaces,
			),
			Hint: "use one of those sandboxes, or reconnect",
		}
	case p.byName == nil:
		p.byName = make(map[string]*place)
	}
	at = &place{name: name, opening: make(chan struct{}, 1), shells: make(map[string]*agent.Shell)}
	p.byName[name] = at
	return at, nil
}

// forget removes at, or the place of that name if at is nil, and returns it.
func (p *places) forget(name string, at *place) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at == nil {
		at = p.byName[name]
	}
	if p.byName[name] == at {
		delete(p.byName, name)
	}
	if p.ours == name { // it may not exist any more
		p.ours = ""
	}
	return at
}

// shell returns the shell of a session, which the first call attaches. It starts a missing session
// and a stopped sandbox.
func (p *places) shell(ctx context.Context, t wire.Target) (*agent.Shell, error) {
	return p.attach(ctx, t, agent.ShellOptions{Session: t.Session})
}

// existing is shell for input to a program: it starts nothing, so that a new shell never runs an
// answer as a command.
func (p *places) existing(ctx context.Context, t wire.Target) (*agent.Shell, error) {
	return p.attach(ctx, t, agent.ShellOptions{Session: t.Session, NoNew: true})
}

func (p *places) attach(
	ctx context.Context,
	t wire.Target,
	o agent.ShellOptions,
) (*agent.Shell, error) {
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

// sftp returns the SFTP connection to a sandbox, which the first call opens.
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

// unfile closes an SFTP connection after a cancelled call. The next call opens a new one.
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

// began records a session for EndSessions.
func (p *places) began(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server.options.Own && !slices.Contains(p.begun, session) {
		p.begun = append(p.begun, session)
	}
}

// enter counts a shell that is opened, leave n shells that are closed.
func (p *places) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shells >= maxShells {
		return &agent.Error{
			Code: agent.CodeLimitSessions,
			Message: fmt.Sprintf(
				"this connection has reached its limit of %d sessions",
				maxShells,
			),
			Hint: "use one of those sessions",
		}
	}
	p.shells++
	return nil
}

func (p *places) leave(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shells -= n
}

// lost closes all connections to a sandbox after one of them broke, so that the next call
// reconnects. The sandbox may have been removed, or the daemon restarted.
func (p *places) lost(name string) {
	if at := p.forget(name, nil); at != nil {
		p.shut(at)
	}
}

// close closes all places. No call may run any more.
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
