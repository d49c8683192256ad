package page

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// The vendored files are those that scripts/page-vendor copied from the packages of its lock file:
// unchanged, and no others.
func TestVendoredFiles(t *testing.T) {
	const tools = "../../../scripts/tools/page/"
	noted, err := os.ReadFile(tools + "vendor.sha256")
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for line := range strings.Lines(string(noted)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		want[name] = sum
	}
	check := func(name string, content []byte, err error) {
		t.Helper()
		sum := sha256.Sum256(content)
		if got := hex.EncodeToString(sum[:]); err != nil || got != want[name] {
			t.Errorf(
				"%s has the checksum %s, want %q: scripts/page-vendor takes it from its package "+
					"anew (%v)", name, got, want[name], err)
		}
		delete(want, name)
	}
	lock, err := os.ReadFile(tools + "package-lock.json")
	check("package-lock.json", lock, err)
	vendored, err := fs.ReadDir(files, "static/vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range vendored {
		content, err := fs.ReadFile(files, "static/vendor/"+f.Name())
		check(f.Name(), content, err)
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}
