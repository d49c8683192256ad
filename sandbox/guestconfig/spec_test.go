package guestconfig

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*sandbox.Spec)
		want   string // text of the error; empty: valid
	}{
		{"defaults", func(*sandbox.Spec) {}, ""},
		{"all set", func(s *sandbox.Spec) {
			s.Network, s.User, s.Env = sandbox.NetworkBridge, "1000:1000", []string{"A=", "B=c=d"}
			s.Limits = sandbox.Limits{Memory: 64 << 20, CPUs: 0.5, PIDs: 100, Shm: 1 << 20,
				NoFile: 1024}
			s.Entrypoint, s.Trust = sandbox.EntrypointOff, sandbox.TrustImage
		}, ""},
		{"no id", func(s *sandbox.Spec) { s.ID = "" }, "DNS label"},
		{"id that is a path", func(s *sandbox.Spec) { s.ID = "../x" }, "DNS label"},
		{"id with a newline", func(s *sandbox.Spec) { s.ID = "x\n" }, "DNS label"},
		{"id of 33", func(s *sandbox.Spec) { s.ID = strings.Repeat("x", 33) }, "DNS label"},
		{"filtered", func(s *sandbox.Spec) { s.Network = sandbox.NetworkFiltered }, ""},
		{"allowlist", func(s *sandbox.Spec) { s.Network = sandbox.NetworkAllowlist }, ""},
		{"host network", func(s *sandbox.Spec) { s.Network = "host" }, "must be none"},
		{"another container's network", func(s *sandbox.Spec) { s.Network = "container:x" }, "must be none"},
		{"entrypoint", func(s *sandbox.Spec) { s.Entrypoint = "on" }, "entrypoint"},
		{"trust", func(s *sandbox.Spec) { s.Trust = "me" }, "trust"},
		{"user with a newline", func(s *sandbox.Spec) { s.User = "root\nx" }, "user"},
		{"user with two groups", func(s *sandbox.Spec) { s.User = "a:b:c" }, "user"},
		{"variable without a value", func(s *sandbox.Spec) { s.Env = []string{"A"} }, "NAME=VALUE"},
		{"variable without a name", func(s *sandbox.Spec) { s.Env = []string{"=a"} }, "NAME=VALUE"},
		{"variable with NUL", func(s *sandbox.Spec) { s.Env = []string{"A=\x00"} }, "NUL"},
		{"too many variables", func(s *sandbox.Spec) { s.Env = make([]string, maxEnv+1) }, "at most 256"},
		{"too long variables", func(s *sandbox.Spec) { s.Env = []string{"A=" + strings.Repeat("x", maxEnvLen)} }, "more than"},
		{"volume", func(s *sandbox.Spec) { s.Volume = sandbox.Volume{Size: 1 << 30, Path: "/root"} }, ""},
		{"volume anywhere", func(s *sandbox.Spec) { s.Volume.Size = 1 << 30 }, ""},
		{"small volume", func(s *sandbox.Spec) { s.Volume.Size = 1 }, "at least 1m"},
		{"volume without a size", func(s *sandbox.Spec) { s.Volume.Path = "/x" }, "at least 1m"},
		{"volume in a relative directory", func(s *sandbox.Spec) {
			s.Volume = sandbox.Volume{Size: 1 << 30, Path: "x"}
		}, "absolute path"},
		{"volume beside a directory", func(s *sandbox.Spec) {
			s.Volume = sandbox.Volume{Size: 1 << 30, Path: "/x/../dev"}
		}, "absolute path"},
		{"volume over everything", func(s *sandbox.Spec) {
			s.Volume = sandbox.Volume{Size: 1 << 30, Path: "/"}
		}, "not below"},
		{"volume over the guest", func(s *sandbox.Spec) {
			s.Volume = sandbox.Volume{Size: 1 << 30, Path: "/dev/.sandboxd"}
		}, "not below"},
		{"negative memory", func(s *sandbox.Spec) { s.Limits.Memory = -1 }, "memory"},
		{"little memory", func(s *sandbox.Spec) { s.Limits.Memory = 1 << 20 }, "memory"},
		{"negative cpus", func(s *sandbox.Spec) { s.Limits.CPUs = -1 }, "cpus"},
		{"few pids", func(s *sandbox.Spec) { s.Limits.PIDs = 10 }, "pids"},
		{"unlimited pids", func(s *sandbox.Spec) { s.Limits.PIDs = -1 }, "pids"},
		{"many pids", func(s *sandbox.Spec) { s.Limits.PIDs = 1 << 40 }, "pids"},
		{"negative shm", func(s *sandbox.Spec) { s.Limits.Shm = -1 }, "shm"},
		{"few files", func(s *sandbox.Spec) { s.Limits.NoFile = 3 }, "nofile: 3 is out of bounds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := sandbox.Spec{ID: "s1"}
			tt.change(&spec)
			got, err := Check(spec)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got error %v, want none", err)
			case tt.want == "" && got.Network == "":
				t.Errorf("got %+v, want its defaults filled in", got)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got error %v, want one with %q in it", err, tt.want)
			}
			if errors.Is(err, sandbox.ErrUnsupported) {
				t.Errorf("error %v wraps ErrUnsupported, want an invalid spec", err)
			}
		})
	}
}
