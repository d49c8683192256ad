package lifecycle

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestConfined(t *testing.T) {
	writable, readOnly := sandbox.Mount{Path: "/a"}, sandbox.Mount{Path: "/b", ReadOnly: true}
	for _, tt := range []struct {
		name   string
		spec   sandbox.Spec
		user   string // of the instance
		wanted bool
	}{
		{"root of the image", sandbox.Spec{}, "root", false},
		{"user of the image", sandbox.Spec{}, "app", false},
		{"given root", sandbox.Spec{User: "0:0"}, "0:0", false},
		{"given a user", sandbox.Spec{User: "1000"}, "1000", true},
		{"given a user with sudo", sandbox.Spec{User: "1000", Sudo: true}, "1000", false},
		{"owner of a mount", sandbox.Spec{Mounts: []sandbox.Mount{readOnly, writable}}, "1000:1000",
			false},
		{"read-only for root", sandbox.Spec{Mounts: []sandbox.Mount{readOnly}}, "root", false},
		{"read-only for another", sandbox.Spec{Mounts: []sandbox.Mount{readOnly}}, "app",
			true},
	} {
		f := Record{Asked: Asked{Spec: tt.spec}, Instance: sandbox.Instance{User: tt.user}}
		if got := confined(f); got != tt.wanted {
			t.Errorf("%s: confined = %v, want %v", tt.name, got, tt.wanted)
		}
	}
}
