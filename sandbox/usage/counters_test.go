package usage

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCounter(t *testing.T) {
	for _, tt := range []struct {
		name, text, key string
		want            int64
	}{
		{"version 1", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill", 3},
		{"version 2", "low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n", "oom_kill", 2},
		{"none", "oom_kill 0\n", "oom_kill", 0},
		{"a number", "4711\n", "", 4711},
		{"no limit", "max\n", "", 0},
		{"old kernel", "oom_kill_disable 0\n", "oom_kill", 0},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := counter(path, tt.key); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
	if got := counter("/nonexistent", ""); got != 0 {
		t.Errorf("no file: got %d, want 0", got)
	}
}
