//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The directory of a new volume is given to the user, if root has it. One that is in use is not.
func TestGiveVolume(t *testing.T) {
	for name, tt := range map[string]struct {
		files []string
		given bool
	}{
		"new":                 {nil, true},
		"new, of ext4":        {[]string{"lost+found"}, true},
		"with a file":         {[]string{"notes"}, false},
		"with files, of ext4": {[]string{"lost+found", "notes"}, false},
	} {
		dir := filepath.Join(t.TempDir(), "files")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range tt.files {
			if err := os.Mkdir(filepath.Join(dir, file), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		link := dir + "-link"
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		want := uint32(os.Getuid()) // without root's rights, nothing is root's here
		owner := func() uint32 {
			info, err := os.Lstat(dir)
			if err != nil {
				t.Fatal(err)
			}
			return info.Sys().(*syscall.Stat_t).Uid
		}
		giveVolume(link, Account{UID: 1234, GID: 1235})
		if got := owner(); got != want {
			t.Errorf("%s: a link leads to user %d", name, got)
		}
		if tt.given && want == 0 {
			want = 1234
		}
		giveVolume(dir, Account{UID: 1234, GID: 1235})
		giveVolume(dir, Account{UID: 4321, GID: 4321}) // it is in use
		if got := owner(); got != want {
			t.Errorf("%s: it belongs to user %d, want %d", name, got, want)
		}
	}
	giveVolume(filepath.Join(t.TempDir(), "missing"), Account{UID: 1234})
}
