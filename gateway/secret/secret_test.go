package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const theKey = "sk-the-real-key-0123456789"

func valueOf(t testing.TB, text string) Value {
	t.Helper()
	v, err := ParseValue([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func secretOf(name, host string) Secret {
	return Secret{Owner: "ann", Name: name, Source: Source{Kind: KindValue},
		Bindings: []Binding{{Host: host, Header: "Authorization: Bearer {}"}}}
}

// No way of printing, logging or encoding shows a value.
func TestValueIsRedacted(t *testing.T) {
	v := valueOf(t, theKey)
	store, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Set(secretOf("api", "api.example.com"), v); err != nil {
		t.Fatal(err)
	}
	bound := store.For("ann", "demo")
	type within struct {
		Public  Value
		private Value
		list    []Value
		byName  map[string]any
	}
	for name, x := range map[string]any{"value": v, "pointer": &v,
		"within":  within{v, v, []Value{v}, map[string]any{"v": v}},
		"pointed": &within{Public: v, private: v}, "bound": bound, "entry": bound[0].entry,
		"store": store, "list": store.List("ann"), "command": &command{line: "x", known: v},
		"error": fmt.Errorf("about %v", v)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%p"} {
			for _, got := range []string{fmt.Sprintf(verb, x), fmt.Sprint(x)} {
				if strings.Contains(got, theKey) ||
					strings.Contains(got, fmt.Sprintf("%x", theKey)) {
					t.Errorf("%s by %s: %s", name, verb, got)
				}
			}
		}
		encoded, err := json.Marshal(x)
		if err == nil && bytes.Contains(encoded, []byte(theKey)) {
			t.Errorf("%s in JSON: %s", name, encoded)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "value", x)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "value", x)
		if strings.Contains(log.String(), theKey) {
			t.Errorf("%s in the log: %s", name, log.String())
		}
	}
	if got := v.reveal(); got != theKey {
		t.Errorf("got %q", got)
	}
}

func TestParseValue(t *testing.T) {
	for text, want := range map[string]string{
		"key": "", "key\n": "", "key\r\n": "", "": "is empty", "\n": "is empty", " \n": "is empty",
		"two\nlines": "more than one line", "key\n\n": "more than one line",
		"a\x00b": "control characters", strings.Repeat("x", MaxValue+1): "longer than",
	} {
		v, err := ParseValue([]byte(text))
		switch {
		case want == "" && (err != nil || v.reveal() != "key"):
			t.Errorf("%.20q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.20q: got %v, want %q", text, err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Secret)
		want   string
	}{
		{"good", func(*Secret) {}, ""},
		{"capitals", func(s *Secret) { s.Bindings[0].Host = "API.Example.com." }, ""},
		{"no name", func(s *Secret) { s.Name = "" }, "secret name"},
		{"name", func(s *Secret) { s.Name = "../x" }, "secret name"},
		{"no host", func(s *Secret) { s.Bindings = nil }, "missing host"},
		{"wildcard", func(s *Secret) { s.Bindings[0].Host = "*.example.com" },
			"wildcards cannot be bound"},
		{"URL", func(s *Secret) { s.Bindings[0].Host = "https://api.example.com" },
			"must be a host name"},
		{"port", func(s *Secret) { s.Bindings[0].Host = "api.example.com:443" },
			"must be a host name"},
		{"address", func(s *Secret) { s.Bindings[0].Host = "10.0.0.1" }, "must be a host name"},
		{"localhost", func(s *Secret) { s.Bindings[0].Host = "localhost" }, "must be a host name"},
		{"twice", func(s *Secret) { s.Bindings = append(s.Bindings, s.Bindings[0]) },
			"is bound twice"},
		{"no header", func(s *Secret) { s.Bindings[0].Header = "" }, "missing header"},
		{"header without a name", func(s *Secret) { s.Bindings[0].Header = "{}" },
			"must be NAME: TEXT"},
		{"header name", func(s *Secret) { s.Bindings[0].Header = "a b: {}" }, "must be NAME: TEXT"},
		{"header without a value", func(s *Secret) { s.Bindings[0].Header = "Authorization: x" },
			"must contain {}"},
		{"header with two", func(s *Secret) { s.Bindings[0].Header = "Authorization: {}{}" },
			"must contain {}"},
		{"header of two lines", func(s *Secret) { s.Bindings[0].Header = "A: {}\r\nB: x" },
			"must be one line"},
		{"header of HTTP", func(s *Secret) { s.Bindings[0].Header = "Host: {}" },
			"HTTP uses it"},
		{"path", func(s *Secret) { s.Bindings[0].Rules = []Rule{{Path: "v1"}} },
			"must begin with /"},
		{"sandbox", func(s *Secret) { s.Sandboxes = []string{"no/name"} }, "sandbox name"},
		{"source", func(s *Secret) { s.Source.Kind = "x" }, "must be value, env, file or cmd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := secretOf("api", "api.example.com")
			tt.change(&s)
			got, err := s.check()
			if tt.want == "" {
				if err != nil || got.Bindings[0].Host != "api.example.com" {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			e, ok := errors.AsType[*wire.Error](err)
			if !ok || e.Code != wire.CodeUsage || !strings.Contains(e.Message, tt.want) {
				t.Errorf("got %v, want a usage error with %q", err, tt.want)
			}
		})
	}
}

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets.json")
	store, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	set := func(s Secret) error {
		_, err := store.Set(s, valueOf(t, theKey))
		return err
	}
	one := secretOf("one", "one.example.com")
	short := secretOf("short", "two.example.com")
	short.SessionOnly = true
	named := secretOf("named", "three.example.com")
	named.Sandboxes = []string{"demo", "web"}
	other := secretOf("one", "one.example.com")
	other.Owner = "bob"
	for _, s := range []Secret{one, short, named, other} {
		if err := set(s); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil || bytes.Contains(text, []byte("two.example.com")) {
		t.Errorf("the file has a secret for the session: %s, %v", text, err)
	}

	// Two secrets for one host, for the same sandbox.
	again := secretOf("again", "three.example.com")
	if err := set(again); err == nil || !strings.Contains(err.Error(), "is bound twice") {
		t.Errorf("bound twice: %v", err)
	}
	again.Sandboxes = []string{"web"}
	if err := set(again); err == nil || !strings.Contains(err.Error(), "is bound twice") {
		t.Errorf("bound twice: %v", err)
	}
	again.Sandboxes = []string{"api"}
	if err := set(again); err != nil {
		t.Errorf("for another sandbox: %v", err)
	}

	hosts := func(s *Store, owner, sandbox string) (hosts []string) {
		for _, b := range s.For(owner, sandbox) {
			hosts = append(hosts, b.Secret+" "+b.Host)
		}
		return hosts
	}
	want := []string{"named three.example.com", "one one.example.com", "short two.example.com"}
	if diff := cmp.Diff(want, hosts(store, "ann", "demo")); diff != "" {
		t.Errorf("demo (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"one one.example.com"}, hosts(store, "bob", "demo")); diff != "" {
		t.Errorf("of another owner (-want +got):\n%s", diff)
	}
	left := filepath.Join(filepath.Dir(path), ".secrets-123")
	if err := os.WriteFile(left, []byte(theKey), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err = Open(path) // a new daemon
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of a daemon that was killed while it wrote: %v", err)
	}
	if diff := cmp.Diff(slicesWithout(want, 2), hosts(store, "ann", "demo")); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	name, header, err := store.For("ann", "demo")[1].header(t.Context())
	if err != nil || name != "Authorization" || header != "Bearer "+theKey {
		t.Errorf("got %q, %v", name, err)
	}
	for _, name := range []string{"one", "named", "again"} {
		if _, err := store.Remove("ann", name); err != nil {
			t.Error(err)
		}
	}
	if _, err := store.Remove("ann", "one"); !errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := store.Remove("bob", "one"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of no secrets: %v", err)
	}
}

func slicesWithout(list []string, at int) []string {
	return append(append([]string{}, list[:at]...), list[at+1:]...)
}

func TestOpenRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		mode os.FileMode
		text string
		want string
	}{
		"readable by others": {0o644, "{}", "others can read"},
		"damaged":            {0o600, `{"version":1,"secrets":[{"value":"` + theKey, "is damaged"},
		"newer":              {0o600, `{"version":2}`, "of another version"},
	} {
		path := filepath.Join(t.TempDir(), "secrets.json")
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			strings.Contains(err.Error(), theKey) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

func TestCommand(t *testing.T) {
	dir := t.TempDir()
	counter := filepath.Join(dir, "runs")
	c := &command{line: `sh -c 'echo x >>` + counter + `; echo key'`}
	runs := func() int {
		text, _ := os.ReadFile(counter)
		return strings.Count(string(text), "x")
	}
	get := func(want int) {
		t.Helper()
		v, err := c.value(t.Context())
		if err != nil || v.reveal() != "key" || runs() != want {
			t.Errorf("got %v after %d runs, want %d", err, runs(), want)
		}
	}
	get(1)
	get(1)
	c.forget()
	get(1) // too early
	c.ran = time.Now().Add(-commandPause)
	get(2)
	get(2)
	c.expires = time.Now().Add(-time.Second)
	get(3)

	for line, want := range map[string]string{
		`echo '{"value":"key","expires":"2035-01-01T00:00:00Z"}'`: "",
		`printf key`:               "",
		`sh -c 'echo key; exit 3'`: "exit status 3",
		`true`:                     "it printed no value",
		`printf 'key\nkey'`:        "more than one line",
		`echo '{"key":1}'`:         "it printed no value",
		`echo '{"value":key}'`:     "it printed an object",
		`/no/such/program`:         "no such file",
	} {
		v, _, err := run(t.Context(), line)
		if want == "" && (err != nil || v.reveal() != "key") {
			t.Errorf("%s: %v", line, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}

func TestFill(t *testing.T) {
	for template, want := range map[string]string{
		"Authorization: Bearer {}":                     "Authorization=Bearer key",
		"x-api-key:{}":                                 "x-api-key=key",
		"Authorization: Basic {basic:x-access-token}":  "Authorization=Basic eC1hY2Nlc3MtdG9rZW46a2V5",
		`Authorization: Token token="{}", x="{basic}"`: `Authorization=Token token="key", x="{basic}"`,
	} {
		name, text, err := fill(template, valueOf(t, "key"))
		if got := name + "=" + text; err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", template, got, err, want)
		}
	}
}

func TestPresets(t *testing.T) {
	rule := func(text string) Rule {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, name := range Presets {
		bindings, ok := Preset(name, nil, nil)
		s := Secret{Owner: "ann", Name: name, Bindings: bindings, Source: Source{Kind: KindValue}}
		if _, err := s.check(); err != nil || !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, _ := Preset("github", []Rule{rule("/owner/repo")}, nil)
	pushing, _ := Preset("github", []Rule{rule("/owner/repo"),
		rule("POST /owner/repo.git/git-receive-pack")}, nil)
	spec, _ := Preset("github", []Rule{rule("/owner/repo.git/git-receive-pack")},
		[]string{"POST"})
	any, _ := Preset("github", nil, nil)
	for _, tt := range []struct {
		bindings             []Binding
		host, method, target string
		want                 bool
	}{
		{all, "github.com", "GET", "/owner/repo.git/info/refs?service=git-upload-pack", true},
		{all, "github.com", "POST", "/owner/repo.git/git-upload-pack", true},
		{all, "github.com", "POST", "/owner/repo/git-upload-pack", true},
		{all, "github.com", "POST", "/owner/repo.git/git-receive-pack", false},
		{all, "github.com", "GET", "/owner/other.git/info/refs", false},
		{all, "api.github.com", "GET", "/repos/owner/repo/pulls", true},
		{all, "api.github.com", "PUT", "/repos/owner/repo/contents/x", false},
		{all, "api.github.com", "GET", "/user", false},
		{pushing, "github.com", "POST", "/owner/repo.git/git-receive-pack", true},
		{pushing, "api.github.com", "PUT", "/repos/owner/repo/contents/x", false},
		{spec, "github.com", "POST", "/owner/repo.git/git-receive-pack", true},
		{spec, "github.com", "POST", "/owner/repo.git/git-upload-pack", false},
		{any, "github.com", "POST", "/any/repo/git-upload-pack", true},
		{any, "github.com", "POST", "/any/repo/git-receive-pack", false},
		{any, "api.github.com", "DELETE", "/repos/owner/repo", false},
	} {
		got := false
		for _, b := range tt.bindings {
			if b.Host == tt.host {
				r, err := requestOf(tt.method, tt.target)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = tt.host
				got = b.mayPass(r) == nil
			}
		}
		if got != tt.want {
			t.Errorf("%s https://%s%s: got %v, want %v", tt.method, tt.host, tt.target, got,
				tt.want)
		}
	}
}
