//go:build linux

package proc

import (
	"os"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// Only a shell at its prompt counts: no script, and no program that a shell runs.
func TestShellAtPrompt(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/bin/cat", dir+"/bash"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		argv  []string
		typed string
		want  string
	}{
		{"bash", []string{"bash", "--norc"}, "", "bash"},
		{"bash as sh", []string{"bash", "--norc", "--posix"}, "", "bash"},
		{"zsh", []string{"zsh", "-f"}, "", "zsh"},
		{"dash", []string{"dash"}, "", "dash"},
		{"ash", []string{"busybox", "ash"}, "", "ash"},
		{"bash in bash", []string{"bash", "--norc"}, "bash --norc\n", "bash"},
		{"dash in zsh", []string{"zsh", "-f"}, "dash\n", "dash"},
		{"behind script", []string{"script", "-qc", "bash --norc", "/dev/null"}, "", "bash"},
		{"a script that reads a line", []string{"bash", "-c", "read x"}, "", ""},
		{"a script that edits a line", []string{"bash", "-c", "read -e x"}, "", ""},
		{"a script that ignores TERM", []string{"bash", "-c", "trap '' TERM INT; read -e x"}, "", ""},
		{"a line that an interactive shell reads", []string{"bash", "--norc"}, "read x\n", ""},
		{"the same in dash", []string{"dash"}, "read x\n", ""},
		{"a program that has its name", []string{dir + "/bash"}, "", ""},
		{"python", []string{"python3", "-q"}, "", ""},
		{"a child", []string{"bash", "--norc"}, "cat\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			needs(t, tt.argv[0])
			x := open(t, tt.argv...)
			got := x.until("reads", func(f session.Facts) bool { return f.Blocked })
			if tt.typed != "" {
				before := got
				x.typ(tt.typed)
				got = x.until("reads again", func(f session.Facts) bool {
					return f.Blocked && (f.Pid != before.Pid || f.Runs != before.Runs)
				})
			}
			name := ""
			if got.Shell != nil {
				name = got.Shell.Name
				if got.Shell.PID != got.Pid || got.Shell.UID != os.Geteuid() {
					t.Errorf("%+v of process %d", got.Shell, got.Pid)
				}
			}
			if name != tt.want {
				t.Errorf("Shell is %q, want %q: %s, %v", name, tt.want, got.Why, got.Argv)
			}
		})
	}
}
