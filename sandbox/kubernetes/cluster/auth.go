package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// read returns the content of a file, or decoded data of a kubeconfig file, which comes first.
func (k kubeconfig) read(path, data string) ([]byte, error) {
	switch {
	case data != "":
		return base64.StdEncoding.DecodeString(data)
	case path != "":
		return os.ReadFile(k.path(path))
	}
	return nil, nil
}

// newTransport returns the transport of a client, without a login by token.
func newTransport(c Config, a *auth) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	// Each stream is a connection of its own: HTTP/1.1 upgrades it.
	t.ForceAttemptHTTP2 = false
	t.TLSNextProto = make(map[string]func(string, *tls.Conn) http.RoundTripper)
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName,
		GetClientCertificate: a.clientCertificate}
	if len(c.CA) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("certificate-authority has no certificate in PEM")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if c.Proxy != "" {
		u, err := url.Parse(c.Proxy)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("proxy-url %q is not a URL", c.Proxy)
		}
		t.Proxy = http.ProxyURL(u)
	}
	if len(c.Certificate) > 0 || len(c.Key) > 0 {
		pair, err := tls.X509KeyPair(c.Certificate, c.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		a.fixed = &pair
	}
	return t, nil
}

// authorized adds the login to requests. A request that the server answers with 401 is made once
// more with new credentials.
type authorized struct {
	next *http.Transport
	auth *auth
}

func (t authorized) CloseIdleConnections() { t.next.CloseIdleConnections() }

func (t authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	res, used, err := t.try(req)
	if err != nil || res.StatusCode != http.StatusUnauthorized || !t.auth.renew(used) ||
		req.Body != nil && req.GetBody == nil {
		return res, err
	}
	again := req.Clone(req.Context())
	if req.Body != nil {
		if again.Body, err = req.GetBody(); err != nil {
			return res, nil //nolint:nilerr // the first answer stands
		}
	}
	res.Body.Close()
	t.next.CloseIdleConnections() // a client certificate belongs to a connection
	res, _, err = t.try(again)
	return res, err
}

func (t authorized) try(req *http.Request) (*http.Response, *credential, error) {
	c, err := t.auth.credential(req.Context())
	if err != nil {
		return nil, nil, err
	}
	req = req.Clone(req.Context())
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if t.auth.config.As != "" {
		req.Header.Set("Impersonate-User", t.auth.config.As)
	}
	res, err := t.next.RoundTrip(req)
	return res, c, err
}

// credential is what a request logs in with. It does not change.
type credential struct {
	token       string
	certificate *tls.Certificate // of an exec plugin; nil without
	expires     time.Time        // zero means never
}

// auth keeps the current credential.
type auth struct {
	config Config
	fixed  *tls.Certificate // of the configuration; nil without

	mu   sync.Mutex
	last *credential // guarded by mu; nil before the first, and after a refusal
}

func newAuth(c Config) *auth { return &auth{config: c} }

// tokenAge is how long a token of a file is used: kubelets replace the file long before its token
// expires.
const tokenAge = time.Minute

// credential returns the current credential, and gets a new one if there is none or it expires.
func (a *auth) credential(ctx context.Context) (*credential, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil && (a.last.expires.IsZero() || time.Until(a.last.expires) > 10*time.Second) {
		return a.last, nil
	}
	c := &credential{token: a.config.Token}
	var err error
	switch {
	case a.config.Exec != nil:
		c, err = a.config.Exec.run(ctx)
	case a.config.TokenFile != "":
		var text []byte
		text, err = os.ReadFile(a.config.TokenFile)
		c.token, c.expires = strings.TrimSpace(string(text)), time.Now().Add(tokenAge)
	}
	if err != nil {
		return nil, &credentialError{err}
	}
	a.last = c
	return c, nil
}

// renew reports whether another credential than used can be had, after the server has refused used.
func (a *auth) renew(used *credential) bool {
	if a.config.Exec == nil && a.config.TokenFile == "" {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == used {
		a.last = nil
	}
	return true
}

// clientCertificate implements tls.Config.GetClientCertificate.
func (a *auth) clientCertificate(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if a.fixed != nil {
		return a.fixed, nil
	}
	c, err := a.credential(r.Context())
	if err == nil && c.certificate != nil {
		return c.certificate, nil
	}
	return new(tls.Certificate), err
}

// credentialError is an error of getting credentials: nothing was sent.
type credentialError struct{ error }

func (e *credentialError) Unwrap() error { return e.error }

// execWithin bounds how long a plugin runs.
const execWithin = 30 * time.Second

// run runs the plugin.
func (e *Exec) run(ctx context.Context) (*credential, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, execWithin,
		fmt.Errorf("it does not end within %v", execWithin))
	defer cancel()
	command := e.Command
	if strings.Contains(command, "/") && !filepath.IsAbs(command) {
		command = filepath.Join(e.Dir, command)
	}
	cmd := exec.CommandContext(ctx, command, e.Args...)
	cmd.Env = append(append(os.Environ(), e.Env...), `KUBERNETES_EXEC_INFO={"kind":"ExecCredential",`+
		`"apiVersion":"`+e.Version+`","spec":{"interactive":false}}`)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	failed := func(err error) (*credential, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		text := "exec plugin " + Printable(e.Command)
		if said := strings.TrimSpace(Printable(errs.String())); said != "" {
			text += ": " + said
		}
		if errors.Is(err, exec.ErrNotFound) && e.Hint != "" {
			text += ": " + e.Hint
		}
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	if err := cmd.Run(); err != nil {
		return failed(err)
	}
	var got struct {
		Status *struct {
			Token       string
			Certificate string    `json:"clientCertificateData"`
			Key         string    `json:"clientKeyData"`
			Expires     time.Time `json:"expirationTimestamp"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Status == nil {
		return failed(errors.New("it printed no ExecCredential")) // without its text: a token
	}
	c := &credential{token: got.Status.Token, expires: got.Status.Expires}
	if got.Status.Certificate != "" {
		pair, err := tls.X509KeyPair([]byte(got.Status.Certificate), []byte(got.Status.Key))
		if err != nil {
			return failed(fmt.Errorf("client certificate: %w", err))
		}
		c.certificate = &pair
	}
	return c, nil
}
