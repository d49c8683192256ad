package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

// What a container may do changes only together with a golden file.
func TestBundle(t *testing.T) {
	base := plan{ID: "s1", Ref: "0123", Runtime: "runc", Network: sandbox.NetworkNone,
		Limits: sandbox.DefaultLimits, Swap: true, Root: "/state/s1/root",
		GuestFile: "/state/guest/guest-0123456789ab", RunDir: "/state/s1/run",
		TrustDir: "/state/s1/trust", NamesDir: "/state/s1/names"}
	proxied := base
	proxied.Network, proxied.Via = sandbox.NetworkFiltered, sandbox.ViaProxy
	if diff := cmp.Diff(bundle(base), bundle(proxied)); diff != "" {
		t.Errorf("a proxy differs from none (-none +proxy):\n%s", diff)
	}
	for name, change := range map[string]func(*plan){
		"none":     func(*plan) {},
		"filtered": func(p *plan) { p.Network, p.Via = sandbox.NetworkFiltered, sandbox.ViaTUN },
		"sudo":     func(p *plan) { p.Sudo, p.Profile = true, profile },
		"user": func(p *plan) {
			p.ByUser, p.Locked = true, map[string][]string{p.RunDir: {"nosuid", "nodev"}}
		},
		"bare": func(p *plan) { p.Swap, p.TrustDir, p.Host = false, "", "demo" },
		"mounts": func(p *plan) {
			p.Mounts = []sandbox.Mount{{Path: "/home/u/a, b"},
				{Path: "/srv/data", Target: "/data", ReadOnly: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := base
			change(&p)
			got, err := json.MarshalIndent(bundle(p), "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			golden := filepath.Join("testdata", "bundle-"+name+".json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-%s +got:\n%s", golden, diff)
			}
		})
	}
}
