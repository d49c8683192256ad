package command

import (
	"strings"
	"testing"
)

// prepare needs setup commands. With a backend that does not save their result, programs learn
// which commands to run in each sandbox.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		code int
		says string
		args []string
	}{
		{2, "setup is required", nil},
		{2, "--network \"open\"", []string{"--setup=true", "--network=open"}},
		{125, "are not saved as images", []string{"--setup=true"}},
		{125, "are not saved as images", []string{"--setup=true", "--json"}},
	} {
		code, out, errs := w.command(append([]string{"prepare"}, tt.args...)...)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%q: %d, %q, %q; want %d and %q", tt.args, code, out, errs, tt.code, tt.says)
		}
	}
	code, out, errs := w.command("prepare", "--setup=a", "--setup=b <c", "--image=x", "--json",
		"--or-setup")
	if want := `{"image":"x","setup":["a","b <c"]}` + "\n"; code != 0 || out != want {
		t.Errorf("%d, %q, %q; want %q", code, out, errs, want)
	}
}
