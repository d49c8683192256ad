package jupyter

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// relay asks the server and answers with its JSON. Of the request the path, the query and a JSON body are passed on, of the answer the
// status and the body.
func (d *Door) relay(w http.ResponseWriter, r *http.Request, below string, lease func(context.Context) (server, error)) error {
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, r.Method) {
		return rest.WithStatus(http.StatusMethodNotAllowed, wire.Errorf(wire.CodeUsage, "that is no method of the API"))
	}
	body, err := bodyOf(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.limits.within)
	defer cancel()
	done, err := d.try(ctx, w, r, below, body, lease, false)
	if !done {
		_, err = d.try(ctx, w, r, below, body, lease, true)
	}
	return err
}

// try asks once. It is not done where the server turns out to have ended, or to be another one, so that nothing was done: it is asked again,
// unless this is last.
func (d *Door) try(ctx context.Context, w http.ResponseWriter, r *http.Request, below string, body []byte, lease func(context.Context) (server, error), last bool) (done bool, err error) {
	s, err := lease(ctx)
	if err != nil {
		return true, err
	}
	defer s.Release()
	resp, err := ask(ctx, s, r, below, body)
	if err != nil {
		s.Broken()
		if r.Method == http.MethodGet && !last && ctx.Err() == nil { // others may have been done
			return false, nil
		}
		return true, unreached(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusForbidden && !last { // another one runs, with another token
		s.Broken()
		return false, nil
	}
	return true, d.answer(w, resp)
}

// bodyOf is the whole of a request's body, which is JSON: a page of others could send no such one.
func bodyOf(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(rest.BodyTime)) // a writer without one is a test's
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rest.MaxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		w.Header().Set("Connection", "close")
		return nil, rest.WithStatus(http.StatusRequestEntityTooLarge, wire.Errorf(wire.CodeUsage, "the body has more than %d bytes", rest.MaxBody))
	}
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, rest.WithStatus(http.StatusRequestTimeout, wire.Errorf(wire.CodeUsage, "the body did not arrive"))
	}
	_ = c.SetReadDeadline(time.Time{})
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); len(body) > 0 && (err != nil || kind != "application/json") {
		return nil, rest.WithStatus(http.StatusUnsupportedMediaType, &wire.Error{Code: wire.CodeUsage, Message: "the body has to be JSON", Hint: "say so: Content-Type: application/json"})
	}
	return body, nil
}

// ask sends the request.
func ask(ctx context.Context, s server, r *http.Request, below string, body []byte) (*http.Response, error) {
	to := url.URL{Scheme: "http", Host: "localhost", Path: "/api", RawQuery: r.URL.Query().Encode()}
	if below != "" || strings.HasSuffix(r.URL.Path, "/") {
		to.Path += "/" + below
	}
	out, err := http.NewRequestWithContext(ctx, r.Method, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header.Set("Accept", "application/json")
	if len(body) > 0 {
		out.Header.Set("Content-Type", "application/json")
	}
	return s.RoundTrip(out)
}

// answer answers with what the server did, if it is JSON.
func (d *Door) answer(w http.ResponseWriter, resp *http.Response) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	bare := resp.StatusCode == http.StatusNoContent || resp.ContentLength == 0
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 599 || resp.StatusCode/100 == 3:
		return errServer("answers with status %d, which nothing of the API does", resp.StatusCode)
	case kind != "application/json" && !bare && resp.StatusCode < 400, resp.Header.Get("Content-Encoding") != "":
		return errServer("answers with something else than JSON")
	case resp.ContentLength > d.limits.answer:
		return errServer("answers with more than %d bytes", d.limits.answer)
	}
	w.Header().Set("Content-Type", "application/json")
	if kind != "application/json" && !bare { // an error's page
		rest.WriteJSON(w, resp.StatusCode, problem{Message: http.StatusText(resp.StatusCode)})
		return nil
	}
	w.WriteHeader(resp.StatusCode)
	if bare {
		return nil
	}
	n, err := io.Copy(w, io.LimitReader(resp.Body, d.limits.answer+1))
	if err != nil || n > d.limits.answer {
		panic(http.ErrAbortHandler) // the client is not to take it for the whole
	}
	return nil
}
