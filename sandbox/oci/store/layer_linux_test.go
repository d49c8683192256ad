package store

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// outside makes a directory that no layer may change. The function reports what became of it.
func outside(t *testing.T) (dir string, check func()) {
	t.Helper()
	dir = t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1000, 0)
	for _, path := range []string{secret, dir} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	return dir, func() {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Lstat(secret, &st); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(secret)
		if err != nil || string(data) != "secret" || st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 ||
			st.Nlink != 1 || st.Mtim.Sec != 1000 {
			t.Errorf("file outside: got %q, %+v, %v", data, st, err)
		}
		if info, err := os.Stat(dir); err != nil || !info.ModTime().Equal(old) {
			t.Errorf("directory outside: changed at %v, %v", info.ModTime(), err)
		}
		if attributes, err := listAttributes(secret); err != nil || len(attributes) > 0 {
			t.Errorf("file outside: got attributes %q, %v", attributes, err)
		}
	}
}

func device(kind byte, name string, major, minor int64) file {
	return file{Header: tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: major,
		Devminor: minor}}
}

func withXattr(f file, name, value string) file {
	f.PAXRecords = map[string]string{"SCHILY.xattr." + name: value}
	return f
}

func TestHostileLayers(t *testing.T) {
	asRoot(t)
	dir, check := outside(t)
	up := strings.Repeat("../", 20)
	for _, tt := range []struct {
		name  string
		files []file
		want  string   // text of the error; empty: valid
		has   []string // then these exist in the layer
	}{
		{"dots", []file{regular(up+dir+"/new", "x")}, "invalid entry name", nil},
		{"dots in the middle", []file{regular("a/../../x", "x")}, "invalid entry name", nil},
		{"dots that stay", []file{regular("a/b/../x", "x")}, "", []string{"a/x"}},
		{"absolute name", []file{regular(dir+"/secret", "x")}, "", []string{dir + "/secret"}},
		{"link out and through it", []file{link(tar.TypeSymlink, "l", dir), regular("l/secret", "x")}, "", []string{dir + "/secret"}},
		{"link up and through it", []file{link(tar.TypeSymlink, "l", up+dir), regular("l/secret", "x")}, "escapes", nil},
		{"link out and a directory and through it", []file{link(tar.TypeSymlink, "l", dir), dirEntry("l"), regular("l/secret", "x")}, "", []string{"l/secret"}},
		{"link out and a whiteout through it", []file{link(tar.TypeSymlink, "l", up+dir), regular("l/.wh.secret", "")}, "escapes", nil},
		{"link out and an opaque directory", []file{link(tar.TypeSymlink, "l", dir), regular("l/.wh..wh..opq", "")}, "", nil},
		{"link out with an attribute", []file{withXattr(link(tar.TypeSymlink, "l", dir+"/secret"), "user.x", "y")}, "no such file", nil},
		{"links by two steps", []file{link(tar.TypeSymlink, "a", ".."), link(tar.TypeSymlink, "b", "a/.."), regular("b/x", "x")}, "escapes", nil},
		{"hard link out", []file{link(tar.TypeLink, "l", up+dir+"/secret")}, "invalid hardlink", nil},
		{"absolute hard link", []file{link(tar.TypeLink, "l", dir+"/secret")}, "no such file", nil},
		{"hard link by a link", []file{link(tar.TypeSymlink, "s", dir), link(tar.TypeLink, "l", "s/secret")}, "no such file", nil},
		{"hard link to a link and written", []file{link(tar.TypeSymlink, "s", dir+"/secret"), link(tar.TypeLink, "l", "s"), regular("l", "x")}, "", []string{"l"}},
		{"chmod by a link", []file{link(tar.TypeSymlink, "s", dir+"/secret"), {Header: tar.Header{Name: "l", Linkname: "s", Typeflag: tar.TypeLink, Mode: 0o777, Uid: 7}}}, "", []string{"l"}},
		{"file through a link at its end", []file{link(tar.TypeSymlink, "s", dir+"/secret"), regular("s", "x")}, "", []string{"s"}},
		{"directory becomes a link", []file{dirEntry("d"), regular("d/secret", "1"), link(tar.TypeSymlink, "d", dir), regular("d/secret", "2")}, "escapes", nil},
		{"directory becomes a link within", []file{dirEntry("d"), regular("d/x", "1"), dirEntry("e"), link(tar.TypeSymlink, "d", "e"), regular("d/x", "2")}, "", []string{"e/x"}},
		{"whiteout of nothing", []file{regular(".wh.", "")}, "invalid whiteout", nil},
		{"whiteout of the directory", []file{regular("a/.wh..", "")}, "invalid whiteout", nil},
		{"whiteout of the parent", []file{regular("a/.wh...", "")}, "invalid whiteout", nil},
		{"device", []file{device(tar.TypeBlock, "sda", 8, 0), device(tar.TypeChar, "mem", 1, 1)}, "", []string{"sda", "mem"}},
		{"setuid", []file{{Header: tar.Header{Name: "su", Mode: 0o4755}}}, "", []string{"su"}},
		{"redirect", []file{withXattr(dirEntry("d"), "trusted.overlay.redirect", dir)}, "trusted.overlay.redirect", nil},
		{"long name", []file{regular(strings.Repeat("x", 256), "")}, "file name too long", nil},
		{"deep name", []file{regular(strings.Repeat("x/", 200)+"x", "1")}, "", []string{strings.Repeat("x/", 200) + "x"}},
		{"deeper name", []file{regular(strings.Repeat("x/", 300)+"x", "1")}, "or 256 directories", nil},
		{"longest name", []file{regular(strings.Repeat("x/", 1<<18)+"x", "")}, "more than 4096 bytes", nil},
		{"longest link", []file{link(tar.TypeLink, "l", strings.Repeat("x/", 1<<18))}, "more than 4096 bytes", nil},
		{"name that is not UTF-8", []file{regular("x\xff", "")}, "", []string{"x\xff"}},
		{"large attribute", []file{withXattr(regular("x", ""), "user.x", strings.Repeat("x", 65<<10))}, "attributes of more than 65536 bytes", nil},
		{"large record", []file{{Header: tar.Header{Name: "x", PAXRecords: map[string]string{"SOME.thing": strings.Repeat("x", 512<<10)}}}}, "", []string{"x"}},
		{"large name of a user", []file{{Header: tar.Header{Name: "x", Uname: strings.Repeat("x", 512<<10)}}}, "", []string{"x"}},
		{"unknown type", []file{{Header: tar.Header{Name: "v", Typeflag: 'V'}}}, "unhandled", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			img, err := s.Import(t.Context(), "a", bytes.NewReader(tarOf(t, tt.files...)),
				Config{})
			check()
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got error %v, want one with %q in it", err, tt.want)
				}
				wantCounts(t, s, [4]int{})
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantCounts(t, s, [4]int{1, 1, 0, 0})
			for _, name := range tt.has {
				if _, err := os.Lstat(filepath.Join(img.Layers[0], name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// go-archive keeps all directories of a layer in memory, with their attributes.
func TestManyDirectories(t *testing.T) {
	from, tarball := io.Pipe()
	defer from.Close()
	go func() {
		w := tar.NewWriter(tarball)
		for i := 0; ; i++ {
			h := withXattr(dirEntry(strconv.Itoa(i)), "user.x", strings.Repeat("x", 60<<10)).Header
			if err := w.WriteHeader(&h); err != nil {
				tarball.CloseWithError(err)
				return
			}
		}
	}()
	err := inspect(t.Context(), from, io.Discard, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "its directories have more than") {
		t.Errorf("got error %v, want one that speaks of directories", err)
	}
}

// What an entry carries besides its attributes is not kept.
func TestInspectEntry(t *testing.T) {
	h := withXattr(dirEntry("x"), "user.x", "y").Header
	h.Uname, h.Gname, h.Linkname = "user", "group", "link"
	h.PAXRecords["SOME.thing"] = "z"
	if n, err := inspectEntry(&h); err != nil || n != len("SCHILY.xattr.user.xy") {
		t.Errorf("got %d bytes of attributes, %v", n, err)
	}
	if h.Uname+h.Gname+h.Linkname != "" || len(h.PAXRecords) != 1 {
		t.Errorf("got %+v", h)
	}
}

// TestClaims has layers that claim to be large, in ways that archive/tar does not write.
func TestClaims(t *testing.T) {
	asRoot(t)
	huge := func(size int64, format tar.Format, kind byte) []byte {
		var buf bytes.Buffer
		h := tar.Header{Name: "huge", Typeflag: kind, Mode: 0o644, Size: size, Format: format}
		if err := tar.NewWriter(&buf).WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		return append(buf.Bytes(), make([]byte, 1024)...)
	}
	// A sparse file of version 1.0: its map says that it has no data.
	sparse := func(size string) []byte {
		pax := ""
		for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0",
			"GNU.sparse.name=hole", "GNU.sparse.realsize=" + size} {
			pax += fmt.Sprintf("%d %s\n", len(kv)+4, kv)
		}
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		// As a plain file whose type is then changed, with a new sum.
		if err := w.WriteHeader(&tar.Header{Name: "PaxHeaders/hole", Typeflag: tar.TypeReg,
			Mode: 0o644, Size: int64(len(pax)), Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, pax)
		body := "0\n" + strings.Repeat("\x00", 510)
		if err := w.WriteHeader(&tar.Header{Name: "hole", Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(body)), Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b := buf.Bytes()
		b[156] = 'x'
		copy(b[148:156], "        ")
		sum := 0
		for _, c := range b[:512] {
			sum += int(c)
		}
		copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
		return b
	}
	for _, tt := range []struct {
		name string
		tar  []byte
		want string
	}{
		{"an exabyte", huge(1<<60, tar.FormatGNU, tar.TypeReg), "are free"},
		{"more than there is", huge(1<<20, tar.FormatGNU, tar.TypeReg), "unexpected EOF"},
		{"a hole of an exabyte", sparse("1152921504606846976"), "are free"},
		{"a hole", sparse("65536"), ""},
		{"nothing", nil, "no files"},
		{"no tar", bytes.Repeat([]byte("text"), 512), "invalid tar header"},
		{"half a header", make([]byte, 100), "unexpected EOF"},
		{"half a gzip", []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 1}, "EOF"},
		{"damaged zstd", []byte("\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff"), "reserved"},
		{"zstd with a large window", append([]byte("\x28\xb5\x2f\xfd\x00\xa8"), make([]byte, 20)...), "window size exceeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			img, err := s.Import(t.Context(), "a", bytes.NewReader(tt.tar), Config{})
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(filepath.Join(img.Layers[0], "hole"))
				if err != nil || info.Size() != 65536 {
					t.Errorf("got %v, %v", info, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q in it", err, tt.want)
			}
			wantCounts(t, s, [4]int{})
		})
	}
}

func TestAttributesOfLayers(t *testing.T) {
	s := newStore(t)
	when := time.Unix(1500000000, 123456789)
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	old := unix.Umask(0o077)
	t.Cleanup(func() { unix.Umask(old) })
	f := withXattr(file{tar.Header{Name: "d/ping", Mode: 0o6755, Uid: 70000, Gid: 70001,
		ModTime: when, Format: tar.FormatPAX}, "x"}, "security.capability", capability)
	f.PAXRecords["SCHILY.xattr.user.note"] = "a\x00b"
	img := mustImport(t, s, "a", f, link(tar.TypeLink, "d/same", "d/ping"))
	path := filepath.Join(img.Layers[0], "d/ping")
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 0 || st.Nlink != 2 {
		// The link's header has root as its owner: the last one counts, as for Docker.
		t.Errorf("got owner %d and %d links; want 0 and 2", st.Uid, st.Nlink)
	}
	for name, want := range map[string]string{"user.note": "a\x00b"} {
		buf := make([]byte, 100)
		if n, err := unix.Lgetxattr(path, name, buf); err != nil || string(buf[:n]) != want {
			t.Errorf("%s: got %q, %v; want %q", name, buf[:n], err, want)
		}
	}
	img = mustImport(t, s, "b", f)
	path = filepath.Join(img.Layers[0], "d/ping")
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 70000 || st.Gid != 70001 || st.Mode&0o7777 != 0o6755 ||
		st.Mtim.Nano() != when.UnixNano() {
		t.Errorf("got %+v", st)
	}
	buf := make([]byte, 100)
	n, err := unix.Lgetxattr(path, "security.capability", buf)
	if err != nil || string(buf[:n]) != capability {
		t.Errorf("capability: got %q, %v", buf[:n], err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("implied directory: got %v, %v; want 0755", info.Mode(), err)
	}
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestCompression(t *testing.T) {
	plain := tarOf(t, regular("x", strings.Repeat("hello", 1000)))
	var zst bytes.Buffer
	e, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	e.Write(plain)
	e.Close()
	s := newStore(t)
	for _, data := range [][]byte{plain, gzipped(t, plain), zst.Bytes()} {
		img, err := s.Import(t.Context(), "a", bytes.NewReader(data), Config{})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(img.Layers[0], "x")); err != nil || len(b) != 5000 {
			t.Errorf("got %d bytes, %v", len(b), err)
		}
	}
	wantCounts(t, s, [4]int{1, 1, 0, 0}) // the same layer each time
}

// smallDisk returns a store on a file system of a size in tmpfs(5)'s spelling.
func smallDisk(t *testing.T, size string) *Store {
	t.Helper()
	asRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFullDisk(t *testing.T) {
	s := smallDisk(t, "1m")
	_, err := s.Import(t.Context(), "a",
		bytes.NewReader(tarOf(t, regular("x", strings.Repeat("x", 2<<20)))), Config{})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "remove images") {
		t.Errorf("got %v, want ENOSPC and what to do", err)
	}
	wantCounts(t, s, [4]int{})
	base := mustImport(t, s, "b", regular("x", "1"))
	upper := t.TempDir()
	if err := os.WriteFile(filepath.Join(upper, "big"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Add(t.Context(), "c", base, upper, Config{})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "remove images") {
		t.Errorf("got %v, want ENOSPC and what to do", err)
	}
	wantCounts(t, s, [4]int{1, 1, 0, 0})
}

// An image of small files leaves the reserve, too.
func TestReserve(t *testing.T) {
	s := smallDisk(t, "40m")
	var files []file
	for i := range 400 {
		files = append(files, regular(strconv.Itoa(i), strings.Repeat("x", 100<<10)))
	}
	_, err := s.Import(t.Context(), "a", bytes.NewReader(tarOf(t, files...)), Config{})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "unpacking leaves 2.1 MB") {
		t.Errorf("got %v, want ENOSPC and the reserve", err)
	}
	wantCounts(t, s, [4]int{})
	mustImport(t, s, "b", files[:370]...)
}

func TestImportEnds(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	data := tarOf(t, regular("x", strings.Repeat("x", 1<<20)))
	n := 0
	_, err := s.Import(ctx, "a", readerFunc(func(b []byte) (int, error) {
		if n > len(data)/2 {
			cancel(errStop)
		}
		k := copy(b, data[n:])
		n += k
		return k, nil
	}), Config{})
	if !errors.Is(err, errStop) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	wantCounts(t, s, [4]int{})
}
