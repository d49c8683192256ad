package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/docker/cli/cli/connhelper"
	"github.com/docker/go-connections/tlsconfig"
	"github.com/moby/moby/client"
)

// NewClient returns a client of an engine: unix:///PATH, ssh://[USER@]HOST[:PORT], which runs ssh
// with the user's configuration as docker does, or tcp://HOST:PORT. TCP to another machine needs
// TLS: DOCKER_CERT_PATH names a directory with ca.pem, cert.pem and key.pem.
func NewClient(host string) (*client.Client, error) {
	c, err := newClient(host)
	if err != nil {
		return nil, fmt.Errorf("docker: engine %q: %w", host, err)
	}
	return c, nil
}

// IsRemote reports whether the engine at host shares no files with this machine, or not its kernel.
// dir is a directory of this machine in which it may make a file; empty means that of temporary
// files.
func IsRemote(ctx context.Context, host, dir string) (bool, error) {
	e, err := newEngine(host, dir, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
	defer func() { _ = e.close() }()
	f, err := e.facts(ctx)
	return f.remote, errors.Join(err, f.odd)
}

func newClient(host string) (*client.Client, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("not a URL like %s", DefaultHost)
	}
	options := []client.Opt{client.WithHost(host), client.WithUserAgent("sandboxd")}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, errors.New("not an absolute path of a socket")
		}
	case "ssh":
		// Nobody can answer a question of ssh, and a machine that is gone must be noticed.
		helper, err := connhelper.GetConnectionHelperWithSSHOpts(host, []string{
			"-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"})
		if err != nil {
			return nil, err
		}
		options[0] = client.WithHost(helper.Host)
		options = append(options, client.WithDialContext(helper.Dialer))
	case "tcp":
		certs := os.Getenv(client.EnvOverrideCertPath)
		ip := net.ParseIP(u.Hostname())
		if certs != "" {
			config, err := tlsconfig.Client(tlsconfig.Options{
				CAFile: filepath.Join(certs, "ca.pem"), CertFile: filepath.Join(certs, "cert.pem"),
				KeyFile: filepath.Join(certs, "key.pem"), ExclusiveRootPools: true})
			if err != nil {
				return nil, err
			}
			// The client's own TLS takes no context when it upgrades a connection.
			options[0] = client.WithHost("http://" + u.Host)
			dialer := &tls.Dialer{Config: config}
			options = append(options, client.WithDialContext(
				func(ctx context.Context, _, _ string) (net.Conn, error) {
					return dialer.DialContext(ctx, "tcp", u.Host)
				}))
		} else if u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, errors.New("the network could read and change what is sent: use ssh://HOST, " +
				"or set DOCKER_CERT_PATH for TLS")
		}
	default:
		return nil, fmt.Errorf("not unix:///PATH, ssh://HOST or tcp://HOST:PORT; unset DOCKER_HOST or "+
			"set it to %s", DefaultHost)
	}
	return client.New(options...)
}
