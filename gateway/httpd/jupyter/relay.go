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

// relay sends a request to the server and returns its JSON answer. It passes on the path, the query
// and a JSON body; of the answer, the status and the body.
func (h *Handler) relay(w http.ResponseWriter, r *http.Request, below string,
	lease func(context.Context) (server, error)) error {
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
		http.MethodPatch, http.MethodDelete}, r.Method) {
		return rest.WithStatus(http.StatusMethodNotAllowed,
			wire.Errorf(wire.CodeUsage, "method not allowed"))
	}
	body, err := bodyOf(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.limits.within)
	defer cancel()
	done, err := h.try(ctx, w, r, below, body, lease, false)
	if !done {
		_, err = h.try(ctx, w, r, below, body, lease, true)
	}
	return err
}

// try sends the request once. done is false if the server has ended or was replaced and did not act
// on the request, and last is not set. The caller then tries again.
func (h *Handler) try(ctx context.Context, w http.ResponseWriter, r *http.Request, below string,
	body []byte, lease func(context.Context) (server, error), last bool) (done bool, err error) {
	s, err := lease(ctx)
	if err != nil {
		return true, err
	}
	defer s.Release()
	resp, err := ask(ctx, s, r, below, body)
	if err != nil {
		s.Broken()
		// Other methods may have taken effect.
		if r.Method == http.MethodGet && !last && ctx.Err() == nil {
			return false, nil
		}
		return true, unreached(err)
	}
	defer resp.Body.Close()
	// The server was replaced and has another token.
	if resp.StatusCode == http.StatusForbidden && !last {
		s.Broken()
		return false, nil
	}
	return true, h.answer(w, resp)
}

// bodyOf returns the whole body of a request, which must be JSON: foreign pages cannot send that
// content type.
func bodyOf(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	c := http.NewResponseController(w)
	// The writers of some tests have no deadline.
	_ = c.SetReadDeadline(time.Now().Add(rest.BodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rest.MaxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		w.Header().Set("Connection", "close")
		return nil, rest.WithStatus(http.StatusRequestEntityTooLarge,
			wire.Errorf(wire.CodeUsage, "body: larger than %d bytes", rest.MaxBody))
	}
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, rest.WithStatus(http.StatusRequestTimeout,
			wire.Errorf(wire.CodeUsage, "body: incomplete"))
	}
	_ = c.SetReadDeadline(time.Time{})
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); len(body) > 0 &&
		(err != nil || kind != "application/json") {
		return nil, rest.WithStatus(http.StatusUnsupportedMediaType,
			&wire.Error{Code: wire.CodeUsage, Message: "body: must be JSON",
				Hint: "send Content-Type: application/json"})
	}
	return body, nil
}

// ask sends the request to the server.
func ask(ctx context.Context, s server, r *http.Request, below string, body []byte) (*http.Response,
	error) {
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

// answer returns the server's answer to the client, if it is JSON.
func (h *Handler) answer(w http.ResponseWriter, resp *http.Response) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	bare := resp.StatusCode == http.StatusNoContent || resp.ContentLength == 0
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 599 || resp.StatusCode/100 == 3:
		return errServer("returned status %d, which is not part of the API", resp.StatusCode)
	case kind != "application/json" && !bare && resp.StatusCode < 400,
		resp.Header.Get("Content-Encoding") != "":
		return errServer("returned something other than JSON")
	case resp.ContentLength > h.limits.answer:
		return errServer("returned more than %d bytes", h.limits.answer)
	}
	w.Header().Set("Content-Type", "application/json")
	if kind != "application/json" && !bare { // the HTML page of an error
		rest.WriteJSON(w, resp.StatusCode, problem{Message: http.StatusText(resp.StatusCode)})
		return nil
	}
	w.WriteHeader(resp.StatusCode)
	if bare {
		return nil
	}
	n, err := io.Copy(w, io.LimitReader(resp.Body, h.limits.answer+1))
	if err != nil || n > h.limits.answer {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
	return nil
}
