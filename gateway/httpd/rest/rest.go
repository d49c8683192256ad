// Package rest is shared by the HTTP handlers: the caller of a request, strict JSON, and errors as
// problem documents (RFC 9457). It knows no routes.
package rest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of requests other than file transfers.
const (
	MaxBody  = 1 << 20          // bytes of a JSON body
	BodyTime = 30 * time.Second // time for a whole body to arrive
)

type callerKey struct{}

// WithCaller returns ctx with the token of an authenticated request.
func WithCaller(ctx context.Context, t token.Token) context.Context {
	return context.WithValue(ctx, callerKey{}, t)
}

// Caller returns the token of a request. It is the zero Token on public routes.
func Caller(ctx context.Context) token.Token {
	t, _ := ctx.Value(callerKey{}).(token.Token)
	return t
}

// Principal returns the principal of a request.
func Principal(ctx context.Context) gateway.Principal { return Caller(ctx).AsPrincipal() }

// Decode reads a JSON body into v. The body is one value of valid UTF-8. Object keys must be known,
// exactly spelled and unique. It has at most MaxBody bytes, which must arrive within BodyTime. The
// error is public and says what is wrong and where; Status returns its status.
func Decode(w http.ResponseWriter, r *http.Request, v any) error {
	return decode(w, r, v, json.RejectUnknownMembers(true))
}

// DecodeOpen is Decode for clients of other APIs, whose next versions may send more: it ignores
// unknown keys.
func DecodeOpen(w http.ResponseWriter, r *http.Request, v any) error { return decode(w, r, v) }

func decode(w http.ResponseWriter, r *http.Request, v any, o ...json.Options) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil ||
		kind != "application/json" {
		return &statusError{http.StatusUnsupportedMediaType, &wire.Error{Code: wire.CodeUsage,
			Message: "body: must be JSON", Hint: "send Content-Type: application/json"}}
	}
	if deadline := time.Now().Add(BodyTime); r.Body != nil {
		// The writers of some tests have no deadline.
		_ = http.NewResponseController(w).SetReadDeadline(deadline)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err != nil {
		// Otherwise the server reads the rest before it answers. The deadline stays set, too.
		w.Header().Set("Connection", "close")
	} else {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &statusError{http.StatusRequestEntityTooLarge,
			wire.Errorf(wire.CodeUsage, "body: larger than %d bytes", MaxBody)}
	}
	if err != nil {
		return &statusError{http.StatusRequestTimeout,
			wire.Errorf(wire.CodeUsage, "body: incomplete: %v", err)}
	}
	return Unmarshal(body, v, o...)
}

// Unmarshal is Decode for a body that is already read.
func Unmarshal(body []byte, v any, o ...json.Options) error {
	err := json.Unmarshal(body, v, o...)
	if err == nil {
		return nil
	}
	where := ""
	if e := (*json.SemanticError)(nil); errors.As(err, &e) {
		where = string(e.JSONPointer)
		// The texts use JSON's terms: clients do not know Go types.
		switch {
		case e.Err == nil && e.GoType != nil:
			return wire.Errorf(wire.CodeUsage, "body: %s at %q is not %s", kindName(e.JSONKind),
				cmp.Or(where, "/"), typeName(e.GoType))
		case errors.Is(e.Err, json.ErrUnknownName):
			return wire.Errorf(wire.CodeUsage, "body: unknown field %q%s", where,
				knownFields(e.GoType))
		}
	}
	if e := (*jsontext.SyntacticError)(nil); errors.As(err, &e) {
		where = string(e.JSONPointer)
	}
	said := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "json: "), "jsontext: ")
	if where != "" && !strings.Contains(said, where) {
		said += " at " + strconv.Quote(where)
	}
	return wire.Errorf(wire.CodeUsage, "body: %s", said)
}

// Marshal returns v as JSON. It omits false and 0, too, where a type says omitempty, as the rest of
// the protocol does.
func Marshal(v any) ([]byte, error) {
	return json.Marshal(v, jsonv1.OmitEmptyWithLegacySemantics(true), json.Deterministic(true))
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	text, err := Marshal(v)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the client may be gone
}

// knownFields lists the JSON names of a struct's fields, as a suffix of an error. It returns "" for
// other types.
func knownFields(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; known fields: " + strings.Join(names, ", ")
}

// kindName names a kind of JSON value in an error.
func kindName(k jsontext.Kind) string {
	switch k {
	case '"':
		return "the string"
	case '0':
		return "the number"
	case 't', 'f':
		return "true or false"
	case '{':
		return "the object"
	case '[':
		return "the array"
	case 'n':
		return "null"
	}
	return "the value"
}

// typeName names the expected type in an error.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64, reflect.Int32, reflect.Uint32,
		reflect.Float64, reflect.Float32:
		return "a number"
	default:
		return "the expected type"
	}
}
