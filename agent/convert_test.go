package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestConvert compares the types of the wire protocol with those of this package, as JSON. It fails
// if a field of wire is missing in agent.
func TestConvert(t *testing.T) {
	for _, how := range []string{"full", "empty", "zero"} {
		t.Run(how, func(t *testing.T) {
			var r wire.Result
			var s wire.State
			var w wire.Screen
			if how != "zero" {
				fill(reflect.ValueOf(&r).Elem(), how == "empty")
				fill(reflect.ValueOf(&s).Elem(), how == "empty")
				fill(reflect.ValueOf(&w).Elem(), how == "empty")
			}
			same(t, r, newResult(r))
			same(t, s, newState(s))
			same(t, w, newScreen(w))
		})
	}
}

// fill sets every field to a different value. Lists are empty or have one element.
func fill(v reflect.Value, empty bool) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), empty)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), empty)
	case reflect.Slice:
		n := 1
		if empty {
			n = 0
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), empty)
		}
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	default:
		panic(fmt.Sprintf("no value for a %v", v.Type()))
	}
}

func same(t *testing.T, want, got any) {
	t.Helper()
	w, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	g, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(w), string(g)); d != "" {
		t.Errorf("%T and %T differ (-wire +agent):\n%s", want, got, d)
	}
}

// TestWords compares the string constants of the wire protocol with those of this package.
func TestWords(t *testing.T) {
	theirs := words(t, "../sandbox/wire/result.go", "../sandbox/wire/message.go")
	ours := words(t, "result.go", "state.go", "error.go")
	for _, kind := range []string{"Ended", "Phase", "Want", "Basis", "ShowScreen", "Code", "Lost",
		"Note"} {
		if d := cmp.Diff(theirs[kind], ours[kind]); d != "" || len(ours[kind]) == 0 {
			t.Errorf("%s (-wire +agent):\n%s", kind, d)
		}
	}
}

// words returns the sorted constants of files by type. Constants without a type are grouped by the
// first word of their names.
func words(t *testing.T, files ...string) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			value, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || value.Kind != token.STRING {
				return true
			}
			kind := ""
			if typ, ok := spec.Type.(*ast.Ident); ok {
				kind = typ.Name
			}
			for _, prefix := range []string{"Lost", "Note"} {
				if kind == "" && strings.HasPrefix(spec.Names[0].Name, prefix) {
					kind = prefix
				}
			}
			text, err := strconv.Unquote(value.Value)
			if err != nil {
				t.Fatal(err)
			}
			all[kind] = append(all[kind], text)
			return true
		})
	}
	for _, list := range slices.Collect(maps.Values(all)) {
		slices.Sort(list)
	}
	return all
}

// TestPublicError examines errors of the library as callers do, and as packages of the daemon do.
func TestPublicError(t *testing.T) {
	cause := errors.New("cause")
	for _, tt := range []struct {
		name string
		err  error
		text string
	}{
		{"of the daemon", wire.Errorf(wire.CodeDenied, "not yours"), "not yours"},
		{"wrapped", fmt.Errorf("attach: %w", errors.Join(wire.Errorf(wire.CodeDenied, "not yours"),
			cause)), "attach: not yours\ncause"},
		{"of this package", because(cause, CodeDenied, "not yours", ""), "not yours"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := public(public(tt.err))
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeDenied ||
				!errors.Is(err, &Error{Code: CodeDenied}) ||
				errors.Is(err, &Error{Code: CodeLost}) {
				t.Errorf("callers do not get an Error from %v", err)
			}
			var w *wire.Error
			if !errors.As(err, &w) || w.Code != wire.CodeDenied ||
				!errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
				t.Errorf("the daemon does not get its own error from %v", err)
			}
			if tt.name != "of the daemon" && !errors.Is(err, cause) || err.Error() != tt.text {
				t.Errorf("got %q, which has lost its text or cause", err)
			}
		})
	}
	if public(nil) != nil || public(cause) != cause { //nolint:errorlint // as it is
		t.Error("an error without a code is changed")
	}
}
