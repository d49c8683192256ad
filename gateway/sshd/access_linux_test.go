package sshd

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// livePlace is an authorized_keys file, and a client that logged in with it.
type livePlace struct {
	t     *testing.T
	path  string
	keys  *Keys
	addr  net.Addr
	login *login
	line  string // the line of the login
}

func newLivePlace(t *testing.T, options string) *livePlace {
	t.Helper()
	key := newSigner(t).PublicKey()
	p := &livePlace{t: t, line: keyLine(options, key)}
	p.addr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	p.path = writeKeys(t, p.line)
	p.keys = OpenKeys(p.path, "owner", nil)
	in, err := p.keys.login(attempt{addr: p.addr}, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p.login = loginOf(in)
	return p
}

// stays runs the gateway's check of the login.
func (p *livePlace) stays() error {
	now := time.Now()
	return p.keys.recent(now).holds(func(f *keyFile) error {
		_, err := f.stays(p.addr, p.login, now)
		return err
	})
}

// write writes the file in place.
func (p *livePlace) write(text string) {
	p.t.Helper()
	if err := os.WriteFile(p.path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// A content that is missing for a moment ends no access, however the file is written. A login uses
// the current content. A content that allows no logins for longer ends access.
func TestWhoMayStay(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *livePlace)
		lasts  bool // the client keeps access, also in the end
	}{
		"the line is removed":       {func(p *livePlace) { p.write("# nobody\n") }, false},
		"the file is empty":         {func(p *livePlace) { p.write("") }, false},
		"the file is gone":          {func(p *livePlace) { os.Remove(p.path) }, false},
		"others can write it":       {func(p *livePlace) { os.Chmod(p.path, 0o666) }, false},
		"not a file":                {func(p *livePlace) { os.Remove(p.path); os.Mkdir(p.path, 0o700) }, false},
		"the line is cut off":       {func(p *livePlace) { p.write(p.line[:len(p.line)/2]) }, false},
		"an unknown option":         {func(p *livePlace) { p.write("no-such-option " + p.line) }, false},
		"another line is no line":   {func(p *livePlace) { p.write("garbage\n" + p.line) }, true},
		"written anew":              {func(p *livePlace) { p.write(""); p.stays(); p.write(p.line) }, true},
		"renamed away and back":     {renamed, true},
		"written many times":        {func(p *livePlace) { writtenOften(p); p.write(p.line) }, true},
		"written often, then gone":  {func(p *livePlace) { writtenOften(p); os.Remove(p.path) }, false},
		"the same length, in place": {func(p *livePlace) { p.write(strings.Repeat("#", len(p.line))) }, false},
		"only watches":              {func(p *livePlace) { p.write(`role="watch" ` + p.line) }, false},
		"no terminals":              {func(p *livePlace) { p.write("no-pty " + p.line) }, false},
		"another's":                 {func(p *livePlace) { p.write(`principal="bob" ` + p.line) }, false},
		"from elsewhere":            {func(p *livePlace) { p.write(`from="10.0.0.0/8" ` + p.line) }, false},
		"from where they are":       {func(p *livePlace) { p.write(`from="192.0.2.0/24" ` + p.line) }, true},
		"expired":                   {func(p *livePlace) { p.write(`expiry-time="19700102Z" ` + p.line) }, false},
		"expires later":             {func(p *livePlace) { p.write(`expiry-time="29700102Z" ` + p.line) }, true},
		"becomes an authority":      {func(p *livePlace) { p.write("cert-authority " + p.line) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLivePlace(t, "")
			p.keys.grace = time.Hour
			if err := p.stays(); err != nil {
				t.Fatalf("before: %v", err)
			}
			tt.change(p)
			if err := p.stays(); err != nil {
				t.Errorf("at once: %v", err)
			}
			in, err := p.keys.login(attempt{addr: p.addr}, p.login.key, time.Now())
			if (err == nil && loginOf(in).grant.covers(p.login.grant) == nil) != tt.lasts {
				t.Errorf("another login: %v", err)
			}
			for i := range p.keys.past { // the grace period is over
				p.keys.past[i].until = time.Time{}
			}
			if err := p.stays(); (err == nil) != tt.lasts {
				t.Errorf("after the grace: %v", err)
			}
		})
	}
}

// renamed renames the file away and back.
func renamed(p *livePlace) {
	os.Rename(p.path, p.path+"~")
	p.stays()
	os.Rename(p.path+"~", p.path)
}

// writtenOften writes more contents than are kept, with a check of each.
func writtenOften(p *livePlace) {
	for i := range 3 * maxPast {
		p.write(strings.Repeat("\n", i))
		p.stays()
	}
}

// A grant covers another one only if it allows as much.
func TestCovers(t *testing.T) {
	grantBy := func(options string) *grant {
		t.Helper()
		p := newLivePlace(t, options)
		return p.login.grant
	}
	for _, tt := range []struct {
		before, now string
		want        bool
	}{
		{``, ``, true},
		{`principal="alice"`, `principal="bob"`, false},
		{`kind="agent"`, `kind="person"`, false},
		{`role="watch"`, ``, true},
		{``, `role="watch"`, false},
		{`restrict`, ``, true},
		{`restrict`, `restrict,pty`, true},
		{`restrict,pty`, `restrict`, false},
		{``, `no-port-forwarding`, false},
		{``, `no-agent-forwarding`, false},
		{``, `no-x11-forwarding`, false},
		{``, `command="ls"`, false},
		{`command="ls"`, `command="id"`, false},
		{`command="ls"`, ``, true},
		{``, `permitopen="a:1"`, false},
		{`permitopen="a:1"`, ``, true},
		{`permitopen="a:1"`, `permitopen="b:1"`, false},
		{`permitopen="a:1"`, `permitopen="b:1",permitopen="a:1"`, true},
		{`permitopen="b:1",permitopen="a:1"`, `permitopen="a:1"`, false},
		{``, `permitlisten="1"`, false},
		{`permitlisten="1"`, ``, true},
		{`no-touch-required`, ``, true},
	} {
		if err := grantBy(tt.now).covers(grantBy(tt.before)); (err == nil) != tt.want {
			t.Errorf("%q, then %q: %v", tt.before, tt.now, err)
		}
	}
}

// A client with a certificate stays as long as the certificate would allow a login.
func TestCertificateMayStay(t *testing.T) {
	ca, user := newSigner(t), newSigner(t)
	path := writeKeys(t, keyLine("cert-authority", ca.PublicKey()))
	k := OpenKeys(path, "owner", nil)
	k.grace = 0
	addr := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	in, err := k.login(attempt{addr: addr}, certify(t, ca, user.PublicKey(), nil), testTime)
	if err != nil {
		t.Fatal(err)
	}
	stays := func(at time.Time) error {
		_, err := k.recent(time.Now())[0].stays(addr, loginOf(in), at)
		return err
	}
	if err := stays(testTime.Add(time.Hour - time.Second)); err != nil {
		t.Errorf("before its end: %v", err)
	}
	if err := stays(testTime.Add(time.Hour)); err == nil {
		t.Error("it may stay after its end")
	}
	for _, line := range []string{keyLine(`cert-authority,principals="bob"`, ca.PublicKey()), ""} {
		if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := stays(testTime); err == nil {
			t.Errorf("it may stay by %q", line)
		}
	}
}

// A token is valid as long as the line that created it.
func TestBacks(t *testing.T) {
	one, two, ca := newSigner(t), newSigner(t), newSigner(t)
	print := func(s ssh.Signer) string { return ssh.FingerprintSHA256(s.PublicKey()) }
	owner := gateway.Principal{Name: "owner", Kind: wire.Person, Rights: wire.RightDrive,
		Line: print(one)}
	watcher, program, any, alice := owner, owner, owner, owner
	watcher.Rights, program.Kind, any.Line = wire.RightWatch, wire.Agent, ""
	alice.Name, alice.Line = "alice", print(ca)
	for name, tt := range map[string]struct {
		line string
		p    gateway.Principal
		want bool
	}{
		"the key":                          {keyLine("", one.PublicKey()), owner, true},
		"another key":                      {keyLine("", two.PublicKey()), owner, false},
		"another's by now":                 {keyLine(`principal="bob"`, one.PublicKey()), owner, false},
		"expired":                          {keyLine(`expiry-time="19700102Z"`, one.PublicKey()), owner, false},
		"a watch key":                      {keyLine(`role="watch"`, one.PublicKey()), owner, false},
		"a watch key, watch token":         {keyLine(`role="watch"`, one.PublicKey()), watcher, true},
		"a program's":                      {keyLine(`kind="agent"`, one.PublicKey()), owner, false},
		"a program's key, program's token": {keyLine(`kind="agent"`, one.PublicKey()), program, true},
		"a command":                        {keyLine(`command="ls"`, one.PublicKey()), owner, false},
		"an authority now":                 {keyLine(`cert-authority,principals="bob"`, one.PublicKey()), owner, false},
		"no key known":                     {keyLine("", two.PublicKey()), any, true},
		"no line named, no key":            {keyLine(`principal="bob"`, two.PublicKey()), any, false},
		"an authority":                     {keyLine("cert-authority", ca.PublicKey()), alice, true},
		"an authority for others":          {keyLine(`cert-authority,principals="bob"`, ca.PublicKey()), alice, false},
		"no file":                          {"", owner, false},
	} {
		err := OpenKeys(writeKeys(t, tt.line), "owner", nil).Backs(tt.p)
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The promise is two seconds; each step takes part of them.
func TestAccessIsOverInTime(t *testing.T) {
	const reserve = 900 * time.Millisecond // for a busy machine
	if most := accessEvery + keysGrace + accessSoon + accessFarewell; most > 2*time.Second-reserve {
		t.Errorf("it may take %v", most)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newLivePlace(t, "")
		p.write("")
		if err := p.stays(); err != nil {
			t.Errorf("at once: %v", err)
		}
		<-time.After(keysGrace)
		if err := p.stays(); !errors.Is(err, errNoKey) {
			t.Errorf("after %v: %v", keysGrace, err)
		}
	})
}

// A client that loses access gets the reason, on standard error if it has no terminal. A person's
// terminal is restored first. A connection with another key continues.
func TestEndOfAccess(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	person := w.sit("alice", "demo@127.0.0.1")
	person.until("in", func() bool { return strings.Contains(person.status(), "demo~main") })
	cmd := w.ssh("alice", "demo@127.0.0.1", "echo logged in >&2; cat")
	var out, errs syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ssh is logged in", func() bool { return errs.contains("logged in") })
	program := w.dial("agent", "demo")
	command := w.dial("alice", "demo")
	ch, reqs := openSession(t, command)
	go ssh.DiscardRequests(reqs)
	execute(t, ch, "cat")
	if _, err := io.WriteString(ch, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(ch, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	w.allow(func(name, line string) string {
		if name == "alice" {
			return ""
		}
		return line
	})
	const why = "your access has ended: the key is not in authorized_keys"
	if got := person.leaves(); got != wire.ExitTransport || !strings.Contains(person.text(), why) {
		t.Errorf("person: exit status %d:\n%s", got, person.text())
	}
	if err := command.Wait(); err == nil {
		t.Error("the connection ended in order")
	}
	if said, _ := io.ReadAll(ch.Stderr()); !strings.Contains(string(said), "sandboxd: "+why+"\n") {
		t.Errorf("got %q", said)
	}
	if rest, _ := io.ReadAll(ch); len(rest) > 0 {
		t.Errorf("standard output has %q", rest)
	}
	stdin.Close()
	err = cmd.Wait()
	exit := cmd.ProcessState.ExitCode()
	if exit != wire.ExitTransport || !errs.contains(why) || out.String() != "" {
		t.Errorf("ssh: %v, %q, %q", err, out.String(), errs.String())
	}
	if c, err := w.tryDial("alice", "demo"); err == nil {
		c.Close()
		t.Error("the key logs in")
	}
	s, err := program.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run("true"); err != nil {
		t.Errorf("another key's connection: %v", err)
	}
}

// Replacing or rewriting the file ends no connection, whatever it contains in between.
func TestKeysReplacedUnderClients(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.forgive(time.Hour)
	c, other := w.dial("alice", "demo"), w.dial("agent", "demo")
	text, err := os.ReadFile(w.keys.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.keys.path, filepath.Join(w.dir, "backup")); err != nil {
		t.Fatal(err)
	}
	w.keys.look()
	works(t, c)
	for i := 0; i < len(text); i += 100 {
		if err := os.WriteFile(w.keys.path, text[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		w.keys.look()
	}
	works(t, c)
	if err := os.WriteFile(w.keys.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w.keys.look()
	w.forgive(0)
	// The end of the other connection means that the gateway has checked since.
	w.allow(func(name, line string) string {
		if name == "agent" {
			return ""
		}
		return line
	})
	if err := other.Wait(); err == nil {
		t.Error("the other's connection ended in order")
	}
	works(t, c)
}

// forgive sets the grace period of the current content, and drops older ones.
func (w *world) forgive(grace time.Duration) {
	w.keys.mu.Lock()
	defer w.keys.mu.Unlock()
	w.keys.grace, w.keys.past = grace, nil
}

// works runs a command on a connection that must continue.
func works(t *testing.T, c *ssh.Client) {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Run("true"); err != nil {
		t.Fatal(err)
	}
}
