package docker

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

func TestParseImage(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", sandbox.DefaultImage},
		{"debian", "debian:latest"},
		{"docker.io/library/debian:12", "debian:12"},
		{"ghcr.io/a/b", "ghcr.io/a/b:latest"},
		{"localhost:5000/a@sha256:" + strings.Repeat("a", 64), "localhost:5000/a@sha256:" + strings.Repeat("a", 64)},
		{"A", "error"},
		{"-x", "error"},
		{"a:b:c", "error"},
		{"a\nb", "error"},
	} {
		got, err := machine.ParseImage(tt.in)
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%q: got %q (%v), want %q", tt.in, got, err, tt.want)
		}
	}
}

func FuzzParseImage(f *testing.F) {
	f.Add("debian")
	f.Add("a/b:c@sha256:0")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := machine.ParseImage(s)
		if err != nil {
			return
		}
		if again, err := machine.ParseImage(got); err != nil || again != got {
			t.Errorf("%q became %q, which becomes %q (%v)", s, got, again, err)
		}
	})
}
