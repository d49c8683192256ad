package httpd

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.html
var docsText string

//go:embed docs.css
var docsStyle []byte

var docsPage = template.Must(template.New("docs").Parse(docsText))

// docsPolicy allows the page's own style sheet. The page has no scripts and loads nothing else.
const docsPolicy = "default-src 'none'; style-src 'self'; frame-ancestors 'none'"

// documented is an operation as the page shows it.
type documented struct {
	Method, Path, ID, Summary, About string
	Parameters                       []*huma.Param
	Body                             []field
	Answers                          []field
}

// field is one member of a body.
type field struct{ Name, Type, About string }

// docs serves the API description as an HTML page. It has the same content as /openapi.json.
func docs(mux *http.ServeMux, api huma.API) error {
	var all []documented
	for at, item := range api.OpenAPI().Paths {
		for method, op := range map[string]*huma.Operation{"GET": item.Get, "POST": item.Post,
			"DELETE": item.Delete} {
			if op == nil {
				continue
			}
			d := documented{Method: method, Path: at, ID: op.OperationID, Summary: op.Summary,
				About: op.Description, Parameters: op.Parameters}
			if op.RequestBody != nil {
				d.Body = fields(api, op.RequestBody.Content["application/json"])
			}
			if r := op.Responses["200"]; r != nil {
				d.Answers = fields(api, r.Content["application/json"])
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b documented) int {
		return strings.Compare(a.Path+a.Method, b.Path+b.Method)
	})
	var page bytes.Buffer
	if err := docsPage.Execute(&page, map[string]any{"Info": api.OpenAPI().Info,
		"Operations": all}); err != nil {
		return err
	}
	mux.HandleFunc("GET /docs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", docsPolicy)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page.Bytes())
	})
	mux.HandleFunc("GET /docs.css", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write(docsStyle)
	})
	return nil
}

// fields returns the members of a JSON body, sorted by name.
func fields(api huma.API, media *huma.MediaType) []field {
	if media == nil || media.Schema == nil {
		return nil
	}
	schemas := api.OpenAPI().Components.Schemas
	schema := media.Schema
	if schema.Ref != "" {
		schema = schemas.SchemaFromRef(schema.Ref)
	}
	var all []field
	for name, p := range schema.Properties {
		all = append(all, field{name, typeName(p), p.Description})
	}
	slices.SortFunc(all, func(a, b field) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func typeName(s *huma.Schema) string {
	switch {
	case s.Ref != "":
		return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	case s.Type == "array" && s.Items != nil:
		return "array of " + typeName(s.Items)
	case s.Format != "":
		return s.Type + " (" + s.Format + ")"
	}
	return s.Type
}
