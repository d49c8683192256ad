package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/gateway/httpd"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// tokenFile holds, in the state directory, the secret of the daemon's own user for the HTTP door.
const tokenFile = "api_token"

// e2bSecretFile holds, in the state directory, what the access tokens of sandboxes in E2B's shape are made with.
const e2bSecretFile = "e2b_secret"

// listenHTTP listens for the HTTP door, or returns nil where there is to be none. Where nobody chose the address, the next free port
// will do.
func listenHTTP(ctx context.Context, c *config.Loaded) (net.Listener, error) {
	addr := c.HTTP
	if addr == config.NoHTTP {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	for range 100 { // daemons that start at once look for a port at once
		if c.IsSet("http") || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		free, _ := freeAddress(ctx, addr)
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", free)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "address " + addr + " is taken", Hint: "use another with --http, --http 127.0.0.1:0 for any, or --http none for no HTTP door"}
	}
	if err != nil {
		return nil, fmt.Errorf("http door: %w", err)
	}
	return l, nil
}

// openHTTP makes the HTTP door, where there is to be one, and the token of the daemon's own user.
func (d *daemon) openHTTP(ctx context.Context, state string) (err error) {
	if d.tokens, err = token.Open(ctx, d.store, d.backed); err != nil {
		return err
	}
	if d.webListen == nil {
		return nil
	}
	file := filepath.Join(state, tokenFile)
	if err := ownToken(ctx, d.tokens, file); err != nil {
		return fmt.Errorf("%s: %w", tokenFile, err)
	}
	shape := httpd.E2B{Templates: templates(d.config.E2B.Templates)}
	if shape.Secret, err = lastingSecret(filepath.Join(state, e2bSecretFile)); err != nil {
		return fmt.Errorf("%s: %w", e2bSecretFile, err)
	}
	runs := d.config.AgentRunOptions()
	runs.Dir = filepath.Join(state, "artifacts")
	d.mcp = d.newMCP()
	if d.web, err = httpd.New(httpd.Options{Hub: d.hub, MCP: d.mcp, Tokens: d.tokens, Hosts: d.config.HTTPHosts,
		AgentRun: runs, Python: d.python.Options, Prefix: d.config.PrefixKey, E2B: shape, Version: build.Version, Log: d.log}); err != nil {
		return err
	}
	url := "http://" + d.webListen.Addr().String()
	d.address.HTTP, d.address.TokenFile = &url, &file
	if addr, ok := d.webListen.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		d.log.Warn("the HTTP door answers other machines, without TLS: tokens and terminals can be read on the way", "address", url)
	}
	return nil
}

// backed says why a token is no longer good. One of the daemon's own user that no key made, as that
// of the file api_token, is: who can read the state directory needs no key.
func (d *daemon) backed(t token.Token) error {
	if t.Line == "" && t.Principal == owner() {
		return nil
	}
	return d.keys.Backs(t.AsPrincipal())
}

// lastingSecret is what a file has, made first if there is none: 32 random bytes.
func lastingSecret(file string) ([]byte, error) {
	secret, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		secret = make([]byte, 32)
		rand.Read(secret) // never fails (crypto/rand)
		err = writeDurably(file, secret, 0o600)
	}
	if err == nil && len(secret) != 32 {
		err = errors.New("it has not 32 bytes; remove it, and sandboxes have other access tokens")
	}
	return secret, err
}

// interpreterTemplate is the template that the SDKs of E2B's code interpreter ask for.
const interpreterTemplate = "code-interpreter-v1"

// templates are images by the names that E2B's clients have for them.
func templates(configured map[string]string) map[string]string {
	all := maps.Clone(configured)
	if all == nil {
		all = make(map[string]string)
	}
	// That of the code interpreter's SDKs, which ask for no other.
	if all[interpreterTemplate] == "" {
		all[interpreterTemplate] = images.Python
	}
	return all
}

// ownToken makes sure that the file has a secret that is let in: the one that it has, or a new one where it was revoked or lost.
func ownToken(ctx context.Context, tokens *token.Registry, file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if t, _, err := tokens.Verify(string(bytes.TrimSpace(text))); err == nil && t.Principal == owner() {
		return os.Chmod(file, 0o600)
	}
	secret, _, err := tokens.Create(ctx, token.Token{Principal: owner(), Label: tokenFile})
	if err != nil {
		return err
	}
	return writeDurably(file, []byte(secret+"\n"), 0o600)
}
