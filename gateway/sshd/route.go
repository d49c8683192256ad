package sshd

import (
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ask is what a client requests on a session channel, up to shell, exec or subsystem.
type ask struct {
	pty  *wire.PtyReq // clamped; nil without a terminal
	env  []wire.Env   // allowed names only
	kind string       // wire.RequestShell, RequestExec or RequestSubsystem
	arg  string       // command line, or name of the subsystem
}

// route is how a session channel is served.
type route int

const (
	refuse      route = iota
	join              // a person in a shared session, drawn by the renderer
	raw               // an agent in a shared session, with the exact output
	fresh             // a new session, raw
	own               // a terminal for one command, relayed and recorded
	relayed           // no terminal, relayed unchanged
	stream            // the session stream
	tools             // MCP
	controlHost       // the command table
)

func (r route) String() string {
	return [...]string{"refuse", "join", "raw", "fresh", "own", "relay", "stream", "mcp",
		"control"}[r]
}

// decide returns the route of a session channel (docs/reference/routing.md). It ignores TERM, the
// client's version and similar claims. The error is public.
func decide(g *grant, t wire.Target, a ask) (route, error) {
	watch := g.Rights == wire.RightWatch
	terminal := a.pty != nil
	switch {
	case t.Sandbox == wire.ControlHost && a.kind == wire.RequestSubsystem:
		return refuse, wire.Errorf(wire.CodeUsage,
			"the control host has no subsystems; use the name of a sandbox as the user")
	case t.Sandbox == wire.ControlHost && t.Session != wire.DefaultSession:
		return refuse, wire.Errorf(wire.CodeUsage, "the control host has no sessions; log in as %s",
			wire.ControlHost)
	case t.Sandbox == wire.ControlHost:
		return controlHost, nil
	case a.kind == wire.RequestSubsystem && a.arg == wire.SessionSubsystem:
		return stream, nil
	case a.kind == wire.RequestSubsystem && ours(a.arg):
		return refuse, wire.Errorf(wire.CodeDenied, "subsystem %.64q is not for clients", a.arg)
	case watch && (!terminal || a.kind != wire.RequestShell):
		return refuse, wire.Errorf(wire.CodeDenied,
			"your key may only watch: use a shell with a terminal")
	case a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemMCP && terminal:
		return refuse, wire.Errorf(wire.CodeUsage,
			"MCP needs a channel without a terminal: use ssh -s without -t")
	case a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemMCP &&
		t.Session == wire.NewSession:
		return refuse, wire.Errorf(wire.CodeUsage,
			"MCP needs a named session: use SANDBOX or SANDBOX~SESSION as the user")
	case a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemMCP:
		return tools, nil
	case terminal && a.kind == wire.RequestShell && t.Session == wire.NewSession && watch:
		return refuse, wire.Errorf(wire.CodeDenied,
			"your key may only watch: it cannot create a session")
	case terminal && a.kind == wire.RequestShell && t.Session == wire.NewSession:
		return fresh, nil
	case terminal && a.kind == wire.RequestShell && g.Kind == wire.Agent:
		return raw, nil
	case terminal && a.kind == wire.RequestShell:
		return join, nil
	case terminal:
		return own, nil
	}
	return relayed, nil
}

// Limits of a channel's environment.
const (
	maxEnv      = 64
	maxEnvValue = 4 << 10
)

// allowEnv reports whether a client may set a variable. It rejects those that make programs run
// others (LD_*, BASH_ENV, PATH) and those that identify the user.
func allowEnv(e wire.Env) bool {
	switch e.Name {
	case "LANG", "TERM", "COLORTERM", "GIT_PROTOCOL":
	default:
		locale, ok := strings.CutPrefix(e.Name, "LC_")
		if !ok || locale == "" || len(locale) > 32 ||
			strings.Trim(locale, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") != "" {
			return false
		}
	}
	return len(e.Value) <= maxEnvValue &&
		!strings.ContainsFunc(e.Value, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Limits of a pty-req. A longer one is rejected.
const (
	maxTerm  = 64
	maxModes = 1 << 10
)

// parsePty parses and clamps a pty-req.
func parsePty(payload []byte) (*wire.PtyReq, bool) {
	var p wire.PtyReq
	if len(payload) > 2*maxModes || wire.Unmarshal(payload, &p) != nil || len(p.Term) > maxTerm ||
		len(p.Modes) > maxModes {
		return nil, false
	}
	if strings.ContainsFunc(p.Term, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
		return nil, false
	}
	cols, rows := wire.ClampSize(p.Cols, p.Rows)
	p.Cols, p.Rows = uint32(cols), uint32(rows)
	p.Width, p.Height = min(p.Width, 1<<16-1), min(p.Height, 1<<16-1)
	return &p, true
}

// parseWindow parses and clamps a window-change.
func parseWindow(payload []byte) (wire.WindowChange, bool) {
	var w wire.WindowChange
	if wire.Unmarshal(payload, &w) != nil {
		return w, false
	}
	cols, rows := wire.ClampSize(w.Cols, w.Rows)
	w.Cols, w.Rows = uint32(cols), uint32(rows)
	w.Width, w.Height = min(w.Width, 1<<16-1), min(w.Height, 1<<16-1)
	return w, true
}
