package docker

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/sandbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// What a container may do changes only together with a golden file. For the engine, allowlist and
// filtered are the same.
func TestCreateRequest(t *testing.T) {
	base := plan{
		Logs:   "local",
		Daemon: "d1", ID: "s1", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Image: "sha256:0123", Network: sandbox.NetworkNone,
		Limits:    sandbox.DefaultLimits,
		GuestFile: "/state/guest/guest-0123456789ab", RunDir: "/state/instances/s1/run",
		TrustDir: "/state/instances/x/trust",
	}
	listed, filtered := base, base
	listed.Network, filtered.Network = sandbox.NetworkAllowlist, sandbox.NetworkFiltered
	if diff := cmp.Diff(createRequest(filtered), createRequest(listed),
		cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("allowlist differs from filtered (-filtered +allowlist):\n%s", diff)
	}
	proxied := filtered
	proxied.Via = sandbox.ViaProxy // for the engine, no network
	if diff := cmp.Diff(createRequest(base), createRequest(proxied),
		cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("a proxy differs from none (-none +proxy):\n%s", diff)
	}
	for _, tt := range []struct {
		name   string
		change func(*plan)
	}{
		{"none", func(*plan) {}},
		{"bridge", func(p *plan) { p.Network = sandbox.NetworkBridge }},
		{"filtered", func(p *plan) { p.Network = sandbox.NetworkFiltered }},
		{"sized", func(p *plan) { p.Sized = true }},
		{"sudo", func(p *plan) { p.Sudo = true }},
		{"mounts", func(p *plan) {
			p.Mounts = []sandbox.Mount{{Path: "/home/u/a, b"}, {Path: "/srv/data", ReadOnly: true}}
		}},
		{"files", func(p *plan) {
			p.Network, p.Filter, p.Resolver = sandbox.NetworkFiltered,
				"/state/guest/seccomp-0123456789ab", "/state/guest/resolv-0123456789ab"
		}},
		{"remote", func(p *plan) {
			p.Network, p.Via = sandbox.NetworkFiltered, sandbox.ViaProxy
			if err := p.planRemote(facts{remote: true}, sandbox.Spec{}); err != nil {
				t.Error(err)
			}
		}},
		{"bare", func(p *plan) { p.TrustDir, p.Limits.NoFile, p.Runtime = "", 0, "runsc" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := base
			tt.change(&p)
			got, err := json.MarshalIndent(createRequest(p), "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			path := filepath.Join("testdata", "request-"+tt.name+".json")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("request differs from %s (-want +got); go test -update rewrites it:\n%s",
					path, diff)
			}
		})
	}
}
