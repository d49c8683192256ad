package main

import (
	"os/exec"
	"testing"
)

// The client builds for other systems. What needs Linux is in files of its own.
func TestBuildsElsewhere(t *testing.T) {
	for _, to := range [][2]string{{"darwin", "arm64"}, {"windows", "amd64"}} {
		t.Run(to[0], func(t *testing.T) {
			build := exec.CommandContext(t.Context(), "go", "build", "-o", t.TempDir(), ".")
			build.Env = append(build.Environ(), "GOOS="+to[0], "GOARCH="+to[1], "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
