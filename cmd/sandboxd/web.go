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
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// tokenFile is the file in the state directory with the admin's token for the HTTP API.
const tokenFile = "api_token"

// e2bSecretFile is the file in the state directory with the secret that signs access tokens of the
// E2B-compatible API.
const e2bSecretFile = "e2b_secret"

// listenHTTP listens for the HTTP API, or returns nil if it is disabled. If the address is the
// default one, it uses the next free port.
func listenHTTP(ctx context.Context, c *config.Loaded) (net.Listener, error) {
	addr := c.HTTP
	if addr == config.NoHTTP {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	for range 100 { // daemons that start at the same time look for the same port
		if c.IsSet("http") || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		free, _ := freeAddress(ctx, addr)
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", free)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "http: address " + addr +
			" is in use",
			Hint: "use another with --http, --http 127.0.0.1:0 for any port, or --http none to " +
				"disable the HTTP API"}
	}
	if err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	return l, nil
}

// openHTTP creates the server of the HTTP API, if it is enabled, and the admin's token.
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
	if d.web, err = httpd.New(httpd.Options{Hub: d.hub, MCP: d.mcp, Tokens: d.tokens,
		Hosts:    d.config.HTTPHosts,
		AgentRun: runs, Python: d.python.Options, Prefix: d.config.PrefixKey, E2B: shape,
		Version: build.Version, Log: d.log}); err != nil {
		return err
	}
	url := "http://" + d.webListen.Addr().String()
	d.address.HTTP, d.address.TokenFile = &url, &file
	if addr, ok := d.webListen.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		d.log.Warn(
			"HTTP API is reachable from other machines without TLS: others on the network can "+
				"read tokens and terminals", "address", url)
	}
	return nil
}

// backed returns why a token is no longer valid, or nil. An admin's token without a key, such as
// that of the file api_token, is always valid: a user who can read the state directory needs no
// key.
func (d *daemon) backed(t token.Token) error {
	p := t.AsPrincipal()
	if maker, link := gateway.LinkOf(p.Name); link {
		p.Name = maker // a link is as good as the key that made it
	}
	if p.Line == "" && p.Name == owner() {
		return nil
	}
	return d.keys.Backs(p)
}

// lastingSecret returns the 32 random bytes in a file. It creates a missing file.
func lastingSecret(file string) ([]byte, error) {
	secret, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		secret = make([]byte, 32)
		rand.Read(secret) // never fails (crypto/rand)
		err = writeDurably(file, secret, 0o600)
	}
	if err == nil && len(secret) != 32 {
		err = errors.New(
			"must have 32 bytes; remove the file to create a new secret, which invalidates " +
				"access tokens")
	}
	return secret, err
}

// interpreterTemplate is the template that the SDKs of E2B's code interpreter request.
const interpreterTemplate = "code-interpreter-v1"

// templates returns images by the template names that E2B's clients use.
func templates(configured map[string]string) map[string]string {
	all := maps.Clone(configured)
	if all == nil {
		all = make(map[string]string)
	}
	// The SDKs of the code interpreter request no other template.
	if all[interpreterTemplate] == "" {
		all[interpreterTemplate] = images.Python
	}
	return all
}

// ownToken makes sure that the file has a valid token of the admin. It creates a new one if the
// token is missing or revoked.
func ownToken(ctx context.Context, tokens *token.Registry, file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if t, _, err := tokens.Verify(string(bytes.TrimSpace(text))); err == nil &&
		t.Principal == owner() {
		return os.Chmod(file, 0o600)
	}
	secret, _, err := tokens.Create(ctx, token.Token{Principal: owner(), Label: tokenFile})
	if err != nil {
		return err
	}
	return writeDurably(file, []byte(secret+"\n"), 0o600)
}
