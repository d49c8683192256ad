package dockerfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// packed packs a directory, while do runs again and again if it is not nil, and returns the names.
func packed(t *testing.T, root *os.Root, do func()) (names []string, err error) {
	t.Helper()
	c, err := openContext(root)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	times := 1
	if do != nil {
		times = 300
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do()
				}
			}
		})
	}
	for range times {
		var archive bytes.Buffer
		if _, err = c.pack(ctx, &archive, "."); err == nil {
			for name := range entries(t, &archive) {
				names = append(names, name)
			}
		}
	}
	close(stop)
	wg.Wait()
	return names, err
}

// If a sandbox swaps files while the directory is read, pack neither waits for them nor follows
// them out of the directory.
func TestContextSwapped(t *testing.T) {
	root := directory(t, map[string]string{"file": "mine", "dir/x": "mine"})
	at := func(name string) string { return filepath.Join(root.Name(), name) }
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("swordfish"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, swap := range map[string]func(){
		"a FIFO": func() {
			_ = os.Remove(at("file"))
			_ = syscall.Mkfifo(at("file"), 0o600)
			_ = os.Remove(at("file"))
			_ = os.WriteFile(at("file"), []byte("mine"), 0o600)
		},
		"a link": func() {
			_ = os.Remove(at("file"))
			_ = os.Symlink(secret, at("file"))
			_ = os.Remove(at("file"))
			_ = os.WriteFile(at("file"), []byte("mine"), 0o600)
		},
		"a directory by a link": func() {
			_ = os.Rename(at("dir"), at("aside"))
			_ = os.Symlink(filepath.Dir(secret), at("dir"))
			_ = os.Remove(at("dir"))
			_ = os.Rename(at("aside"), at("dir"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			names, _ := packed(t, root, swap) // a test that waits for a FIFO ends by its timeout
			if slices.Contains(names, "dir/secret") {
				t.Error("a file of another directory is in it")
			}
		})
	}
}

// A .dockerignore cannot cost the daemon much time or memory, and of a directory only files,
// directories and links are packed.
func TestHostileContext(t *testing.T) {
	root := directory(t, map[string]string{".dockerignore": strings.Repeat("*a*b*c*d\n", 5000)})
	if _, err := openContext(root); err == nil ||
		!strings.Contains(err.Error(), "more than 1000 lines") {
		t.Errorf("5000 patterns: %v", err)
	}
	root = directory(t, map[string]string{".dockerignore": strings.Repeat("a", 200<<10)})
	if _, err := openContext(root); err == nil {
		t.Error("200 KiB of patterns were taken")
	}
	root = directory(t, nil)
	sparse := filepath.Join(root.Name(), "sparse")
	for name, err := range map[string]error{
		"sparse": errors.Join(root.WriteFile("sparse", nil, 0o600), os.Truncate(sparse, 1<<40)),
		"fifo":   syscall.Mkfifo(filepath.Join(root.Name(), "fifo"), 0o600),
		"socket": syscall.Mknod(filepath.Join(root.Name(), "socket"), syscall.S_IFSOCK|0o600, 0),
		"link":   root.Symlink("/etc/shadow", "link"),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	if _, err := packed(t, root, nil); err == nil ||
		!strings.Contains(err.Error(), "more than 1g") {
		t.Errorf("a sparse file of 1 TiB: %v", err)
	}
	if err := root.Remove("sparse"); err != nil {
		t.Fatal(err)
	}
	names, err := packed(t, root, nil)
	slices.Sort(names)
	if err != nil || fmt.Sprint(names) != "[. link]" {
		t.Errorf("got %q, %v", names, err)
	}
	for name, text := range map[string]string{"out": "../x\n/etc\n..\n!../../etc/shadow\n",
		"everything": "**\n!link\n", "itself": ".dockerignore\nDockerfile\n"} {
		if err := root.WriteFile(".dockerignore", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if names, err := packed(t, root, nil); err != nil ||
			slices.ContainsFunc(names, func(n string) bool {
				return strings.Contains(n, "..") || strings.HasPrefix(n, "/")
			}) {
			t.Errorf("%s: got %q, %v", name, names, err)
		}
	}
}
