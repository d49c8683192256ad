package secret

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
)

// maxKept is how much of a request's body is kept to send it again.
const maxKept = 1 << 20

// retrying sends requests. If the server rejects a value that a command printed, the command runs
// again, and the request is sent once more with the new value. Clients of APIs often end at a 401.
type retrying struct {
	transport http.RoundTripper
	bound     Bound
}

// RoundTrip sends a request once or twice. It sends one whose body is longer than maxKept, or was
// not sent to its end, only once.
func (t retrying) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.bound.entry.runner == nil {
		return t.transport.RoundTrip(r)
	}
	body := &keptBody{from: r.Body, whole: r.Body == nil || r.Body == http.NoBody}
	first := r.Clone(r.Context())
	if !body.whole {
		first.Body = body
	}
	answer, err := t.transport.RoundTrip(first)
	if err != nil || answer.StatusCode != http.StatusUnauthorized {
		return answer, err
	}
	t.bound.rejected()
	kept, ok := body.bytes()
	name, text, err := t.bound.header(r.Context())
	if !ok || err != nil || text == r.Header.Get(name) {
		return answer, nil //nolint:nilerr // the program gets the 401
	}
	_ = answer.Body.Close()
	again := r.Clone(r.Context())
	again.Header.Set(name, text)
	if kept != nil {
		again.Body = io.NopCloser(bytes.NewReader(kept))
	}
	return t.transport.RoundTrip(again)
}

// keptBody is a body that keeps what is read from it.
type keptBody struct {
	from io.ReadCloser

	mu    sync.Mutex
	kept  []byte // guarded by mu
	over  bool   // guarded by mu; it was longer than maxKept
	whole bool   // guarded by mu; it was read to its end
}

func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over = b.over || len(b.kept)+n > maxKept; b.over {
		b.kept = nil
	} else {
		b.kept = append(b.kept, p[:n]...)
	}
	b.whole = b.whole || errors.Is(err, io.EOF)
	return n, err
}

func (b *keptBody) Close() error { return b.from.Close() }

// bytes returns the whole body, nil if there is none, and whether it is known.
func (b *keptBody) bytes() ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept, b.whole && !b.over
}
