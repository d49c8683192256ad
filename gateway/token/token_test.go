package token

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func everybody(Token) error { return nil }

func openAll(t *testing.T, dir string) (*Registry, *store.Store) {
	t.Helper()
	s := openStore(t, dir)
	r, err := Open(t.Context(), s, everybody)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, s
}

// A secret identifies its token, also after a restart, and is in no file.
func TestSecretIsNotKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r, s := openAll(t, dir)
	secret, made, err := r.Create(t.Context(),
		Token{Principal: "alice", Label: "ci", Line: "SHA256:x"})
	if err != nil {
		t.Fatal(err)
	}
	if len(secret) != len(Prefix)+32 || made.Kind != wire.Agent || made.Rights != wire.RightDrive {
		t.Errorf("%q, %+v", secret, made)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if text, _ := os.ReadFile(f); bytes.Contains(text, []byte(secret[len(Prefix):])) {
			t.Errorf("%s has the secret", f)
		}
	}

	r, s = openAll(t, dir)
	defer s.Close()
	got, _, err := r.Verify(secret)
	if err != nil || got.ID != made.ID || got.AsPrincipal().Name != "alice" || got.Label != "ci" ||
		got.Line != "SHA256:x" {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	for _, wrong := range []string{"", Prefix, secret + "0", strings.ToUpper(secret),
		secret[:len(secret)-1], secret[len(Prefix):], made.ID} {
		if _, _, err := r.Verify(wrong); err == nil {
			t.Errorf("%q is let in", wrong)
		}
	}
}

// Revoking a token ends its uses permanently; tokens of others cannot be revoked.
func TestRevoke(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r, s := openAll(t, dir)
	secret, made, err := r.Create(t.Context(), Token{Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	_, live, _ := r.Verify(secret)
	for _, who := range []string{"bob", ""} {
		var e *wire.Error
		if err := r.Revoke(t.Context(), who, made.ID); !errors.As(err, &e) ||
			e.Code != wire.CodeNotFound {
			t.Errorf("%q revokes alice's: %v", who, err)
		}
	}
	if live.Err() != nil || len(r.List("bob")) != 0 || len(r.List("alice")) != 1 {
		t.Fatalf("%v, %v, %v", live.Err(), r.List("bob"), r.List("alice"))
	}
	if err := r.Revoke(t.Context(), "alice", made.ID); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(context.Cause(live), ErrRevoked) {
		t.Errorf("what used it goes on: %v", context.Cause(live))
	}
	if _, _, err := r.Verify(secret); err == nil || len(r.List("alice")) != 0 {
		t.Error("a revoked token is let in")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r, s = openAll(t, dir)
	defer s.Close()
	if _, _, err := r.Verify(secret); err == nil {
		t.Error("a restart lets a revoked token in")
	}
}

// Expiry ends the uses of a token, and a restart removes it.
func TestExpire(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, dir)
	defer s.Close()
	var secret string
	synctest.Test(t, func(t *testing.T) {
		soon := time.Now().Add(time.Hour)
		r := &Registry{store: s, backed: everybody, live: make(map[[32]byte]*used),
			byID: make(map[string]*used)}
		defer r.Close()
		secret = Prefix + "0123"
		r.add(hashOf(secret), Token{ID: "1", Principal: "alice", Expires: &soon})
		_, live, err := r.Verify(secret)
		if err != nil {
			t.Fatal("it is not let in")
		}
		<-time.After(time.Hour - time.Second)
		if live.Err() != nil {
			t.Error("it ended too early")
		}
		<-live.Done()
		if !errors.Is(context.Cause(live), ErrExpired) {
			t.Errorf("cause %v", context.Cause(live))
		}
		if _, _, err := r.Verify(secret); err == nil || len(r.List("alice")) != 0 {
			t.Error("it is let in afterwards")
		}
	})
	hash := hashOf(secret)
	if err := s.AddToken(t.Context(), store.Token{ID: "old", Hash: hash[:], Principal: "alice",
		Created: time.Now(), Expires: time.Now().Add(-time.Second)}); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), s, everybody)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if rows, _ := s.Tokens(t.Context()); len(rows) != 0 {
		t.Errorf("kept: %v", rows)
	}
}

func TestRefusals(t *testing.T) {
	r, s := openAll(t, filepath.Join(t.TempDir(), "state"))
	defer s.Close()
	past := time.Now().Add(-time.Second)
	for name, tok := range map[string]Token{
		"nobody": {},
		"kind":   {Principal: "alice", Kind: "robot"},
		"rights": {Principal: "alice", Rights: "all"},
		"long":   {Principal: "alice", Label: strings.Repeat("x", 65)},
		"escape": {Principal: "alice", Label: "\x1b[31m"},
		"past":   {Principal: "alice", Expires: &past},
	} {
		if secret, _, err := r.Create(t.Context(), tok); err == nil {
			t.Errorf("%s: made %q", name, secret)
		}
	}
	if got := r.List("alice"); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// A code makes one token, once and within a minute, and is only in memory, as a hash.
func TestCode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		r, s := openAll(t, dir)
		defer s.Close()
		until := time.Now().Add(time.Hour)
		asked := Token{Principal: "alice", Kind: wire.Person, Rights: wire.RightWatch,
			Label: "page", Expires: &until}
		code, err := r.Code(asked)
		if err != nil {
			t.Fatal(err)
		}
		if len(code) != 32 || len(r.List("alice")) != 0 {
			t.Errorf("code %q, tokens %v", code, r.List("alice"))
		}
		for _, wrong := range []string{"", "x", strings.ToUpper(code) + "x", code[1:]} {
			if _, _, err := r.Redeem(t.Context(), wrong); err == nil {
				t.Errorf("%q is a code", wrong)
			}
		}
		secret, made, err := r.Redeem(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := r.Verify(secret); err != nil || got.ID != made.ID ||
			got.Kind != wire.Person || got.Rights != wire.RightWatch || !got.Expires.Equal(until) {
			t.Errorf("%+v, %v", got, err)
		}
		if _, _, err := r.Redeem(t.Context(), code); err == nil {
			t.Error("it is good twice")
		}

		old, err := r.Code(asked)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(CodeTime)
		if _, _, err := r.Redeem(t.Context(), old); err == nil {
			t.Error("it is good after a minute")
		}
		for range maxCodes {
			if _, err := r.Code(asked); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Code(asked); err == nil {
			t.Error("one principal has any number of codes")
		}
		if _, err := r.Code(Token{Principal: "bob"}); err != nil {
			t.Errorf("bob has none because of alice: %v", err)
		}
		<-time.After(CodeTime)
		if _, err := r.Code(asked); err != nil {
			t.Errorf("a minute later: %v", err)
		}
		r.Close()
	})
}

// Expired tokens are removed: many short-lived ones fill neither memory nor disk (A112).
func TestExpiredAreForgotten(t *testing.T) {
	r, s := openAll(t, filepath.Join(t.TempDir(), "state"))
	defer s.Close()
	for range 50 {
		until := time.Now().Add(5 * time.Millisecond)
		_, made, err := r.Create(t.Context(), Token{Principal: "alice", Expires: &until})
		if err != nil {
			t.Fatal(err)
		}
		if _, live, err := r.ByID(made.ID); err == nil {
			<-live.Done()
		}
	}
	if _, _, err := r.Create(t.Context(), Token{Principal: "alice"}); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Tokens(t.Context())
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || len(rows) != 1 || len(r.live) != 1 || len(r.byID) != 1 {
		t.Errorf("%d rows, %d and %d in memory, %v", len(rows), len(r.live), len(r.byID), err)
	}
}

// The tokens of a user who can no longer log in are invalid, and their uses end; they are valid
// again when the user can log in.
func TestPrincipalIsGone(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "state"))
	defer s.Close()
	there := map[string]bool{"alice": true, "bob": true}
	r, err := Open(t.Context(), s, func(t Token) error {
		if !there[t.Principal] {
			return errors.New("no way in")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	hers, _, err := r.Create(t.Context(), Token{Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	his, made, err := r.Create(t.Context(), Token{Principal: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	_, alices, _ := r.Verify(hers)
	_, bobs, _ := r.Verify(his)
	there["bob"] = false
	if _, _, err := r.Verify(his); !errors.Is(err, ErrUnbacked) ||
		!strings.Contains(err.Error(), "no way in") {
		t.Errorf("his secret: %v", err)
	}
	if _, _, err := r.ByID(made.ID); err == nil {
		t.Error("his token is good")
	}
	r.EndUnbacked()
	if !errors.Is(context.Cause(bobs), ErrUnbacked) || alices.Err() != nil {
		t.Errorf("what his is used for: %v; hers: %v", context.Cause(bobs), alices.Err())
	}
	there["bob"] = true
	if _, again, err := r.Verify(his); err != nil || again.Err() != nil {
		t.Error("his token is not good again")
	}
}
