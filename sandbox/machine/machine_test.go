package machine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestIsShell(t *testing.T) {
	for _, tt := range []struct {
		argv string
		want bool
	}{
		{"", true}, {"sh", true}, {"/bin/bash", true}, {"bash -l", true}, {"/usr/bin/zsh --login", true},
		{"bash -c postgres", false}, {"sh /entrypoint.sh", false}, {"postgres", false}, {"/bin/sh-server", false}, {"python3", false},
	} {
		if got := isShell(strings.Fields(tt.argv)); got != tt.want {
			t.Errorf("%q: got %v, want %v", tt.argv, got, tt.want)
		}
	}
}

func TestGuestConfig(t *testing.T) {
	config := ocispec.ImageConfig{User: "postgres",
		WorkingDir: "/data", StopSignal: "SIGINT",
		Env:        []string{"PATH=/usr/lib/postgresql/bin", "LANG=C", "PIP_CERT=/image.pem"},
		Entrypoint: []string{"docker-entrypoint.sh"}, Cmd: []string{"postgres"}}
	got := GuestConfig(sandbox.Spec{ID: "s1", Name: "demo",
		Env: []string{"LANG=C.UTF-8", "NEW=1=2", "GIT_SSL_CAINFO="}}, config, GuestCA)
	want := wire.GuestConfig{Version: wire.Version, Name: "demo", Socket: "/.sandboxd/run/s",
		User: "postgres", Workdir: "/data", StopSignal: "SIGINT",
		Entrypoint: []string{"docker-entrypoint.sh", "postgres"},
		Env: []string{"PATH=/usr/lib/postgresql/bin", "LANG=C.UTF-8",
			"PIP_CERT=/.sandboxd/trust/ca.crt", "SSL_CERT_FILE=/.sandboxd/trust/ca.crt",
			"REQUESTS_CA_BUNDLE=/.sandboxd/trust/ca.crt",
			"NODE_EXTRA_CA_CERTS=/.sandboxd/trust/ca.crt",
			"GIT_SSL_CAINFO=", "CURL_CA_BUNDLE=/.sandboxd/trust/ca.crt",
			"CARGO_HTTP_CAINFO=/.sandboxd/trust/ca.crt", "NEW=1=2"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}

	config.Cmd, config.Entrypoint = []string{"bash"}, nil
	got = GuestConfig(sandbox.Spec{ID: "s1", User: "1000"}, config, "")
	if got.Entrypoint != nil || got.User != "1000" || got.Name != "" || len(got.Env) != 3 {
		t.Errorf("shell image, own user, no name (the guest learns it later), no trust: got %+v",
			got)
	}
	config.Cmd = []string{"postgres"}
	if got = GuestConfig(sandbox.Spec{ID: "s1", Entrypoint: sandbox.EntrypointOff}, config,
		""); got.Entrypoint != nil {
		t.Errorf("entrypoint off: got %q", got.Entrypoint)
	}
	if got = GuestConfig(sandbox.Spec{ID: "s1"}, ocispec.ImageConfig{}, ""); len(
		got.Env) != 1 || got.Env[0] != "PATH="+guestconfig.DefaultPath {
		t.Errorf("empty image: got variables %q, want the default PATH", got.Env)
	}
}
