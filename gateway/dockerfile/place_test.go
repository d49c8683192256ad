package dockerfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// localFiles returns a client of a real SFTP server for this machine's files.
func localFiles(t *testing.T) *connect.Files {
	t.Helper()
	here, there := net.Pipe()
	server, err := sftp.NewServer(there)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve() }()
	files, err := connect.NewFiles(here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		files.Close()
		server.Close()
		<-served
	})
	return files
}

// tree returns the files of a directory: their text, or target, and unusual modes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := ""
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			text, err = os.Readlink(path)
			text = "-> " + text
		case mode.IsRegular():
			var b []byte
			b, err = os.ReadFile(path)
			text = string(b)
		default:
			name += "/"
		}
		if m := info.Mode(); m.IsRegular() && m != 0o644 {
			text += fmt.Sprintf(" %v", m)
		}
		got[name] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// self is the owner of what a test may write.
func self() string { return fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()) }

// archive is a tar archive of files by name; a target begins with "-> ", a hard link with "= ".
func archive(t *testing.T, files ...[2]string) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1])), Uid: os.Getuid(),
			Gid: os.Getgid()}
		if target, ok := strings.CutPrefix(f[1], "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, target, 0
		} else if target, ok := strings.CutPrefix(f[1], "= "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, target, 0
		} else if strings.HasSuffix(f[0], "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, f[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Files go where docker build puts them.
func TestPlace(t *testing.T) {
	inside := archive(t, [2]string{"d/", ""}, [2]string{"d/x", "1"}, [2]string{"l", "-> d/x"},
		[2]string{"h", "= d/x"}, [2]string{"../../out", "2"})
	files := map[string]string{"a": "1", "dir/b": "2", "dir/sub/c": "3", "x.tar": inside,
		"x.tgz": gzipped(t, inside), "text.gz": gzipped(t, "text"), "x.xz": "\xfd7zXZ\x00 and more", "b": "2",
		"arch/x.tar": inside, "arch/x.xz": "\xfd7zXZ\x00 and more", "vendor/keep": "k",
		"vendor/not": "n", ".dockerignore": "vendor\n!vendor/keep\n"}
	extracted := map[string]string{"to/": "", "to/d/": "", "to/d/x": "1", "to/l": "-> d/x",
		"to/h": "1", "to/out": "2"}
	for name, tt := range map[string]struct {
		line string // after COPY --chown or ADD --chown; paths are below the directory
		want map[string]string
		err  string
	}{
		"a file":               {"COPY a to", map[string]string{"to": "1"}, ""},
		"into a new directory": {"COPY a to/", map[string]string{"to/": "", "to/a": "1"}, ""},
		"into a directory":     {"COPY a had", map[string]string{"had/a": "1"}, ""},
		"by a link":            {"COPY a link", map[string]string{"had/a": "1"}, ""},
		"over a file":          {"COPY a had/old", map[string]string{"had/old": "1"}, ""},
		"over a link":          {"COPY a gone", map[string]string{"gone": "1"}, ""},
		"a directory":          {"COPY dir to", map[string]string{"to/": "", "to/b": "2", "to/sub/": "", "to/sub/c": "3"}, ""},
		"a directory into one": {"COPY dir had", map[string]string{"had/b": "2", "had/sub/": "", "had/sub/c": "3"}, ""},
		"several":              {"COPY a dir to", map[string]string{"to/": "", "to/a": "1", "to/b": "2", "to/sub/": "", "to/sub/c": "3"}, ""},
		"a pattern":            {"COPY [a] to", map[string]string{"to": "1"}, ""},
		"a mode":               {"COPY --chmod=4750 a to", map[string]string{"to": "1 urwxr-x---"}, ""},
		"a text with quotes": {"COPY <<E to\nmsg = \"it's $B\"\nE",
			map[string]string{"to": "msg = \"it's b\"\n"}, ""},
		"an empty text": {"COPY <<E to\nE", map[string]string{"to": ""}, ""},
		"a directory of archives": {"ADD arch to", map[string]string{"to/": "", "to/x.tar": inside,
			"to/x.xz": "\xfd7zXZ\x00 and more"}, ""},
		"an excluded directory": {"COPY vendor to", map[string]string{"to/": "", "to/keep": "k"}, ""},
		"several files to one":  {"COPY [ab] to", nil, "several files match"},
		"several to a directory": {"COPY [ab] to/", map[string]string{"to/": "", "to/a": "1",
			"to/b": "2"}, ""},
		"a text":                  {"COPY <<E to\n$B\nE", map[string]string{"to": "b\n"}, ""},
		"a directory over a file": {"COPY dir had/old", nil, "had/old: not a directory"},
		"a file over a directory": {"COPY dir clash", nil, "clash/b: a directory is in the way"},
		"an archive":              {"ADD x.tar to", extracted, ""},
		"a compressed archive":    {"ADD x.tgz to/", extracted, ""},
		"no archive":              {"ADD a to", map[string]string{"to": "1"}, ""},
		"a compressed text":       {"ADD text.gz to", map[string]string{"to": gzipped(t, "text")}, ""},
		"an archive by COPY":      {"COPY x.tar to", map[string]string{"to": inside}, ""},
		"another archive":         {"ADD x.xz to", nil, "archives by xz and zstd are not extracted"},
	} {
		dir := t.TempDir()
		old := map[string]string{"had/": "", "had/old": "0", "link": "-> had", "gone": "-> /nosuch",
			"clash/": "", "clash/b/": "", "clash/b/x": "0"}
		for _, make := range []error{os.Mkdir(dir+"/had", 0o755), os.WriteFile(dir+"/had/old",
			[]byte("0"), 0o644), os.Symlink("had", dir+"/link"), os.Symlink("/nosuch", dir+"/gone"),
			os.MkdirAll(dir+"/clash/b", 0o755),
			os.WriteFile(dir+"/clash/b/x", []byte("0"), 0o644)} {
			if make != nil {
				t.Fatal(make)
			}
		}
		kind, rest, _ := strings.Cut(tt.line, " ")
		r := request(t, "FROM base\nENV B=b\nWORKDIR "+dir+"\n"+kind+" --chown="+self()+" "+rest,
			files)
		err := placeAll(t, r)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: got %v, want %q", name, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for path, text := range tt.want {
			old[path] = text
		}
		if diff := cmp.Diff(old, tree(t, dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// placeAll carries out the copies of the only stage of r, on this machine's files.
func placeAll(t *testing.T, r Request) error {
	t.Helper()
	p, err := parse(r)
	if err != nil {
		t.Fatal(err)
	}
	context := opened(t, r.Context)
	w := &worker{build: &build{Request: r, plan: p, files: context, sandboxes: newFake()}}
	for _, s := range p.stages[0].steps {
		if err := w.step(t.Context(), s); err != nil {
			return err
		}
	}
	files := localFiles(t)
	for i := range w.copies {
		c := &w.copies[i]
		if c.MakeDir { // it exists, and root may not be its owner
			continue
		}
		if err := c.sum(t.Context(), context); err != nil {
			return err
		}
		if err := w.place(t.Context(), files, *c); err != nil {
			return err
		}
	}
	return nil
}

// Files that another image has are copied with their owners and modes.
func TestCollect(t *testing.T) {
	from := directory(t, map[string]string{"a": "1", "dir/b": "2", "dir/sub/c": "3",
		"dax/d": "4"}).Name()
	for _, err := range []error{os.Symlink("b", from+"/dir/link"), os.Symlink("dir", from+"/to"),
		os.Chmod(from+"/a", 0o755|os.ModeSetuid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for source, want := range map[string]map[string]string{
		"a":      {"a": "1 urwxr-xr-x"},
		"dir":    {"b": "2", "sub/": "", "sub/c": "3", "link": "-> b"},
		"to":     {"b": "2", "sub/": "", "sub/c": "3", "link": "-> b"},
		"d*/*":   {"b": "2", "c": "3", "link": "2", "d": "4"},
		"nosuch": nil,
		"d*/z*":  nil,
	} {
		files := localFiles(t)
		room := int64(1 << 20)
		f, err := spool(t.Context(), t.TempDir(), &room, files, from+"/"+source)
		if (err == nil) != (want != nil) {
			t.Errorf("%s: %v", source, err)
		}
		if err != nil {
			continue
		}
		dir := t.TempDir()
		w := &worker{build: &build{}}
		c := copying{Dest: dir, Into: true, From: "image", spool: f}
		if err := w.place(t.Context(), files, c); err != nil {
			t.Errorf("%s: %v", source, err)
		}
		f.Close()
		if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", source, diff)
		}
	}
}

// The files of one layer have a bound together, which also counts holes.
func TestSpoolIsBounded(t *testing.T) {
	from := directory(t, map[string]string{"a": "1"})
	if err := os.Truncate(from.Name()+"/a", 1<<20); err != nil {
		t.Fatal(err)
	}
	room := int64(5 << 19)
	for i, want := range []bool{true, true, false} {
		f, err := spool(t.Context(), t.TempDir(), &room, localFiles(t), from.Name()+"/a")
		if (err == nil) != want {
			t.Errorf("copy %d: %v", i+1, err)
		}
		if err == nil {
			f.Close()
		} else if !strings.Contains(err.Error(), "larger than the disk limit") {
			t.Errorf("copy %d: %v", i+1, err)
		}
	}
}

// A connection that ends is an error, and no more than that.
func TestConnectionLost(t *testing.T) {
	files := localFiles(t)
	files.Close()
	p := &placing{files: files, copying: copying{Dest: "/x/y/z", Into: true, Source: "a"}}
	if err := p.all(t.Context(), strings.NewReader(archive(t, [2]string{"a", "1"}))); err == nil {
		t.Error("no error")
	}
	room := int64(1 << 20)
	if _, err := spool(t.Context(), t.TempDir(), &room, files, "/etc/*"); err == nil {
		t.Error("no error of a pattern")
	}
}

// A directory is copied with its owner and mode, unless there is one already.
func TestTopOfDirectory(t *testing.T) {
	from := directory(t, map[string]string{"dir/b": "2"}).Name()
	if err := os.Chmod(from+"/dir", 0o700); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := os.Mkdir(to+"/had", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"new": 0o700, "had": 0o755} {
		files, room := localFiles(t), int64(1<<20)
		f, err := spool(t.Context(), t.TempDir(), &room, files, from+"/dir")
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{build: &build{}}
		c := copying{Dest: to + "/" + name, From: "image", spool: f}
		if err := w.place(t.Context(), files, c); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if info, err := os.Stat(c.Dest); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info.Mode(), err, want)
		}
	}
}

func TestOwner(t *testing.T) {
	files := localFiles(t)
	for of, want := range map[string]string{"": "0 0", "root": "0 0", "0": "0 0", "7": "7 7",
		"7:8": "7 8", "nobody": "65534 65534", "nobody:root": "65534 0", "root:7": "0 7",
		"no-such-user": "owner no-such-user is not in /etc/passwd",
		"0:no-such":    "owner no-such is not in /etc/group", ":": "owner  is not in /etc/passwd",
		"-1": "negative"} {
		uid, gid, err := owner(files, of)
		if got := fmt.Sprintf("%d %d", uid, gid); got != want && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %s, %v; want %s", of, got, err, want)
		}
	}
}
