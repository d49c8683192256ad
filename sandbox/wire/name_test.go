package wire

import (
	"errors"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Target
		ok   bool
	}{
		{"demo", Target{"demo", "main"}, true},
		{"demo~build", Target{"demo", "build"}, true},
		{"demo~main", Target{"demo", "main"}, true},
		{"demo~new", Target{"demo", "new"}, true},
		{"a", Target{"a", "main"}, true},
		{strings.Repeat("a", 63), Target{strings.Repeat("a", 63), "main"}, true},
		{strings.Repeat("a", 64), Target{}, false},
		{"", Target{}, false},
		{"~build", Target{}, false},
		{"demo~", Target{}, false},
		{"demo~a~b", Target{}, false},
		{"-demo", Target{}, false},
		{"demo-", Target{}, false},
		{"Demo", Target{}, false},
		{"../../x", Target{}, false},
		{"-oProxyCommand=id", Target{}, false},
		{"a b", Target{}, false},
		{"a\x00b", Target{}, false},
		{"$(id)", Target{}, false},
		{"a;b", Target{}, false},
		{"a\nb", Target{}, false},
		{"démo", Target{}, false},
		{"dem\u043e", Target{}, false}, // a Cyrillic o
		{"\u202edemo", Target{}, false},
	} {
		got, err := ParseTarget(c.in)
		if (err == nil) != c.ok || got != c.want {
			t.Errorf("ParseTarget(%q) = %v, %v; want %v, ok %v", c.in, got, err, c.want, c.ok)
		}
		if err != nil && !errors.Is(err, &Error{Code: CodeUsage}) {
			t.Errorf("ParseTarget(%q): %v is no usage error", c.in, err)
		}
	}
}

func TestParseSandboxRefusesReserved(t *testing.T) {
	for _, name := range []string{"sandboxd", "root", "admin", "git", "new"} {
		if _, err := ParseSandbox(name); err == nil {
			t.Errorf("ParseSandbox(%q) gave no error", name)
		}
	}
	if _, err := ParseSandbox("demo"); err != nil {
		t.Error(err)
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"demo", "demo~build", "a~b~c", "-", "~", strings.Repeat("x", 70)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTarget(s)
		if err != nil {
			return
		}
		for _, part := range []string{got.Sandbox, got.Session} {
			if part == "" || len(part) > 63 ||
				strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
				part[0] == '-' {
				t.Fatalf("ParseTarget(%q) let %q through", s, part)
			}
		}
		if again, err := ParseTarget(got.String()); err != nil || again != got {
			t.Errorf("%q → %v → %q → %v, %v", s, got, got.String(), again, err)
		}
	})
}
