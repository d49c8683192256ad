package agentrun

import (
	"context"
	"mime"
	"net/http"
	"path"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Code is the body of POST /v1/run/.
type Code struct {
	Code *string `json:"code" required:"true" doc:"Python code"`
}

// Health is the body of GET /v1/health/.
type Health struct {
	Status    string `json:"status"`
	ElapsedMS int64  `json:"elapsed_ms"`
}

// Routes adds the routes to mux, with and without AgentRun's trailing slash, and to the API
// description.
func (r *Runner) Routes(mux *http.ServeMux, api huma.API) {
	for _, slash := range []string{"", "/{$}"} {
		mux.HandleFunc("POST /v1/run"+slash, r.serveRun)
		mux.HandleFunc("GET /v1/health"+slash, r.serveHealth)
	}
	mux.HandleFunc("GET /v1/run/{id}/artifacts/{name...}", r.serveArtifact)

	schemas := api.OpenAPI().Components.Schemas
	body := func(t reflect.Type) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(t, true, "")}}
	}
	answer := func(t reflect.Type) map[string]*huma.Response {
		return map[string]*huma.Response{"200": {Description: "OK", Content: body(t)}}
	}
	api.OpenAPI().AddOperation(&huma.Operation{Method: http.MethodPost, Path: "/v1/run/",
		OperationID: "run-code", Summary: "Run Python", Tags: []string{"run"},
		Description: "Runs code in a new sandbox, which is removed afterwards. Imported packages " +
			"are installed if they are allowed. Compatible with AgentRun: " +
			"if the code fails, the status is still 200.",
		RequestBody: &huma.RequestBody{Required: true, Content: body(reflect.TypeFor[Code]())},
		Responses:   answer(reflect.TypeFor[Result]())})
	api.OpenAPI().AddOperation(&huma.Operation{Method: http.MethodGet, Path: "/v1/health/",
		OperationID: "run-health", Summary: "Check that code can run", Tags: []string{"run"},
		Description: "Runs a line of Python as a call does. Returns 503 if that fails.",
		Responses:   answer(reflect.TypeFor[Health]())})
	parameter := func(name string) *huma.Param {
		return &huma.Param{Name: name, In: "path", Required: true,
			Schema: &huma.Schema{Type: "string"}}
	}
	api.OpenAPI().AddOperation(&huma.Operation{Method: http.MethodGet,
		Path: "/v1/run/{id}/artifacts/{file}", OperationID: "run-artifact",
		Summary: "Get an artifact", Tags: []string{"run"},
		Description: "A file that a call created, for the principal who made the call, for an " +
			"hour. Supports Range. The URL is in the call's result.",
		Parameters: []*huma.Param{parameter("id"), parameter("file")},
		Responses: map[string]*huma.Response{"200": {Description: "OK",
			Content: map[string]*huma.MediaType{"application/octet-stream": {}}}}})
}

func (r *Runner) serveRun(w http.ResponseWriter, req *http.Request) {
	var body Code
	err := rest.Decode(w, req, &body)
	if err == nil && body.Code == nil {
		err = &wire.Error{Code: wire.CodeUsage, Message: "body: code is missing",
			Hint: `send {"code": "print(1)"}`}
	}
	if err != nil {
		rest.Fail(w, req, r.o.Hub, err)
		return
	}
	result, err := r.Call(req.Context(), rest.Principal(req.Context()), *body.Code)
	if err != nil {
		rest.Fail(w, req, r.o.Hub, err)
		return
	}
	rest.WriteJSON(w, http.StatusOK, result)
}

// healthWithin limits a health check, which may wait for other calls.
const healthWithin = 30 * time.Second

func (r *Runner) serveHealth(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), healthWithin)
	defer cancel()
	result, err := r.Call(ctx, rest.Principal(req.Context()), "print(6*7)")
	if err == nil && result.Output != "42\n" {
		err = wire.Errorf(wire.CodeUnavailable, "Python check failed: %.200s", result.Output)
	}
	if err != nil {
		rest.Fail(w, req, r.o.Hub, err)
		return
	}
	rest.WriteJSON(w, http.StatusOK, Health{"ok", result.ElapsedMS})
}

func (r *Runner) serveArtifact(w http.ResponseWriter, req *http.Request) {
	name := req.PathValue("name")
	f, err := r.files.open(rest.Principal(req.Context()).Name, req.PathValue("id"), name)
	if err != nil {
		rest.Fail(w, req, r.o.Hub, wire.Errorf(wire.CodeNotFound,
			"no such artifact; artifacts are kept for an hour"))
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", mediaType(name))
	// The file is not trusted: the browser must save it, not show it.
	h.Set("Content-Disposition", mime.FormatMediaType(
		"attachment", map[string]string{"filename": path.Base(name)}))
	http.ServeContent(w, req, "", time.Time{}, f)
}

// mediaType returns the media type for a file name, only of kinds that are inactive in a browser.
func mediaType(name string) string {
	switch path.Ext(name) {
	case ".png", ".jpg", ".jpeg", ".gif", ".webp":
		return mime.TypeByExtension(path.Ext(name))
	case ".csv":
		return "text/csv; charset=utf-8"
	case ".json":
		return "application/json"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}
