package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildGuest builds the guest program as it is shipped, static, in dir, and returns its path. With
// SANDBOXD_TEST_GUEST it returns that path instead, for test programs on a machine without Go.
func BuildGuest(dir string) (string, error) {
	if path := os.Getenv("SANDBOXD_TEST_GUEST"); path != "" {
		return path, nil
	}
	out := filepath.Join(dir, "sandboxd-guest")
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath",
		"-ldflags=-s -w", "-o", out,
		"github.com/sandboxd/sandboxd/cmd/sandboxd-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build guest: %w\n%s", err, text)
	}
	return out, nil
}
