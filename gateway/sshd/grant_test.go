package sshd

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const someKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2SbcGnXnl3qBqbmcKKkkXvwKEmmeqC7mE4Mx4rZhiD someone"

func optionsOf(t testing.TB, line string) []string {
	t.Helper()
	_, _, options, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	return options
}

func TestParseOptions(t *testing.T) {
	me := gateway.Principal{Name: "me", Kind: wire.Person, Rights: wire.RightDrive}
	with := func(change func(*grant)) *grant {
		g := &grant{Principal: me}
		change(g)
		return g
	}
	for _, tt := range []struct {
		options string
		want    *grant // nil: rejected
	}{
		{``, &grant{Principal: me}},
		{`principal="alice"`, with(func(g *grant) { g.Name = "alice" })},
		{`principal="alice",kind="agent",role="watch"`, with(func(g *grant) { g.Name, g.Kind, g.Rights = "alice", wire.Agent, wire.RightWatch })},
		{`no-pty`, with(func(g *grant) { g.Options.NoPty = true })},
		{`No-PTY,no-X11-forwarding`, with(func(g *grant) { g.Options.NoPty, g.Options.NoX11 = true, true })},
		{`restrict,pty`, with(func(g *grant) { g.Options = gateway.KeyOptions{NoForward: true, NoAgent: true, NoX11: true} })},
		{`pty,restrict`, with(func(g *grant) {
			g.Options = gateway.KeyOptions{NoPty: true, NoForward: true, NoAgent: true, NoX11: true}
		})},
		{`command="echo \"a b\", c"`, with(func(g *grant) { g.Options.Command = `echo "a b", c` })},
		{`from="192.0.2.0/24,!192.0.2.7,2001:db8::*"`, with(func(g *grant) { g.Options.From = []string{"192.0.2.0/24", "!192.0.2.7", "2001:db8::*"} })},
		{`permitopen="localhost:80",permitopen="[::1]:*"`, with(func(g *grant) { g.Options.PermitOpen = []string{"localhost:80", "[::1]:*"} })},
		{`permitlisten="8080",permitlisten="localhost:*"`, with(func(g *grant) { g.PermitListen = []string{"8080", "localhost:*"} })},
		{`expiry-time="20300102Z"`, with(func(g *grant) { g.Options.Expires = time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC) })},
		{`expiry-time="20300102030405Z"`, with(func(g *grant) { g.Options.Expires = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) })},
		{`expiry-time="203001020304Z"`, with(func(g *grant) { g.Options.Expires = time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC) })},
		{`cert-authority,principals="alice,bob",kind="agent"`, with(func(g *grant) {
			g.authority, g.principals, g.Kind = true, []string{"alice", "bob"}, wire.Agent
		})},
		{`environment="A=b",environment="C=d"`, &grant{Principal: me}},
		{`no-touch-required`, with(func(g *grant) { g.NoTouch = true })},
		{`user-rc,no-user-rc`, &grant{Principal: me}},

		{`verify-required`, nil},
		{`tunnel="0"`, nil},
		{`nonsense`, nil},
		{`nonsense="x"`, nil},
		{`no-pty="yes"`, nil},
		{`principal`, nil},
		{`principal=alice`, nil},
		{`principal=""`, nil},
		{`principal="a b"`, nil},
		{`principal="../x"`, nil},
		{`principal="-x"`, nil},
		{`principal="` + strings.Repeat("x", 65) + `"`, nil},
		{`principal="a",principal="b"`, nil},
		{`kind="robot"`, nil},
		{`role="root"`, nil},
		{`from="example.com"`, nil},
		{`from="10.0.0.0/33"`, nil},
		{`from="*.example.com"`, nil},
		{`command=""`, nil},
		{`command="a","b"`, nil},
		{`permitopen="80"`, nil},
		{`permitopen="h:http"`, nil},
		{`permitlisten="x"`, nil},
		{`permitlisten="0"`, nil},
		{`expiry-time="tomorrow"`, nil},
		{`expiry-time="20301301"`, nil},
		{`principals="alice"`, nil},
		{`cert-authority,principal="alice"`, nil},
		{`cert-authority,principals="a,,b"`, nil},
	} {
		t.Run(tt.options, func(t *testing.T) {
			line := someKey
			if tt.options != "" {
				line = tt.options + " " + someKey
			}
			got, err := parseOptions(optionsOf(t, line), "me")
			if (err == nil) != (tt.want != nil) {
				t.Fatalf("err %v", err)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(grant{}),
				cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAdmits(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, tt := range []struct {
		name    string
		options string
		addr    net.Addr
		want    bool
	}{
		{"anywhere", ``, tcp("192.0.2.1"), true},
		{"unix socket", ``, &net.UnixAddr{Name: "x"}, true},
		{"in the block", `from="192.0.2.0/24"`, tcp("192.0.2.1"), true},
		{"outside of it", `from="192.0.2.0/24"`, tcp("192.0.3.1"), false},
		{"excluded", `from="192.0.2.0/24,!192.0.2.1"`, tcp("192.0.2.1"), false},
		{"excluded first", `from="!192.0.2.1,192.0.2.0/24"`, tcp("192.0.2.1"), false},
		{"only exclusions match nothing", `from="!192.0.2.1"`, tcp("192.0.2.2"), false},
		{"pattern", `from="192.0.2.*"`, tcp("192.0.2.77"), true},
		{"one character", `from="192.0.2.?"`, tcp("192.0.2.77"), false},
		{"mapped", `from="192.0.2.1"`, tcp("::ffff:192.0.2.1"), true},
		{"no address", `from="192.0.2.1"`, &net.UnixAddr{Name: "x"}, false},
		{"everything but no address", `from="*"`, &net.UnixAddr{Name: "x"}, false},
		{"expired", `expiry-time="20261231Z"`, tcp("192.0.2.1"), false},
		{"at the second", `expiry-time="20270101Z"`, tcp("192.0.2.1"), false},
		{"not yet", `expiry-time="20270102Z"`, tcp("192.0.2.1"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line := strings.TrimSpace(tt.options + " " + someKey)
			g, err := parseOptions(optionsOf(t, line), "me")
			if err != nil {
				t.Fatal(err)
			}
			if err := g.admits(tt.addr, now); (err == nil) != tt.want {
				t.Errorf("got %v, want admitted %v", err, tt.want)
			}
		})
	}
}

func TestMayForward(t *testing.T) {
	for _, tt := range []struct {
		options string
		host    string
		port    uint32
		open    bool
		listen  bool
	}{
		{``, "localhost", 80, true, true},
		{`no-port-forwarding`, "localhost", 80, false, false},
		{`restrict`, "localhost", 80, false, false},
		{`restrict,port-forwarding`, "localhost", 80, true, true},
		{`role="watch"`, "localhost", 80, false, false},
		{`permitopen="localhost:80"`, "localhost", 80, true, true},
		{`permitopen="localhost:80"`, "LOCALHOST", 80, true, true},
		{`permitopen="localhost:80"`, "localhost", 81, false, true},
		{`permitopen="localhost:80"`, "127.0.0.1", 80, false, true},
		{`permitopen="*:80"`, "127.0.0.1", 80, true, true},
		{`permitopen="localhost:*"`, "localhost", 22, true, true},
		{`permitlisten="8080"`, "", 8080, true, true},
		{`permitlisten="8080"`, "0.0.0.0", 8080, true, true},
		{`permitlisten="localhost:8080"`, "0.0.0.0", 8080, true, false},
		{`permitlisten="8080"`, "", 0, true, false},
	} {
		line := strings.TrimSpace(tt.options + " " + someKey)
		g, err := parseOptions(optionsOf(t, line), "me")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.mayOpen(tt.host, tt.port); (err == nil) != tt.open {
			t.Errorf("%s: open %s:%d: %v, want %v", tt.options, tt.host, tt.port, err, tt.open)
		}
		if err := g.mayListen(tt.host, tt.port); (err == nil) != tt.listen {
			t.Errorf("%s: listen %s:%d: %v, want %v", tt.options, tt.host, tt.port, err, tt.listen)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	for _, s := range []string{`principal="alice",kind="agent"`,
		`from="1.2.3.4,!5.*",command="a \" b"`, `permitopen="[::1]:*"`,
		`expiry-time="20300102"`, `cert-authority,principals="a,b"`, `restrict,pty`, `=`, `a="`,
		`principal="`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, options string) {
		_, _, parsed, _, err := ssh.ParseAuthorizedKey([]byte(options + " " + someKey))
		if err != nil {
			return
		}
		g, err := parseOptions(parsed, "me")
		if err != nil {
			return
		}
		if err := checkPrincipal(g.Name); err != nil {
			t.Errorf("%q: principal %q: %v", options, g.Name, err)
		}
		if g.Kind != wire.Agent && g.Kind != wire.Person || g.Rights != wire.RightDrive &&
			g.Rights != wire.RightWatch {
			t.Errorf("%q: kind %q, rights %q", options, g.Kind, g.Rights)
		}
		_ = g.admits(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, time.Now())
		_ = g.mayOpen("localhost", 80)
	})
}
