// Package cluster is a client of a Kubernetes API server, on net/http and a WebSocket library: the
// requests, watches and streams that sandboxes need. It knows no sandboxes.
//
// The names of fields and their meaning are those of https://kubernetes.io/docs/reference/.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Client makes requests to one API server. Its methods may be called concurrently.
type Client struct {
	// Namespace is that of the configuration.
	Namespace string

	base *url.URL
	http *http.Client
	auth *auth
}

// New returns a client for a configuration. It does not connect.
func New(c Config) (*Client, error) {
	base, err := url.Parse(c.Server)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("server %q is not an https URL", c.Server)
	}
	a := newAuth(c)
	transport, err := newTransport(c, a)
	if err != nil {
		return nil, err
	}
	return &Client{Namespace: c.Namespace, base: base, auth: a,
		http: &http.Client{Transport: authorized{transport, a},
			// An API server redirects nobody; a redirect would send the token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			}}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status is a refusal of the API server. Its texts are safe to display.
type Status struct {
	Code    int    // HTTP status
	Reason  string // such as NotFound, AlreadyExists, Forbidden, Expired
	Message string
	// RetryAfter is how long to wait before a retry; zero if the server does not say.
	RetryAfter time.Duration
}

func (s *Status) Error() string {
	if s.Message == "" {
		return fmt.Sprintf("status %d %s", s.Code, s.Reason)
	}
	return s.Message
}

// Is reports whether target is a *Status with the same reason.
func (s *Status) Is(target error) bool {
	t, ok := target.(*Status)
	return ok && t.Reason == s.Reason
}

// Refusals that callers branch on.
var (
	ErrNotFound      = &Status{Reason: "NotFound"}
	ErrAlreadyExists = &Status{Reason: "AlreadyExists"}
	ErrForbidden     = &Status{Reason: "Forbidden"}
	ErrUnauthorized  = &Status{Reason: "Unauthorized"}
	ErrConflict      = &Status{Reason: "Conflict"}
	ErrExpired       = &Status{Reason: "Expired"} // of a resource version
)

// ErrUnreachable is the error of a server that does not answer.
var ErrUnreachable = errors.New("the API server does not answer")

// Request is one request.
type Request struct {
	Method string // empty means GET
	Path   string // such as that of Client.Path
	Query  url.Values
	// Type is the media type of Body; empty means application/json.
	Type string
	Body any // sent as JSON; nil sends none
}

// Path returns the path of a resource in the namespace of c, such as pods, or of one object, or of
// something below it, such as pods/NAME/exec.
func (c *Client) Path(resource string, more ...string) string {
	return path.Join(append([]string{"/api/v1/namespaces", c.Namespace, resource}, more...)...)
}

const (
	maxAnswer = 64 << 20 // bytes of one answer
	maxStatus = 64 << 10 // bytes of a refusal
)

// Do makes a request and decodes the answer into out, which may be nil. A refusal is a *Status. A
// request that the server rejects because it is busy is repeated until ctx ends: it had no effect.
func (c *Client) Do(ctx context.Context, r Request, out any) error {
	for {
		err := c.once(ctx, r, out)
		s, ok := errors.AsType[*Status](err)
		if !ok || s.Code != http.StatusTooManyRequests {
			return err
		}
		select {
		case <-time.After(max(s.RetryAfter, 100*time.Millisecond)):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func (c *Client) once(ctx context.Context, r Request, out any) error {
	res, err := c.open(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	} else {
		err = json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("answer to %s %s: %w", r.Method, r.Path, err)
	}
	return nil
}

// open makes a request and returns the answer, whose body the caller closes.
func (c *Client) open(ctx context.Context, r Request) (*http.Response, error) {
	var body io.Reader
	if r.Body != nil {
		data, err := json.Marshal(r.Body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, c.url(r.Path, r.Query), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "sandboxd")
	if r.Body != nil {
		if r.Type == "" {
			r.Type = "application/json"
		}
		req.Header.Set("Content-Type", r.Type)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.As(err, new(*credentialError)) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, statusOf(res)
	}
	return res, nil
}

// url returns the URL of a path.
func (c *Client) url(p string, query url.Values) string {
	u := *c.base
	u.Path = path.Join(u.Path, p)
	u.RawQuery = query.Encode()
	return u.String()
}

// statusOf reads a refusal.
func statusOf(res *http.Response) *Status {
	s := &Status{Code: res.StatusCode}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxStatus))
	var said struct{ Kind, Reason, Message string }
	if json.Unmarshal(body, &said) == nil && said.Kind == "Status" {
		s.Reason, s.Message = Printable(said.Reason), Printable(said.Message)
	} else { // of a proxy, or of an old server
		s.Message = fmt.Sprintf("status %s: %s", res.Status, Printable(string(body)))
	}
	if s.Reason == "" {
		s.Reason = map[int]string{http.StatusNotFound: ErrNotFound.Reason,
			http.StatusForbidden: ErrForbidden.Reason, http.StatusGone: ErrExpired.Reason,
			http.StatusUnauthorized: ErrUnauthorized.Reason}[res.StatusCode]
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		s.RetryAfter = min(time.Duration(seconds)*time.Second, time.Minute)
	}
	return s
}

// maxText bounds the texts of a server in errors, in characters.
const maxText = 1000

// Printable returns text of a server or a file as one bounded line that a terminal may show.
func Printable(s string) string { return strings.TrimSpace(text.Line(s, maxText)) }
