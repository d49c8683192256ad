package sshd

import (
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ask is what a client wants of a session channel: the requests up to shell, exec or subsystem.
type ask struct {
	pty  *wire.PtyReq // clamped; nil without a terminal
	env  []wire.Env   // of the allowed names
	kind string       // wire.RequestShell, RequestExec or RequestSubsystem
	arg  string       // the command line or the subsystem's name
}

// route is what happens to a session channel.
type route int

const (
	refuse      route = iota
	join              // a person in a shared session, drawn by our renderer
	raw               // an agent in a shared session: the log's bytes
	fresh             // a terminal of its own that is a session, raw
	own               // a terminal of its own for one command, relayed and recorded
	relayed           // no terminal, relayed untouched
	stream            // the session stream
	tools             // MCP
	controlHost       // the command table
)

func (r route) String() string {
	return [...]string{"refuse", "join", "raw", "fresh", "own", "relay", "stream", "mcp", "control"}[r]
}

// decide reads from what a client asks for where it goes (docs/reference/routing.md). TERM, the client's name and
// anything else that it says of itself play no part. The error is for the client.
func decide(g *grant, t wire.Target, a ask) (route, error) {
	watch := g.Rights == wire.RightWatch
	terminal := a.pty != nil
	switch {
	case t.Sandbox == wire.Lobby && a.kind == wire.RequestSubsystem:
		return refuse, wire.Errorf(wire.CodeUsage, "the control host has no subsystems; log in as a sandbox")
	case t.Sandbox == wire.Lobby && t.Session != wire.DefaultSession:
		return refuse, wire.Errorf(wire.CodeUsage, "the control host has no sessions; log in as %s", wire.Lobby)
	case t.Sandbox == wire.Lobby:
		return controlHost, nil
	case a.kind == wire.RequestSubsystem && a.arg == wire.SessionSubsystem:
		return stream, nil
	case a.kind == wire.RequestSubsystem && ours(a.arg):
		return refuse, wire.Errorf(wire.CodeDenied, "subsystem %.64q is not for clients", a.arg)
	case watch && (!terminal || a.kind != wire.RequestShell):
		return refuse, wire.Errorf(wire.CodeDenied, "your key may only watch: log in for a shell with a terminal")
	case a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemMCP && terminal:
		return refuse, wire.Errorf(wire.CodeUsage, "MCP goes over a channel without a terminal: ssh -s without -t")
	case a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemMCP && t.Session == wire.NewSession:
		return refuse, wire.Errorf(wire.CodeUsage, "MCP has sessions by name; log in as the sandbox, or SANDBOX~SESSION")
	case a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemMCP:
		return tools, nil
	case terminal && a.kind == wire.RequestShell && t.Session == wire.NewSession && watch:
		return refuse, wire.Errorf(wire.CodeDenied, "your key may only watch: no terminal of your own")
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

// What one channel may bring as its environment.
const (
	maxEnv      = 64
	maxEnvValue = 4 << 10
)

// allowEnv reports whether a client may set a variable. Never what makes programs run other programs – LD_*, BASH_ENV,
// PATH – nor what says who logged in.
func allowEnv(e wire.Env) bool {
	switch e.Name {
	case "LANG", "TERM", "COLORTERM", "GIT_PROTOCOL":
	default:
		locale, ok := strings.CutPrefix(e.Name, "LC_")
		if !ok || locale == "" || len(locale) > 32 || strings.Trim(locale, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") != "" {
			return false
		}
	}
	return len(e.Value) <= maxEnvValue && !strings.ContainsFunc(e.Value, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Bounds of a pty-req; what is longer is no terminal.
const (
	maxTerm  = 64
	maxModes = 1 << 10
)

// parsePty reads and clamps a pty-req.
func parsePty(payload []byte) (*wire.PtyReq, bool) {
	var p wire.PtyReq
	if len(payload) > 2*maxModes || wire.Unmarshal(payload, &p) != nil || len(p.Term) > maxTerm || len(p.Modes) > maxModes {
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

// parseWindow reads and clamps a window-change.
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
