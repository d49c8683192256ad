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

// Code is the body of a call.
type Code struct {
	Code *string `json:"code" required:"true" doc:"Python"`
}

// Health is the answer of the route that says whether calls can be made: one was.
type Health struct {
	Status    string `json:"status"`
	ElapsedMS int64  `json:"elapsed_ms"`
}

// Routes are the Runner's, with and without the slash that AgentRun has behind them. The API's description gets them, too.
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
	api.OpenAPI().AddOperation(&huma.Operation{Method: http.MethodPost, Path: "/v1/run/", OperationID: "run-code", Summary: "Run Python", Tags: []string{"run"},
		Description: "Runs code in a sandbox of its own, which is removed afterwards. What it imports is installed, if that is allowed. AgentRun's route: what the code does, " +
			"failing included, is the answer, with status 200.",
		RequestBody: &huma.RequestBody{Required: true, Content: body(reflect.TypeFor[Code]())}, Responses: answer(reflect.TypeFor[Result]())})
	api.OpenAPI().AddOperation(&huma.Operation{Method: http.MethodGet, Path: "/v1/health/", OperationID: "run-health", Summary: "Whether calls can be made", Tags: []string{"run"},
		Description: "Runs a line of Python as a call would. 503 says that it did not.", Responses: answer(reflect.TypeFor[Health]())})
	parameter := func(name string) *huma.Param {
		return &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: "string"}}
	}
	api.OpenAPI().AddOperation(&huma.Operation{Method: http.MethodGet, Path: "/v1/run/{id}/artifacts/{file}", OperationID: "run-artifact", Summary: "A file that code made", Tags: []string{"run"},
		Description: "For an hour, for whoever made the call; ranges are answered. A URL stands in the call's answer.", Parameters: []*huma.Param{parameter("id"), parameter("file")},
		Responses: map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{"application/octet-stream": {}}}}})
}

func (r *Runner) serveRun(w http.ResponseWriter, req *http.Request) {
	var body Code
	err := rest.Decode(w, req, &body)
	if err == nil && body.Code == nil {
		err = &wire.Error{Code: wire.CodeUsage, Message: "the body has no code", Hint: `send {"code": "print(1)"}`}
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

// healthWithin bounds a look at health: a call may wait for others before.
const healthWithin = 30 * time.Second

func (r *Runner) serveHealth(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), healthWithin)
	defer cancel()
	result, err := r.Call(ctx, rest.Principal(req.Context()), "print(6*7)")
	if err == nil && result.Output != "42\n" {
		err = wire.Errorf(wire.CodeUnavailable, "Python does not run: %.200s", result.Output)
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
		rest.Fail(w, req, r.o.Hub, wire.Errorf(wire.CodeNotFound, "there is no such file, or no longer: files are kept for an hour"))
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", mediaType(name))
	// It is somebody else's: a browser keeps it, and shows nothing of it as ours.
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
	http.ServeContent(w, req, "", time.Time{}, f)
}

// mediaType is what a name says of a file, of kinds that do nothing in a browser.
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
