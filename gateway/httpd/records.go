package httpd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Headers of a record's bytes.
const (
	headerBegun   = "Sandboxd-Begun"   // begin of the session, in Unix milliseconds
	headerMissing = "Sandboxd-Missing" // missing ranges, such as 10-20, 40-50; the end is exclusive
)

const maxMissing = 64 // ranges in the header; ", …" follows if there are more

// records adds the routes of records' bytes. They accept ranges and stream their answers.
func (s *Server) records(mux *http.ServeMux, api huma.API) {
	at := "/v1/sandboxes/{name}/sessions/{session}/record"
	run := &huma.Param{Name: "run", In: "query",
		Description: "run of the session, from the list of records; 0 is the latest",
		Schema:      &huma.Schema{Type: "integer", Minimum: new(float64)}}
	parameters := []*huma.Param{
		{Name: "name", In: "path", Required: true, Schema: &huma.Schema{Type: "string"}},
		{Name: "session", In: "path", Required: true, Schema: &huma.Schema{Type: "string"}},
		run,
	}
	raw := operation(at, "session-record", "Get the bytes of a session",
		"The exact output of the session. Use Range for a part of it, also while the session "+
			"runs. Bytes that are not recorded (private mode, "+
			"or deleted by rotation) are NUL, and "+headerMissing+" lists them.")
	raw.Parameters = parameters
	raw.Responses = binary("application/octet-stream", http.StatusOK, http.StatusPartialContent)
	api.OpenAPI().AddOperation(&raw)
	mux.HandleFunc("GET "+at, s.recordBytes)

	cast := operation(at+"/cast", "session-cast", "Get a session as an asciicast",
		"The whole record, for asciinema and compatible players.")
	cast.Parameters = append(slices.Clone(parameters), &huma.Param{Name: "version", In: "query",
		Schema: &huma.Schema{Type: "integer", Enum: []any{2, 3}, Default: 2}})
	cast.Responses = binary(castType, http.StatusOK)
	api.OpenAPI().AddOperation(&cast)
	mux.HandleFunc("GET "+at+"/cast", s.recordCast)
}

const castType = "application/x-asciicast"

func binary(kind string, statuses ...int) map[string]*huma.Response {
	all := make(map[string]*huma.Response)
	for _, status := range statuses {
		all[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status),
			Content: map[string]*huma.MediaType{kind: {}}}
	}
	return all
}

// query returns the parameters of a URL. Unknown and repeated ones are an error.
func query(r *http.Request, known ...string) (map[string]string, error) {
	got := make(map[string]string)
	for key, values := range r.URL.Query() {
		if !slices.Contains(known, key) || len(values) != 1 {
			return nil, wire.Errorf(wire.CodeUsage,
				"query parameter %q is unknown or repeated; known parameters: %s", key,
				strings.Join(known, ", "))
		}
		got[key] = values[0]
	}
	return got, nil
}

// openRecord opens the record that a request names.
func (s *Server) openRecord(r *http.Request, q map[string]string) (*record.Reader, error) {
	run := 0
	if text := q["run"]; text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, wire.Errorf(wire.CodeUsage, "run %q: must be a number of at least 0", text)
		}
		run = int(n)
	}
	return s.hub.Sessions.OpenRecord(r.Context(), rest.Principal(r.Context()),
		wire.Target{Sandbox: r.PathValue("name"), Session: r.PathValue("session")}, run)
}

func (s *Server) recordBytes(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "run")
	if err != nil {
		rest.Fail(w, r, s.hub, err)
		return
	}
	rec, err := s.openRecord(r, q)
	if err != nil {
		rest.Fail(w, r, s.hub, err)
		return
	}
	defer rec.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(headerBegun, strconv.FormatInt(rec.Begin().TimeUnix, 10))
	if gaps := rec.Gaps(); len(gaps) > 0 {
		var said []string
		for _, g := range gaps[:min(len(gaps), maxMissing)] {
			said = append(said, fmt.Sprintf("%d-%d", g.From, g.To))
		}
		if len(gaps) > maxMissing {
			said = append(said, "…")
		}
		h.Set(headerMissing, strings.Join(said, ", "))
	}
	// The record of a live session grows: its length identifies its state.
	h.Set("ETag", fmt.Sprintf(`"%d-%d"`, rec.Begin().TimeUnix, rec.End()))
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(filled{rec}, 0, int64(rec.End())))
}

// filled reads a record with NUL bytes in place of missing ranges.
type filled struct{ r *record.Reader }

func (f filled) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		got, err := f.r.ReadAt(p[n:], uint64(off)+uint64(n))
		n += got
		gap, missing := errors.AsType[*record.GapError](err)
		switch {
		case missing:
			to := min(len(p), int(gap.To-uint64(off)))
			clear(p[n:to])
			n = to
		case err != nil:
			return n, err
		case got == 0:
			return n, io.ErrUnexpectedEOF
		}
	}
	return n, nil
}

func (s *Server) recordCast(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "run", "version")
	version := record.Asciicast2
	switch q["version"] {
	case "", "2":
	case "3":
		version = record.Asciicast3
	default:
		err = wire.Errorf(wire.CodeUsage, "version %q: must be 2 or 3", q["version"])
	}
	if err != nil {
		rest.Fail(w, r, s.hub, err)
		return
	}
	rec, err := s.openRecord(r, q)
	if err != nil {
		rest.Fail(w, r, s.hub, err)
		return
	}
	defer rec.Close()
	w.Header().Set("Content-Type", castType)
	if err := rec.Export(w, version); err != nil {
		s.log.Debug("asciicast incomplete", "sandbox", r.PathValue("name"), "err", err)
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}
