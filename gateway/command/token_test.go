package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A token or a login link has at most the rights and the lifetime of the key that creates it. A key
// with restrictions that a token cannot have creates none.
func TestTokenOfRestrictedKey(t *testing.T) {
	w := newWorld(t)
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "tokens"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tokens, err := token.Open(t.Context(), s, func(token.Token) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	run := func(p gateway.Principal, args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		env := Env{Hub: w.hub, Tokens: tokens, HTTP: "http://127.0.0.1:8022", Principal: p,
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
		return Run(t.Context(), &env, args), out.String(), errs.String()
	}
	for want, o := range map[string]gateway.KeyOptions{"no-pty": {NoPty: true},
		"command": {Command: "ls"}, "from": {From: []string{"10.0.0.0/8"}}} {
		p := alice
		p.Options = o
		for _, args := range [][]string{{"token", "new"}, {"page"}} {
			if code, out, stderr := run(p, args...); code == 0 || out != "" ||
				!strings.Contains(stderr, want) {
				t.Errorf("%v by a key with %s: exit %d, %q, %q", args, want, code, out, stderr)
			}
		}
	}
	program := alice
	program.Kind = wire.Agent
	for _, args := range [][]string{{"token", "new", "--person"}, {"page"}} {
		if code, out, stderr := run(program, args...); code == 0 || out != "" ||
			!strings.Contains(stderr, "the key of an agent") {
			t.Errorf("%v by a program: exit %d, %q, %q", args, code, out, stderr)
		}
	}
	if code, _, stderr := run(program, "token", "new"); code != 0 {
		t.Errorf("token of an agent: %s", stderr)
	}
	short := alice
	short.Options.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
	short.Options.NoForward, short.Options.NoAgent, short.Options.NoX11 = true, true, true
	for _, args := range [][]string{{"token", "new", "--json"},
		{"token", "new", "--json", "--expires", "30d"}, {"page", "--json"}} {
		code, out, stderr := run(short, args...)
		var got struct{ Expires time.Time }
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 ||
			!got.Expires.Equal(short.Options.Expires) {
			t.Errorf("%v by a key of an hour: exit %d, %q, %q, %v", args, code, out, stderr, err)
		}
	}
}

// A revoked key creates neither a token nor a login link. A token names the key that created it.
func TestTokenOfKeyThatIsGone(t *testing.T) {
	w := newWorld(t)
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "tokens"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tokens, err := token.Open(t.Context(), s, func(t token.Token) error {
		if t.Line == "SHA256:gone" {
			return errors.New("the key is gone")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	run := func(line string, args ...string) (code int, stdout, stderr string) {
		p := alice
		p.Line = line
		var out, errs bytes.Buffer
		env := Env{Hub: w.hub, Tokens: tokens, HTTP: "http://127.0.0.1:8022", Principal: p,
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
		return Run(t.Context(), &env, args), out.String(), errs.String()
	}
	for _, args := range [][]string{{"token", "new"}, {"page"}} {
		code, out, stderr := run("SHA256:gone", args...)
		if code == 0 || out != "" || !strings.Contains(stderr,
			"token denied: the key is gone") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, stderr)
		}
	}
	code, out, _ := run("SHA256:here", "token", "new", "--json")
	if code != 0 || !strings.Contains(out, `"key":"SHA256:here"`) {
		t.Errorf("token new: exit %d, %s", code, out)
	}
	if _, out, _ := run("", "token", "ls", "--json"); !strings.Contains(out,
		`"key":"SHA256:here"`) {
		t.Errorf("token ls: %s", out)
	}
}
