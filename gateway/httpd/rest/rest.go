// Package rest is what all that answers over HTTP shares: who calls, JSON that means one thing only, and errors as problem
// documents (RFC 9457). It knows no route.
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

// Limits of a request that is not a file's bytes.
const (
	MaxBody  = 1 << 20          // bytes of a JSON body
	BodyTime = 30 * time.Second // until it has arrived whole
)

type callerKey struct{}

// WithCaller is ctx of a request that was let in.
func WithCaller(ctx context.Context, t token.Token) context.Context {
	return context.WithValue(ctx, callerKey{}, t)
}

// Caller is the token that let the request in. The zero Token on routes that are open to all.
func Caller(ctx context.Context) token.Token {
	t, _ := ctx.Value(callerKey{}).(token.Token)
	return t
}

// Principal is whose the request is.
func Principal(ctx context.Context) gateway.Principal { return Caller(ctx).AsPrincipal() }

// Decode reads a JSON body into v: one value, each member of objects known, spelled exactly and given once, in valid UTF-8, of no
// more than MaxBody bytes that arrive within BodyTime. The error is a *wire.Error that says what is wrong and where; Status has its
// status.
func Decode(w http.ResponseWriter, r *http.Request, v any) error {
	return decode(w, r, v, json.RejectUnknownMembers(true))
}

// DecodeOpen is Decode for clients that are not ours and whose next version may say more: members that nobody knows are passed over.
func DecodeOpen(w http.ResponseWriter, r *http.Request, v any) error { return decode(w, r, v) }

func decode(w http.ResponseWriter, r *http.Request, v any, o ...json.Options) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &statusError{http.StatusUnsupportedMediaType, &wire.Error{Code: wire.CodeUsage, Message: "the body has to be JSON", Hint: "say so: Content-Type: application/json"}}
	}
	if deadline := time.Now().Add(BodyTime); r.Body != nil {
		_ = http.NewResponseController(w).SetReadDeadline(deadline) // a writer without one is a test's
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err != nil {
		// Or the server would wait for the rest before it answers; the deadline stays, too.
		w.Header().Set("Connection", "close")
	} else {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &statusError{http.StatusRequestEntityTooLarge, wire.Errorf(wire.CodeUsage, "the body has more than %d bytes", MaxBody)}
	}
	if err != nil {
		return &statusError{http.StatusRequestTimeout, wire.Errorf(wire.CodeUsage, "the body did not arrive: %v", err)}
	}
	return Unmarshal(body, v, o...)
}

// Unmarshal is Decode without the request.
func Unmarshal(body []byte, v any, o ...json.Options) error {
	err := json.Unmarshal(body, v, o...)
	if err == nil {
		return nil
	}
	where := ""
	if e := (*json.SemanticError)(nil); errors.As(err, &e) {
		where = string(e.JSONPointer)
		// Said in words of JSON: whoever sent it need not know our types.
		switch {
		case e.Err == nil && e.GoType != nil:
			return wire.Errorf(wire.CodeUsage, "the body: %s at %q is not %s", kindName(e.JSONKind), cmp.Or(where, "/"), typeName(e.GoType))
		case errors.Is(e.Err, json.ErrUnknownName):
			return wire.Errorf(wire.CodeUsage, "the body: nobody knows a member %q", where)
		}
	}
	if e := (*jsontext.SyntacticError)(nil); errors.As(err, &e) {
		where = string(e.JSONPointer)
	}
	said := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "json: "), "jsontext: ")
	if where != "" && !strings.Contains(said, where) {
		said += " at " + strconv.Quote(where)
	}
	return wire.Errorf(wire.CodeUsage, "the body: %s", said)
}

// Marshal is v as JSON, with members left out as the rest of the protocol leaves them out: false and 0, too, where a type says omitempty.
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
	_, _ = w.Write(append(text, '\n')) // a client that has gone
}

// kindName is a value of JSON, as text.
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

// typeName is what is wanted, as text.
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
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64, reflect.Int32, reflect.Uint32, reflect.Float64, reflect.Float32:
		return "a number"
	default:
		return "what is wanted"
	}
}
