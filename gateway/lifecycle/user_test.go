package lifecycle

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestMayBecome(t *testing.T) {
	writable, readOnly := sandbox.Mount{Path: "/a"}, sandbox.Mount{Path: "/b", ReadOnly: true}
	for _, tt := range []struct {
		name          string
		spec          sandbox.Spec
		user          string // of the instance
		owner, shared bool   // wanted
	}{
		{"root of the image", sandbox.Spec{}, "root", true, true},
		{"user of the image", sandbox.Spec{}, "app", true, false},
		{"user of the image with sudo", sandbox.Spec{Sudo: true}, "app", true, true},
		{"given root", sandbox.Spec{User: "0:0"}, "0:0", true, true},
		{"given a user", sandbox.Spec{User: "1000"}, "1000", false, false},
		{"given a user with sudo", sandbox.Spec{User: "1000", Sudo: true}, "1000", true, true},
		{"given a user and a mount", sandbox.Spec{User: "7", Mounts: []sandbox.Mount{writable}},
			"7",
			false, false},
		{"owner of a mount", sandbox.Spec{Mounts: []sandbox.Mount{readOnly, writable}}, "1000:1000",
			true, true},
		{"read-only for root", sandbox.Spec{Mounts: []sandbox.Mount{readOnly}}, "root", true, true},
		{"read-only for another", sandbox.Spec{Mounts: []sandbox.Mount{readOnly}}, "app",
			false, false},
	} {
		f := Record{Asked: Asked{Spec: tt.spec}, Instance: sandbox.Instance{User: tt.user}}
		if got := mayBecome(f, true); got != tt.owner {
			t.Errorf("%s: the owner may = %v, want %v", tt.name, got, tt.owner)
		}
		if got := mayBecome(f, false); got != tt.shared {
			t.Errorf("%s: others may = %v, want %v", tt.name, got, tt.shared)
		}
	}
}
