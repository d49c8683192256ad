package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Endpoint is a server with OpenAI's Chat Completions API, and the model to use.
type Endpoint struct {
	// URL is the base URL, such as https://api.openai.com/v1. Requests go to URL/chat/completions.
	URL   string
	Key   string // bearer token; empty sends none
	Model string

	// Timeout bounds one reply, from the request to the last byte. 0 means DefaultTimeout. A reply
	// that pauses for a fifth of Timeout fails, too.
	Timeout time.Duration

	// Tries limits the attempts of a request after temporary errors. 0 means 4.
	Tries int

	// Pause waits for d between attempts, or until ctx ends. nil uses a timer.
	Pause func(ctx context.Context, d time.Duration) error
}

const (
	// DefaultTimeout is the default of Endpoint.Timeout.
	DefaultTimeout = 5 * time.Minute

	maxAnswer  = 8 << 20          // bytes of one HTTP response
	maxPause   = 60 * time.Second // between two attempts; a longer Retry-After ends the task
	firstPause = time.Second      // doubles with each attempt
)

// EndpointError is a failure of a model's server.
type EndpointError struct {
	Message string
	Hint    string // what to do

	status     int           // HTTP status; 0 if there is none
	passes     bool          // temporary: a retry may succeed
	retryAfter time.Duration // from the server; 0 if it sets none
}

func (e *EndpointError) Error() string { return e.Message }

// Check validates an Endpoint without a request. Its errors are *EndpointError.
func (e Endpoint) Check() error {
	u, err := url.Parse(e.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return &EndpointError{
			Message: fmt.Sprintf("the model's URL %q is not an http or https URL", e.URL),
			Hint:    "set it, such as OPENAI_BASE_URL=https://api.openai.com/v1",
		}
	case u.User != nil:
		return &EndpointError{
			Message: "the model's URL has a user name or password",
			Hint:    "set the key with OPENAI_API_KEY",
		}
	case strings.ContainsFunc(e.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return &EndpointError{
			Message: "the model's key has characters that a header cannot have",
			Hint:    "check OPENAI_API_KEY for a space or a line feed",
		}
	case e.Model == "":
		return &EndpointError{
			Message: "no model named",
			Hint: "set --model, OPENAI_MODEL or the key openai.model, and OPENAI_BASE_URL or " +
				"OPENAI_API_KEY for its server: sandboxd help task",
		}
	}
	return nil
}

// Plain reports whether the key and the messages would cross a network unencrypted.
func (e Endpoint) Plain() bool {
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

// chat sends requests to one model. It stops using features that its server rejects. It is not safe
// for concurrent use.
type chat struct {
	endpoint Endpoint
	client   *http.Client
	say      func(string) // receives notes on retries and missing features

	noTools, noStream, noUsage bool // the server rejected them
}

func newChat(e Endpoint, say func(string)) *chat {
	t := http.DefaultTransport.(*http.Transport).Clone()
	return &chat{endpoint: e, say: say, client: &http.Client{
		Transport: t,
		// Do not send the key to another address. A redirect may also change the POST to a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}
}

func (c *chat) close() { c.client.CloseIdleConnections() }

// request is the body of a request.
type request struct {
	Model         string          `json:"model"`
	Messages      []message       `json:"messages"`
	Tools         []toolSpec      `json:"tools,omitempty"`
	Stream        bool            `json:"stream,omitempty"`
	StreamOptions *map[string]any `json:"stream_options,omitempty"`
}

type message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	ToolCalls  []wireCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type wireCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type toolSpec struct {
	Type     string       `json:"type"`
	Function functionSpec `json:"function"`
}

type functionSpec struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Parameters  any    `json:"parameters"`
}

// ask returns the model's reply. words receives its text as it arrives. render returns the
// messages, with tools or without, because a server can reject tools during the call.
func (c *chat) ask(
	ctx context.Context,
	render func(tools bool) []message,
	tools []toolSpec,
	words func(string),
) (reply, error) {
	tries := c.endpoint.Tries
	if tries == 0 {
		tries = 4
	}
	pause := firstPause
	for try := 1; ; {
		r := request{Model: c.endpoint.Model, Messages: render(!c.noTools), Stream: !c.noStream}
		if !c.noTools {
			r.Tools = tools
		}
		if r.Stream && !c.noUsage {
			r.StreamOptions = &map[string]any{"include_usage": true}
		}
		answer, err := c.once(ctx, r, words)
		if err == nil {
			return answer, nil
		}
		var e *EndpointError
		if ctx.Err() != nil {
			return reply{}, context.Cause(ctx)
		}
		if !errors.As(err, &e) {
			return reply{}, err
		}
		if c.without(e) {
			continue
		}
		if !e.passes || try >= tries {
			if try > 1 {
				e.Message += fmt.Sprintf(" (tried %d times)", try)
			}
			return reply{}, e
		}
		wait := max(pause, e.retryAfter)
		if wait > maxPause {
			e.Message += fmt.Sprintf(
				"; it asks to wait %v, more than the limit of %v",
				e.retryAfter.Round(time.Second),
				maxPause,
			)
			return reply{}, e
		}
		c.say(fmt.Sprintf("%s; retrying in %v", e.Message, wait))
		if err := c.pause(ctx, wait); err != nil {
			return reply{}, err
		}
		pause *= 2
		try++
	}
}

func (c *chat) pause(ctx context.Context, d time.Duration) error {
	if c.endpoint.Pause != nil {
		return c.endpoint.Pause(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// without reports whether e rejects an optional feature, and stops using that feature.
func (c *chat) without(e *EndpointError) bool {
	said := strings.ToLower(e.Message)
	refuses := slices.Contains([]int{400, 404, 405, 415, 422, 501}, e.status)
	switch {
	case refuses && !c.noUsage && strings.Contains(said, "stream_options"):
		c.noUsage = true
		return true
	case refuses && !c.noStream && strings.Contains(strings.ReplaceAll(said, "upstream", ""),
		"stream"):
		c.noStream = true
		return true
	case (refuses || e.status == 500) && !c.noTools &&
		(strings.Contains(said, "tool") || strings.Contains(said, "function")):
		c.noTools = true
		c.say("the server does not support tools for this model: using commands as text")
		return true
	}
	return false
}

// once makes one request.
func (c *chat) once(ctx context.Context, r request, words func(string)) (reply, error) {
	timeout := c.endpoint.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	body, err := json.Marshal(r)
	if err != nil {
		return reply{}, fmt.Errorf("request: %w", err)
	}
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	whole := time.AfterFunc(timeout, func() {
		end(
			&EndpointError{
				Message: fmt.Sprintf("the model's server did not finish a reply in %v", timeout),
				Hint:    "raise the key openai.timeout",
				passes:  false,
			},
		)
	})
	defer whole.Stop()
	req, err := http.NewRequestWithContext(
		life,
		http.MethodPost,
		strings.TrimRight(c.endpoint.URL, "/")+"/chat/completions",
		bytes.NewReader(body),
	)
	if err != nil {
		return reply{}, &EndpointError{Message: "the model's URL: " + c.clean(err.Error())}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream, application/json")
	req.Header.Set("User-Agent", "sandboxd")
	if c.endpoint.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.endpoint.Key)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return reply{}, c.broken(life, "the model's server is unreachable", err)
	}
	defer res.Body.Close()
	idle := &watchdog{d: timeout / 5, bark: func() {
		end(
			&EndpointError{
				Message: fmt.Sprintf(
					"the model's server paused for %v in the middle of a reply",
					timeout/5,
				),
				passes: true,
			},
		)
	}}
	defer idle.stop()
	in := &bounded{from: res.Body, left: maxAnswer, saw: idle.reset}
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(in, 64<<10)) // as far as it can be read
		if ctx.Err() != nil {
			return reply{}, context.Cause(ctx)
		}
		return reply{}, c.refused(res, said)
	}
	answer, err := readReply(in, words)
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, errTooLong):
		return reply{}, &EndpointError{
			Message: fmt.Sprintf("the model's reply is longer than %d MiB", maxAnswer>>20),
			Hint:    "use another model, or split the task",
		}
	}
	var e *EndpointError
	if errors.As(err, &e) && life.Err() == nil {
		e.Message = c.clean(e.Message)
		return reply{}, e
	}
	return reply{}, c.broken(life, "the model's reply broke off", err)
}

// broken returns the error of a connection, or the cause if life ended it.
func (c *chat) broken(life context.Context, what string, err error) error {
	if cause := context.Cause(life); cause != nil {
		return cause
	}
	said := err.Error()
	var u *url.Error
	if errors.As(err, &u) {
		said = u.Err.Error()
	}
	return &EndpointError{
		Message: c.clean(what + ": " + said),
		Hint:    "check OPENAI_BASE_URL (" + c.clean(c.endpoint.URL) + "), and run sandboxd doctor",
		passes:  true,
	}
}

// refused returns the error of a response with a status other than 200.
func (c *chat) refused(res *http.Response, body []byte) error {
	said := strings.TrimSpace(string(body))
	var known struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &known) == nil && len(known.Error) > 0 {
		said = errorText(known.Error)
	}
	e := &EndpointError{
		status:  res.StatusCode,
		Message: c.clean(fmt.Sprintf("the model's server returned %s: %s", res.Status, said)),
	}
	switch s := res.StatusCode; {
	case s == 401 || s == 403:
		e.Hint = "check OPENAI_API_KEY or the key openai.api_key"
	case s == 404:
		e.Hint = "check OPENAI_BASE_URL (it usually ends with /v1) and the name of the model"
	case s >= 300 && s < 400:
		e.Message = c.clean(
			fmt.Sprintf(
				"the model's server returned %s, a redirect to %s",
				res.Status,
				res.Header.Get("Location"),
			),
		)
		e.Hint = "set OPENAI_BASE_URL to the right URL"
	case s == 408, s == 409, s == 425, s == 429, s >= 500 && s != 501:
		e.passes = true
		e.retryAfter = retryAfter(res.Header, time.Now())
		if s == 429 && strings.Contains(said, "insufficient_quota") {
			e.passes, e.Hint = false, "the account has no quota left"
		}
	}
	return e
}

// retryAfter parses the header Retry-After (RFC 9110, section 10.2.3).
func retryAfter(h http.Header, now time.Time) time.Duration {
	said := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(said, 64); err == nil && s > 0 {
		return time.Duration(min(s, 1e6) * float64(time.Second))
	}
	if at, err := http.ParseTime(said); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// clean returns text of a server without control characters and without the key, which some servers
// repeat.
func (c *chat) clean(s string) string { return text.Line(redact(s, c.endpoint.Key), 600) }

// redact replaces key in s.
func redact(s, key string) string {
	if len(key) < 6 { // too short to be a key: it could be any word
		return s
	}
	return strings.ReplaceAll(s, key, "[key]")
}

var errTooLong = errors.New("the reply is too long")

// bounded reads at most left bytes, and calls saw when bytes arrive.
type bounded struct {
	from io.Reader
	left int
	saw  func()
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.from.Read(p[:min(len(p), b.left)])
	b.left -= n
	if n > 0 {
		b.saw()
	}
	return n, err
}

// watchdog calls bark when no reset follows a reset within d. It does nothing before the first
// reset, because a model may think long before its first word. It is not safe for concurrent use.
type watchdog struct {
	d     time.Duration
	bark  func()
	timer *time.Timer // nil before the first reset
}

func (w *watchdog) reset() {
	if w.timer == nil {
		w.timer = time.AfterFunc(w.d, w.bark)
		return
	}
	w.timer.Reset(w.d)
}

func (w *watchdog) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Probe checks that a server responds, by its list of models, and returns a sentence on the result.
// A server without such a list is not an error.
func (e Endpoint) Probe(ctx context.Context) (string, error) {
	if e.Model == "" {
		e.Model = "-" // the list needs no model
	}
	if err := e.Check(); err != nil {
		return "", err
	}
	c := newChat(e, func(string) {})
	defer c.close()
	req, err := http.NewRequestWithContext(
		ctx,
		http.MethodGet,
		strings.TrimRight(e.URL, "/")+"/models",
		nil,
	)
	if err != nil {
		return "", err
	}
	if e.Key != "" {
		req.Header.Set("Authorization", "Bearer "+e.Key)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return "", c.broken(ctx, "the model's server is unreachable", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return "", c.broken(ctx, "the model's server closed the connection", err)
	}
	where := c.clean(e.URL)
	switch {
	case res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed:
		return where + " responds, but has no list of models", nil
	case res.StatusCode != http.StatusOK:
		return "", c.refused(res, body)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil || len(list.Data) == 0 || e.Model == "-" {
		return where + " responds", nil
	}
	for _, m := range list.Data {
		if m.ID == e.Model {
			return fmt.Sprintf("%s has %s", where, text.Line(e.Model, 100)), nil
		}
	}
	return "", &EndpointError{
		Message: fmt.Sprintf(
			"%s lists %d models, but not %s",
			where,
			len(list.Data),
			text.Line(e.Model, 100),
		),
		Hint: "set OPENAI_MODEL or the key openai.model to a listed model",
	}
}
