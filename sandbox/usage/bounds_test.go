package usage

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestBounds(t *testing.T) {
	inf := math.Inf(1)
	for _, tt := range []struct {
		name, groups string
		files        map[string]string
		want         Bounds
	}{
		{"version 1", "4:memory:/docker/ref\n3:pids:/docker/ref\n2:cpu,cpuacct:/docker/ref\n",
			map[string]string{"memory/docker/ref/memory.limit_in_bytes": "67108864\n",
				"pids/docker/ref/pids.max":            "512\n",
				"cpu/docker/ref/cpu.cfs_quota_us":     "150000\n",
				"cpu/docker/ref/cpu.cfs_period_us":    "100000\n",
				"memory/docker/memory.limit_in_bytes": "4096\n"}, // of all containers
			Bounds{64 << 20, 512, 1.5}},
		{"version 2, programs below", "0::/user.slice/libpod-ref.scope/container\n",
			map[string]string{"user.slice/libpod-ref.scope/memory.max": "67108864\n",
				"user.slice/libpod-ref.scope/pids.max":             "512\n",
				"user.slice/libpod-ref.scope/cpu.max":              "200000 100000\n",
				"user.slice/libpod-ref.scope/container/memory.max": "max\n",
				"user.slice/libpod-ref.scope/container/cpu.max":    "max 100000\n"},
			Bounds{64 << 20, 512, 2}},
		{"the user's group, as with rootless Podman and version 1",
			"4:memory:/user.slice\n3:pids:/user.slice\n1:name=systemd:/libpod-ref\n",
			map[string]string{"memory/user.slice/memory.limit_in_bytes": "67108864\n",
				"pids/user.slice/pids.max": "512\n"},
			Bounds{inf, inf, inf}},
		{"no limits", "0::/ref\n", map[string]string{"ref/memory.max": "max\n",
			"ref/pids.max": "max\n", "ref/cpu.max": "max 100000\n"}, Bounds{inf, inf, inf}},
		{"nothing can be read", "4:memory:/ref\n3:pids:/ref\n2:cpu:/ref\n", nil,
			Bounds{inf, inf, inf}},
	} {
		root := t.TempDir()
		for name, text := range tt.files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := boundsIn(root, tt.groups, "ref"); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
