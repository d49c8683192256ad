package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestSpecWords(t *testing.T) {
	for _, tt := range []struct {
		spec Spec
		want string
	}{
		{Spec{}, "new --json"},
		{Spec{Name: "web", Reuse: true}, "new --json --if-missing -- web"},
		{Spec{Image: "x", Network: sandbox.NetworkAllowlist, Via: sandbox.ViaTUN,
			Allow: []string{"*.example.org:443", "-v"}},
			"new --json --image=x --network=allowlist=tun --allow=*.example.org:443 --allow=-v"},
		{Spec{Limits: sandbox.Limits{Memory: 512 << 20, CPUs: 0.5}},
			"new --json --memory=512m --cpus=0.5"},
		{Spec{Build: &Build{Dockerfile: "/d", Context: "/c", Target: "t", Args: []string{"A=b"}}},
			"new --json --dockerfile=/d --build-context=/c --build-target=t --build-arg=A=b"},
		{Spec{User: "1000:1000", Sudo: true, Env: []string{"A=b c"},
			Mounts: []sandbox.Mount{{Path: "/w"}, {Path: "/r", ReadOnly: true},
				{Path: "/s", Target: "/d"}, {Path: "/s", Target: "/e", ReadOnly: true}},
			Workdir: "/w"},
			"new --json --user=1000:1000 --sudo --env=A=b c --mount=/w --mount=/r:ro " +
				"--volume=/s:/d --volume=/s:/e:ro --workdir=/w"},
		{Spec{Volume: sandbox.Volume{Size: 10 << 30, Path: "/home/ann"}},
			"new --json --volume=10g:/home/ann"},
		{Spec{Volume: sandbox.Volume{Size: 1 << 20}}, "new --json --volume=1m"},
		{Spec{About: "notes", TTL: 90 * time.Minute, DeleteAfter: -1},
			"new --json --about=notes --ttl=1h30m0s --delete-after=0"},
		{Spec{Isolation: "runsc", EngineOptions: []string{"hostname=box"},
			Trust: sandbox.TrustImage, Entrypoint: sandbox.EntrypointOff},
			"new --json --isolation=runsc --docker-option=hostname=box --trust=image " +
				"--no-entrypoint"},
		{Spec{Progress: new(strings.Builder)}, "new --json --progress"},
	} {
		got, err := tt.spec.words()
		if err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("got %q, %v, want %q", got, err, tt.want)
		}
	}
}

func TestCommandError(t *testing.T) {
	for _, tt := range []struct {
		code           int
		stdout, stderr string
		want           *Error // nil is no error
	}{
		{0, "{}", "note: x", nil},
		{125, `{"error":{"code":"exists","message":"m","hint":"h"}}`, "", &Error{Code: CodeExists, Message: "m", Hint: "h"}},
		{2, "", "sandboxd: unknown command fly\n",
			&Error{Code: CodeUsage, Message: "new: exit code 2: unknown command fly"}},
		{125, `{"error":`, "sandboxd: it failed", &Error{Code: CodeUnavailable, Message: "new: exit code 125: it failed"}},
	} {
		err := CommandError("new", tt.code, []byte(tt.stdout), tt.stderr)
		got, _ := errors.AsType[*Error](err)
		if (err == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%d %q: got %+v, want %+v", tt.code, tt.stdout, err, tt.want)
		}
	}
}

// Endless output of a daemon ends the command, and only the first messages are stored.
func TestDaemonAnswersAreBounded(t *testing.T) {
	var cause error
	a := &answer{cancel: func(err error) { cause = err }}
	block := make([]byte, 1<<20)
	var err error
	for err == nil && a.Len() < 2*maxAnswer {
		_, err = a.Write(block)
	}
	if a.Len() > maxAnswer || !errors.Is(err, &Error{Code: CodeUnavailable}) ||
		!errors.Is(err, cause) {
		t.Errorf("%d bytes, %v, cause %v", a.Len(), err, cause)
	}
	var passed strings.Builder
	o := &opening{next: &passed}
	for range 3 {
		if n, err := fmt.Fprint(o, strings.Repeat("x", maxMessages)); n != maxMessages ||
			err != nil {
			t.Errorf("got %d, %v", n, err)
		}
	}
	if o.Len() != maxMessages || passed.Len() != 3*maxMessages {
		t.Errorf("kept %d, passed on %d", o.Len(), passed.Len())
	}
}

// TestTraceOfEarlierGuest checks the error for a guest that does not know the request.
func TestTraceOfEarlierGuest(t *testing.T) {
	err := noTraces(wire.Errorf(wire.CodeUsage, "request %q is not known", "trace"))
	if !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) ||
		!strings.Contains(err.Error(), "earlier version") {
		t.Errorf("got %v", err)
	}
	denied := &wire.Error{Code: wire.CodeDenied, Message: "the screen is private"}
	if err := noTraces(denied); !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
}
