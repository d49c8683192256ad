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

// Endpoint is a server that speaks OpenAI's Chat Completions, and the model that it shall ask.
type Endpoint struct {
	URL   string // as OPENAI_BASE_URL: https://api.openai.com/v1; "/chat/completions" is put behind it
	Key   string // for Authorization; empty sends none
	Model string

	// Timeout bounds one answer from the request to its last byte; 0 is DefaultTimeout. An answer that has begun and goes silent for a
	// fifth of it is given up, too.
	Timeout time.Duration

	// Tries is how often a request is made that failed in a way that may pass; 0 is 4.
	Tries int

	// Pause waits between tries until ctx ends or d is over; nil does it by the clock.
	Pause func(ctx context.Context, d time.Duration) error
}

const (
	// DefaultTimeout is the time for one answer.
	DefaultTimeout = 5 * time.Minute

	maxAnswer  = 8 << 20          // bytes of one answer, with everything around it
	maxPause   = 60 * time.Second // between two tries; who asks for more has ended the task
	firstPause = time.Second      // doubled from try to try
)

// EndpointError says what is wrong with a model's server or what it answered.
type EndpointError struct {
	Message string
	Hint    string // what to do

	status     int           // of HTTP; 0 without one
	passes     bool          // it may be over when asked again
	retryAfter time.Duration // what the server asks for; 0 where it does not
}

func (e *EndpointError) Error() string { return e.Message }

// Check reports what is wrong with an Endpoint before anybody is asked.
func (e Endpoint) Check() error {
	u, err := url.Parse(e.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return &EndpointError{Message: fmt.Sprintf("the model's address %q is no http or https URL", e.URL), Hint: "such as OPENAI_BASE_URL=https://api.openai.com/v1"}
	case u.User != nil:
		return &EndpointError{Message: "the model's address has a password in it", Hint: "put the key into OPENAI_API_KEY"}
	case strings.ContainsFunc(e.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return &EndpointError{Message: "the model's key has characters that no header can have", Hint: "look for a space or a line feed in OPENAI_API_KEY"}
	case e.Model == "":
		return &EndpointError{Message: "no model named", Hint: "say --model, OPENAI_MODEL or the key openai.model, and OPENAI_BASE_URL or OPENAI_API_KEY for its server: sandboxd help task"}
	}
	return nil
}

// Plain reports whether the key and what is said would travel without encryption over a network.
func (e Endpoint) Plain() bool {
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

// chat asks one model. It finds out what its server does not have, and goes on without. One call at a time.
type chat struct {
	endpoint Endpoint
	client   *http.Client
	say      func(string) // told of what is done about trouble

	noTools, noStream, noUsage bool // the server refused them
}

func newChat(e Endpoint, say func(string)) *chat {
	t := http.DefaultTransport.(*http.Transport).Clone()
	return &chat{endpoint: e, say: say, client: &http.Client{
		Transport: t,
		// The key goes to no other address, and what a POST becomes on the way is anybody's guess.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
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

// ask returns the model's answer. words gets its text as it comes. render makes the messages, with tools or without: which the server
// has may turn out on the way.
func (c *chat) ask(ctx context.Context, render func(tools bool) []message, tools []toolSpec, words func(string)) (reply, error) {
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
			e.Message += fmt.Sprintf("; it asks to wait %v, more than the %v that a task waits", e.retryAfter.Round(time.Second), maxPause)
			return reply{}, e
		}
		c.say(fmt.Sprintf("%s; asking again in %v", e.Message, wait))
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

// without reports whether e refuses something that can be left out, and leaves it out from now on.
func (c *chat) without(e *EndpointError) bool {
	said := strings.ToLower(e.Message)
	refuses := slices.Contains([]int{400, 404, 405, 415, 422, 501}, e.status)
	switch {
	case refuses && !c.noUsage && strings.Contains(said, "stream_options"):
		c.noUsage = true
		return true
	case refuses && !c.noStream && strings.Contains(strings.ReplaceAll(said, "upstream", ""), "stream"):
		c.noStream = true
		return true
	case (refuses || e.status == 500) && !c.noTools && (strings.Contains(said, "tool") || strings.Contains(said, "function")):
		c.noTools = true
		c.say("the server has no tools for this model: asking for commands as text")
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
		end(&EndpointError{Message: fmt.Sprintf("the model's server did not finish an answer in %v", timeout), Hint: "give it more time: the key openai.timeout", passes: false})
	})
	defer whole.Stop()
	req, err := http.NewRequestWithContext(life, http.MethodPost, strings.TrimRight(c.endpoint.URL, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return reply{}, &EndpointError{Message: "the model's address: " + c.clean(err.Error())}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream, application/json")
	req.Header.Set("User-Agent", "sandboxd")
	if c.endpoint.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.endpoint.Key)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return reply{}, c.broken(life, "the model's server cannot be asked", err)
	}
	defer res.Body.Close()
	idle := &watchdog{d: timeout / 5, bark: func() {
		end(&EndpointError{Message: fmt.Sprintf("the model's server sent nothing for %v in the middle of an answer", timeout/5), passes: true})
	}}
	defer idle.stop()
	in := &bounded{from: res.Body, left: maxAnswer, saw: idle.reset}
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(in, 64<<10)) // what there is of it
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
		return reply{}, &EndpointError{Message: fmt.Sprintf("the model's answer is longer than %d MiB", maxAnswer>>20), Hint: "another model, or another task"}
	}
	var e *EndpointError
	if errors.As(err, &e) && life.Err() == nil {
		e.Message = c.clean(e.Message)
		return reply{}, e
	}
	return reply{}, c.broken(life, "the model's answer broke off", err)
}

// broken is the error of a connection: what ended it, if that was us.
func (c *chat) broken(life context.Context, what string, err error) error {
	if cause := context.Cause(life); cause != nil {
		return cause
	}
	said := err.Error()
	var u *url.Error
	if errors.As(err, &u) {
		said = u.Err.Error()
	}
	return &EndpointError{Message: c.clean(what + ": " + said), Hint: "look at OPENAI_BASE_URL (" + c.clean(c.endpoint.URL) + "), and at sandboxd doctor", passes: true}
}

// refused is an answer with another status than 200.
func (c *chat) refused(res *http.Response, body []byte) error {
	said := strings.TrimSpace(string(body))
	var known struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &known) == nil && len(known.Error) > 0 {
		said = errorText(known.Error)
	}
	e := &EndpointError{status: res.StatusCode, Message: c.clean(fmt.Sprintf("the model's server answers %s: %s", res.Status, said))}
	switch s := res.StatusCode; {
	case s == 401 || s == 403:
		e.Hint = "look at OPENAI_API_KEY, or the key openai.api_key"
	case s == 404:
		e.Hint = "look at OPENAI_BASE_URL (which ends with /v1 mostly) and the model's name"
	case s >= 300 && s < 400:
		e.Message = c.clean(fmt.Sprintf("the model's server answers %s, and says to go to %s", res.Status, res.Header.Get("Location")))
		e.Hint = "put the address that is right into OPENAI_BASE_URL"
	case s == 408, s == 409, s == 425, s == 429, s >= 500 && s != 501:
		e.passes = true
		e.retryAfter = retryAfter(res.Header, time.Now())
		if s == 429 && strings.Contains(said, "insufficient_quota") {
			e.passes, e.Hint = false, "the account has nothing left"
		}
	}
	return e
}

// retryAfter reads what a server asks for (RFC 9110, section 10.2.3).
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

// clean is text of a server as it may be told and kept: without the key, which some repeat.
func (c *chat) clean(s string) string { return text.Line(redact(s, c.endpoint.Key), 600) }

// redact takes a key out of s.
func redact(s, key string) string {
	if len(key) < 6 { // no key; a word of every second sentence
		return s
	}
	return strings.ReplaceAll(s, key, "[key]")
}

var errTooLong = errors.New("the answer is too long")

// bounded reads at most so many bytes, and says when some came.
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

// watchdog calls a function when reset was called, and not again for so long. Before that it has patience: a model may think long before
// its first word. Its methods are not called at once.
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

// Probe asks a server which models it has, without asking a model, and says what was found. A server that has no such list is found, too.
func (e Endpoint) Probe(ctx context.Context) (string, error) {
	if e.Model == "" {
		e.Model = "-" // none is asked
	}
	if err := e.Check(); err != nil {
		return "", err
	}
	c := newChat(e, func(string) {})
	defer c.close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(e.URL, "/")+"/models", nil)
	if err != nil {
		return "", err
	}
	if e.Key != "" {
		req.Header.Set("Authorization", "Bearer "+e.Key)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return "", c.broken(ctx, "the model's server cannot be asked", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return "", c.broken(ctx, "the model's server broke off", err)
	}
	where := c.clean(e.URL)
	switch {
	case res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed:
		return where + " answers, and lists no models", nil
	case res.StatusCode != http.StatusOK:
		return "", c.refused(res, body)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil || len(list.Data) == 0 || e.Model == "-" {
		return where + " answers", nil
	}
	for _, m := range list.Data {
		if m.ID == e.Model {
			return fmt.Sprintf("%s has %s", where, text.Line(e.Model, 100)), nil
		}
	}
	return "", &EndpointError{Message: fmt.Sprintf("%s lists %d models, and no %s", where, len(list.Data), text.Line(e.Model, 100)), Hint: "name one that it has: OPENAI_MODEL, or the key openai.model"}
}
