package dockerfile

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entries reads an archive: the text of files, and targets of links, by name.
func entries(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	got := make(map[string]string)
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d %q", h.Name, h.Uid, h.Uname)
		}
		got[h.Name] = h.Linkname + string(text)
	}
}

func opened(t *testing.T, root *os.Root) *buildContext {
	t.Helper()
	c, err := openContext(root)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPack(t *testing.T) {
	root := directory(t, map[string]string{"a": "1", "sub/b": "2", "sub/keep/c": "3",
		"secret.pem": "4", ".dockerignore": "*.pem\nsub\n!sub/keep\n"})
	if err := os.Symlink("/etc/passwd", filepath.Join(root.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub/keep", filepath.Join(root.Name(), "to")); err != nil {
		t.Fatal(err)
	}
	c := opened(t, root)
	for source, want := range map[string]map[string]string{
		".": {".": "", "a": "1", "sub/keep/": "", "sub/keep/c": "3", "link": "/etc/passwd",
			"to": "sub/keep", ".dockerignore": "*.pem\nsub\n!sub/keep\n"},
		"/a":           {"a": "1"},
		"../a":         {"a": "1"}, // as with docker build
		"sub/keep/":    {".": "", "c": "3"},
		"to":           {".": "", "c": "3"},
		"to/c":         {"c": "3"},
		"sub/*":        {".": "", "c": "3"},
		"[al]*":        {"a": "1"},
		"secret.pem":   nil,
		"*.pem":        nil,
		"sub/b":        nil,
		"nosuch":       nil,
		"link":         nil, // leads out
		"link/nothing": nil,
	} {
		var archive bytes.Buffer
		_, err := c.pack(t.Context(), &archive, source)
		if source == "[al]*" { // the link matches, too
			if err == nil {
				t.Errorf("%s: packed a link that leads out", source)
			}
			continue
		}
		if (err == nil) != (want != nil) {
			t.Errorf("%s: %v", source, err)
		}
		if err != nil {
			continue
		}
		if diff := cmp.Diff(want, entries(t, &archive)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", source, diff)
		}
	}
}

// The checksum changes with what a step can see, and with nothing else.
func TestSum(t *testing.T) {
	root := directory(t, map[string]string{"a": "1", "secret.pem": "4", ".dockerignore": "*.pem\n"})
	if err := os.Symlink("/etc/passwd", filepath.Join(root.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	c := opened(t, root)
	sums := make(map[string]string)
	last := ""
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"nothing", func() error { return nil }},
		{"content", func() error { return root.WriteFile("a", []byte("9"), 0o644) }},
		{"mode", func() error { return root.Chmod("a", 0o755) }},
		{"name", func() error { return root.Rename("a", "z") }},
		{"link", func() error { return errors.Join(root.Remove("link"), root.Symlink("a", "link")) }},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		sum, err := c.pack(t.Context(), io.Discard, ".")
		if err != nil || sums[sum] != "" {
			t.Errorf("another %s: %v, and the sum of %s", change.what, err, sums[sum])
		}
		sums[sum], last = change.what, sum
	}
	if err := root.WriteFile("secret.pem", []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if again, err := c.pack(t.Context(), io.Discard, "."); err != nil || again != last {
		t.Errorf("an ignored file changed the checksum: %v", err)
	}
}
