package main

import (
	"os/exec"
	"testing"
)

// The client and all packages build for other systems, and so do their tests: what needs Linux is
// in files of its own.
func TestBuildsElsewhere(t *testing.T) {
	for _, to := range [][2]string{{"darwin", "arm64"}, {"windows", "amd64"}} {
		t.Run(to[0], func(t *testing.T) {
			for _, args := range [][]string{
				{"build", "-o", t.TempDir(), "."},
				{"vet", "../../..."},
			} {
				cmd := exec.CommandContext(t.Context(), "go", args...)
				cmd.Env = append(cmd.Environ(), "GOOS="+to[0], "GOARCH="+to[1], "CGO_ENABLED=0")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
		})
	}
}
