package httpd

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"path"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-json-experiment/json"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// problem is a problem document that implements huma.StatusError.
type problem struct{ rest.Problem }

func (p *problem) Error() string             { return p.Detail }
func (p *problem) GetStatus() int            { return p.Status }
func (p *problem) ContentType(string) string { return rest.ProblemType }

// huma reports its own errors, such as an invalid parameter, through a package variable. Set it so
// that they are problem documents too. No other package of the daemon uses huma.NewError.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		for _, err := range errs {
			if err != nil {
				msg += ": " + err.Error()
			}
		}
		code := wire.CodeUsage
		if status >= http.StatusInternalServerError {
			code, msg = wire.CodeInternal, "internal error"
		}
		return &problem{rest.NewProblem(nil, rest.WithStatus(status, wire.Errorf(code, "%s", msg)))}
	}
}

// failed returns err as huma expects it, with the details that hub allows a client to see.
func failed(hub *gateway.Hub, err error) error {
	if err == nil {
		return nil
	}
	return &problem{rest.NewProblem(hub, err)}
}

// newAPI returns the API whose description is published at /openapi.json.
func newAPI(mux huma.Adapter, version string) huma.API {
	// Read and write JSON as in the other packages: ambiguous JSON is rejected.
	strict := huma.Format{
		Marshal: func(w io.Writer, v any) error {
			text, err := rest.Marshal(v)
			if err != nil {
				return err
			}
			_, err = w.Write(append(text, '\n'))
			return err
		},
		Unmarshal: func(data []byte, v any) error {
			return rest.Unmarshal(data, v, json.RejectUnknownMembers(true))
		},
	}
	return huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "sandboxd", Version: cmp.Or(version, "unknown"),
				Description: "The HTTP API of a sandboxd daemon. Errors are problem documents " +
					"(RFC 9457) with a code and a hint."},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer",
						Description: "A token from `sandboxd token new`, or the content of the " +
							"file api_token in the state directory."},
				},
			},
			Security: []map[string][]string{{"token": {}}},
		},
		RejectUnknownQueryParameters: true,
		Formats: map[string]huma.Format{"application/json": strict,
			"json": strict},
		DefaultFormat: "application/json",
	}, mux)
}

func newAdapter(mux *http.ServeMux) huma.Adapter { return humago.NewAdapter(mux, "") }

// schemaName distinguishes types that have the same name in several packages.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := t.Name()
	if name == "" {
		return hint
	}
	switch pkg := path.Base(t.PkgPath()); pkg {
	case "", ".", "httpd":
		return strings.ToUpper(name[:1]) + name[1:]
	default:
		return strings.ToUpper(pkg[:1]) + pkg[1:] + name
	}
}

// operation describes a GET request that returns JSON, or a problem document.
func operation(at, id, summary, about string) huma.Operation {
	return huma.Operation{Method: http.MethodGet, Path: at, OperationID: id, Summary: summary,
		Description: about, Tags: []string{strings.Split(at, "/")[2]}}
}

// description returns the document at /openapi.json.
func description(api huma.API) ([]byte, error) {
	problems := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[rest.Problem](), true,
		"Problem")
	for _, item := range api.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Delete, item.Put} {
			if op == nil {
				continue
			}
			op.Responses["default"] =
				&huma.Response{Description: "An error: a code, a sentence, and a hint",
					Content: map[string]*huma.MediaType{rest.ProblemType: {Schema: problems}}}
		}
	}
	text, err := api.OpenAPI().MarshalJSON()
	if err != nil || len(text) == 0 {
		return nil, errors.Join(errors.New("httpd: describe the API"), err)
	}
	return text, nil
}
