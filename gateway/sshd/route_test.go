package sshd

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The routes of docs/reference/routing.md.
func TestDecide(t *testing.T) {
	who := map[string]*grant{
		"person": {Principal: gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightDrive}},
		"agent":  {Principal: gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive}},
		"watch":  {Principal: gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightWatch}},
		"watcha": {Principal: gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightWatch}},
	}
	for _, tt := range []struct {
		who, user, ask string
		want           route
	}{
		{"person", "demo", "pty shell", join},
		{"person", "demo~build", "pty shell", join},
		{"person", "demo~new", "pty shell", fresh},
		{"person", "demo", "pty exec htop", own},
		{"person", "demo~build", "pty exec htop", own},
		{"person", "demo~new", "pty exec htop", own},
		{"person", "demo", "exec ls", relayed},
		{"person", "demo", "shell", relayed},
		{"person", "demo~new", "shell", relayed},
		{"person", "demo", "subsystem sftp", relayed},
		{"person", "demo", "pty subsystem sftp", own},
		{"person", "demo", "subsystem netconf", relayed},
		{"person", "demo", "subsystem session@sandboxd", stream},
		{"person", "demo", "subsystem egress@sandboxd", refuse},
		{"person", "demo", "subsystem mcp", tools},
		{"person", "demo~build", "subsystem mcp", tools},
		{"person", "demo~new", "subsystem mcp", refuse},
		{"person", "demo", "pty subsystem mcp", refuse},
		{"person", "sandboxd", "subsystem mcp", refuse},
		{"person", "sandboxd", "exec ls", controlHost},
		{"person", "sandboxd", "pty exec ls", controlHost},
		{"person", "sandboxd", "pty shell", controlHost},
		{"person", "sandboxd", "shell", controlHost},
		{"person", "sandboxd", "subsystem sftp", refuse},
		{"person", "sandboxd", "subsystem session@sandboxd", refuse},
		{"person", "sandboxd~x", "pty shell", refuse},

		{"agent", "demo", "pty shell", raw},
		{"agent", "demo~build", "pty shell", raw},
		{"agent", "demo~new", "pty shell", fresh},
		{"agent", "demo", "pty exec htop", own},
		{"agent", "demo", "exec ls", relayed},
		{"agent", "demo", "subsystem mcp", tools},
		{"agent", "demo", "subsystem session@sandboxd", stream},
		{"agent", "sandboxd", "exec ls", controlHost},

		{"watch", "demo", "pty shell", join},
		{"watch", "demo~build", "pty shell", join},
		{"watch", "demo~new", "pty shell", refuse},
		{"watch", "demo", "pty exec htop", refuse},
		{"watch", "demo", "exec ls", refuse},
		{"watch", "demo", "shell", refuse},
		{"watch", "demo", "subsystem sftp", refuse},
		{"watch", "demo", "subsystem mcp", refuse},
		{"watch", "demo", "subsystem session@sandboxd", stream}, // the hub enforces watching
		{"watch", "sandboxd", "exec ls", controlHost},           // as it does for commands
		{"watcha", "demo", "pty shell", raw},
		{"watcha", "demo", "exec ls", refuse},
	} {
		target, err := wire.ParseTarget(tt.user)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decide(who[tt.who], target, parseAsk(tt.ask))
		if got != tt.want || (err != nil) != (tt.want == refuse) {
			t.Errorf("%s at %s asks for %s: got %v, %v, want %v", tt.who, tt.user, tt.ask, got, err,
				tt.want)
		}
		var shown *wire.Error
		if err != nil && (!errors.As(err, &shown) || shown.Message == "") {
			t.Errorf("%s at %s: no reason that may be shown: %v", tt.who, tt.user, err)
		}
	}
}

func parseAsk(s string) ask {
	var a ask
	if rest, ok := strings.CutPrefix(s, "pty "); ok {
		s, a.pty = rest, &wire.PtyReq{Term: "xterm", Cols: 80, Rows: 24}
	}
	a.kind, a.arg, _ = strings.Cut(s, " ")
	return a
}

func FuzzDecide(f *testing.F) {
	f.Add("demo~build", "exec", "ls", true, true, false)
	f.Add("sandboxd", "shell", "", true, false, false)
	f.Add("demo~new", "subsystem", "session@sandboxd", false, false, true)
	f.Fuzz(func(t *testing.T, user, kind, arg string, pty, agent, watch bool) {
		target, err := wire.ParseTarget(user)
		if err != nil {
			return
		}
		if kind != wire.RequestShell && kind != wire.RequestExec && kind != wire.RequestSubsystem {
			return
		}
		g := &grant{Principal: gateway.Principal{Name: "a", Kind: wire.Person,
			Rights: wire.RightDrive}}
		if agent {
			g.Kind = wire.Agent
		}
		if watch {
			g.Rights = wire.RightWatch
		}
		a := ask{kind: kind, arg: arg}
		if pty {
			a.pty = &wire.PtyReq{Cols: 80, Rows: 24}
		}
		to, err := decide(g, target, a)
		switch {
		case (err != nil) != (to == refuse):
			t.Errorf("%v with error %v", to, err)
		case watch && (to == own || to == relayed || to == fresh):
			t.Errorf("a watcher gets %v", to)
		case !pty && (to == join || to == raw || to == fresh || to == own):
			t.Errorf("%v without a terminal", to)
		case (to == controlHost) != (target.Sandbox == wire.ControlHost) && to != refuse:
			t.Errorf("%v at %s", to, target)
		case strings.HasSuffix(arg, "@sandboxd") && kind == wire.RequestSubsystem && to == relayed:
			t.Errorf("subsystem %q is relayed", arg)
		}
	})
}

func TestParsePty(t *testing.T) {
	for _, tt := range []struct {
		name       string
		in         wire.PtyReq
		cols, rows uint32 // 0: rejected
	}{
		{"usual", wire.PtyReq{Term: "xterm-256color", Cols: 120, Rows: 40, Modes: "\x00"}, 120, 40},
		{"nothing", wire.PtyReq{}, 80, 24},
		{"huge", wire.PtyReq{Term: "x", Cols: 1<<32 - 1, Rows: 1<<32 - 1, Width: 1<<32 - 1}, wire.MaxCols, wire.MaxRows},
		{"modes of a kilobyte", wire.PtyReq{Modes: strings.Repeat("x", 1<<10)}, 80, 24},
		{"modes of a megabyte", wire.PtyReq{Modes: strings.Repeat("x", 1<<20)}, 0, 0},
		{"long TERM", wire.PtyReq{Term: strings.Repeat("x", 65)}, 0, 0},
		{"path as TERM", wire.PtyReq{Term: "../../x"}, 0, 0},
		{"escape in TERM", wire.PtyReq{Term: "x\x1b[2J"}, 0, 0},
		{"space in TERM", wire.PtyReq{Term: "x y"}, 0, 0},
	} {
		got, ok := parsePty(wire.Marshal(tt.in))
		if ok != (tt.cols != 0) {
			t.Errorf("%s: accepted %v", tt.name, ok)
			continue
		}
		if ok && (got.Cols != tt.cols || got.Rows != tt.rows || got.Width >= 1<<16) {
			t.Errorf("%s: got %+v", tt.name, got)
		}
	}
	if _, ok := parsePty([]byte("short")); ok {
		t.Error("an invalid payload was accepted")
	}
	if w, ok := parseWindow(wire.Marshal(wire.WindowChange{Cols: 1<<32 - 1, Rows: 0})); !ok ||
		w.Cols != wire.MaxCols || w.Rows != 24 {
		t.Errorf("window-change: %+v, %v", w, ok)
	}
}

func FuzzRequests(f *testing.F) {
	f.Add(wire.Marshal(wire.PtyReq{Term: "xterm", Cols: 80, Rows: 24, Modes: "\x00"}))
	f.Add(wire.Marshal(wire.WindowChange{Cols: 80, Rows: 24}))
	f.Add(wire.Marshal(wire.Env{Name: "LC_ALL", Value: "C"}))
	f.Add(wire.Marshal(wire.DirectTCP{Host: "h", Port: 1}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if p, ok := parsePty(payload); ok &&
			(p.Cols < 1 || p.Cols > wire.MaxCols || p.Rows < 1 || p.Rows > wire.MaxRows) {
			t.Errorf("size %d×%d", p.Cols, p.Rows)
		}
		if w, ok := parseWindow(payload); ok &&
			(w.Cols < 1 || w.Cols > wire.MaxCols || w.Rows < 1 || w.Rows > wire.MaxRows) {
			t.Errorf("size %d×%d", w.Cols, w.Rows)
		}
		var e wire.Env
		if wire.Unmarshal(payload, &e) == nil && allowEnv(e) &&
			strings.ContainsAny(e.Name+e.Value, "\x00\n=") && !strings.Contains(e.Value, "=") {
			t.Errorf("%q=%q", e.Name, e.Value)
		}
		for _, kind := range []string{wire.ChannelForwardedTCP, wire.ChannelForwardedUnix,
			wire.ChannelAgent} {
			_, _ = reverseKind(kind, payload)
		}
	})
}
