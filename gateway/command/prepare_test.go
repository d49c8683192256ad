package command

import (
	"strings"
	"testing"
)

// prepare needs setup commands, and a backend that saves their result.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		code int
		says string
		args []string
	}{
		{2, "setup is required", nil},
		{2, "--network \"open\"", []string{"--setup=true", "--network=open"}},
		{125, "setup: ", []string{"--setup=true"}},
	} {
		code, out, errs := w.command(append([]string{"prepare"}, tt.args...)...)
		if code != tt.code || !strings.Contains(errs, tt.says) {
			t.Errorf("%q: %d, %q, %q; want %d and %q", tt.args, code, out, errs, tt.code, tt.says)
		}
	}
}
