package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/httpd"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// tokenFile holds, in the state directory, the secret of the daemon's own user for the HTTP door.
const tokenFile = "api_token"

// isAddressOrNone accepts an address to listen on, or that there is to be none.
func isAddressOrNone(s string) error {
	if s == noHTTP {
		return nil
	}
	return isAddress(s)
}

// listenHTTP listens for the HTTP door, or returns nil where there is to be none. Where nobody chose the address, the next free port
// will do.
func listenHTTP(ctx context.Context, c config) (net.Listener, error) {
	addr := c.value("http")
	if addr == noHTTP {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	for range 100 { // daemons that start at once look for a port at once
		if c.find("http").from != "default" || !errors.Is(err, syscall.EADDRINUSE) {
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
	if d.tokens, err = token.Open(ctx, d.store); err != nil {
		return err
	}
	if d.webListen == nil {
		return nil
	}
	file := filepath.Join(state, tokenFile)
	if err := ownToken(ctx, d.tokens, file); err != nil {
		return fmt.Errorf("%s: %w", tokenFile, err)
	}
	if d.web, err = httpd.New(httpd.Options{Hub: d.hub, Tokens: d.tokens, Hosts: command.Words(d.config.value("http_hosts")),
		Chord: d.config.value("chord"), Version: version, Log: d.log}); err != nil {
		return err
	}
	url := "http://" + d.webListen.Addr().String()
	d.address.HTTP, d.address.TokenFile = &url, &file
	if addr, ok := d.webListen.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		d.log.Warn("the HTTP door answers other machines, without TLS: tokens and terminals can be read on the way", "address", url)
	}
	return nil
}

// ownToken makes sure that the file has a secret that is let in: the one that it has, or a new one where it was revoked or lost.
func ownToken(ctx context.Context, tokens *token.Registry, file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if t, _, ok := tokens.Verify(string(bytes.TrimSpace(text))); ok && t.Principal == owner() {
		return os.Chmod(file, 0o600)
	}
	secret, _, err := tokens.Create(ctx, token.Token{Principal: owner(), Label: tokenFile})
	if err != nil {
		return err
	}
	return writeDurably(file, []byte(secret+"\n"))
}
