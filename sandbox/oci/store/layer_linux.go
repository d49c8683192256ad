package store

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/moby/go-archive"
	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
)

// unpack unpacks a tar, which gzip or zstd may have compressed, into a new layer of the call. A
// diff ID that is not empty must be that of the tar.
func (m *making) unpack(ctx context.Context, tar io.Reader, diffID string) (layer, error) {
	l, files, err := m.newLayer()
	if err != nil {
		return layer{}, err
	}
	plain, done, err := decompress(whileAlive(ctx, tar))
	if err != nil {
		return layer{}, err
	}
	defer done()
	hash := sha256.New()
	plain = io.TeeReader(whileAlive(ctx, plain), hash)
	if err := extract(ctx, plain, files); err != nil {
		return layer{}, m.explain(ctx, err)
	}
	// What follows the tar counts, too: for the diff ID, and for the digest that reading tar to its
	// end checks.
	for _, r := range []io.Reader{plain, whileAlive(ctx, tar)} {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return layer{}, m.explain(ctx, err)
		}
	}
	got := "sha256:" + hex.EncodeToString(hash.Sum(nil))
	if diffID != "" && got != diffID {
		return layer{}, fmt.Errorf("layer %s: the configuration of the image names another one, %s",
			got, diffID)
	}
	if l.name, err = layerName(got); err != nil {
		return layer{}, err
	}
	return l, m.explain(ctx, finish(ctx, l, refuseOverlay))
}

// newLayer makes the directory of a layer, without a name yet, and the one for its files.
func (m *making) newLayer() (l layer, files string, err error) {
	l.dir, err = os.MkdirTemp(m.dir, "layer-")
	if err != nil {
		return layer{}, "", m.explain(context.Background(), err)
	}
	files = filepath.Join(l.dir, filesDir)
	if err := os.Mkdir(files, 0o755); err != nil {
		return layer{}, "", m.explain(context.Background(), err)
	}
	return l, files, os.Chmod(files, 0o755) // whatever the umask
}

// explain says what to do about a full disk. After the end of ctx the error is its cause.
func (m *making) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("the disk of the image store %s is full: remove images or free space: %w",
			m.store.dir, err)
	}
	return err
}

// whileAlive returns a reader that fails with the cause of ctx once it has ended. A Read that waits
// is not interrupted.
func whileAlive(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(b)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// maxWindow is the most memory that a zstd frame may ask for, in bytes: that of zstd --long.
const maxWindow = 128 << 20

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// decompress detects gzip and zstd. It runs no program, unlike that of go-archive. The caller must
// call done.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	buf := bufio.NewReaderSize(r, 64<<10)
	magic, err := buf.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		z, err := gzip.NewReader(buf)
		return z, func() {}, err
	case bytes.HasPrefix(magic, zstdMagic):
		z, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return buf, func() {}, nil
}

// extract unpacks a tar into dir. Nothing outside of it changes, whatever the tar says: go-archive
// works through os.Root.
func extract(ctx context.Context, tar io.Reader, dir string) error {
	r, w := io.Pipe()
	checked := make(chan error, 1)
	go func() {
		err := inspect(ctx, tar, w, dir)
		_ = w.CloseWithError(err)
		checked <- err
	}()
	err := archive.Unpack(r, dir, &archive.TarOptions{
		WhiteoutFormat: archive.OverlayWhiteoutFormat,
		InUserNS:       userns.RunningInUserNS(), // nobody may make devices there: none are made
	})
	if err == nil {
		_, err = io.Copy(io.Discard, r) // the end of the tar
	}
	_ = r.CloseWithError(err)
	return cmp.Or(err, <-checked)
}

// refuseOverlay is the check of a layer that others made: attributes of overlayfs, other than that
// of an opaque directory, would make it read other files than the layer's.
func refuseOverlay(path, attribute string) error {
	if strings.HasPrefix(attribute, overlayPrefix) && attribute != overlayPrefix+"opaque" {
		return fmt.Errorf("layer: %q has the attribute %q, which only overlayfs may set",
			filepath.Base(path), attribute)
	}
	return nil
}

// overlayPrefix begins the names of overlayfs's own attributes. In a user namespace it is mounted
// with option userxattr.
var overlayPrefix = func() string {
	if userns.RunningInUserNS() {
		return "user.overlay."
	}
	return "trusted.overlay."
}()

// finish makes a layer durable and writes what it occupies. It calls check for each extended
// attribute.
func finish(ctx context.Context, l layer, check func(path, attribute string) error) error {
	// One call for all files. It also allocates their blocks.
	files, err := os.Open(filepath.Join(l.dir, filesDir))
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(files.Fd()))
	files.Close()
	if err != nil {
		return err
	}
	size, err := measure(ctx, filepath.Join(l.dir, filesDir), check)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(l.dir, sizeFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := writeSync(f, []byte(strconv.FormatInt(size, 10))); err != nil {
		return err
	}
	return syncDir(l.dir)
}

// measure returns the bytes that a directory and what is in it occupies. Files with several names
// count once.
func measure(ctx context.Context, dir string, check func(path, attribute string) error) (int64,
	error) {
	var size int64
	linked := make(map[inode]bool)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("stat %s: no inode", path)
		}
		id := inode{st.Dev, st.Ino}
		if !linked[id] {
			size += st.Blocks * 512
		}
		if !e.IsDir() && st.Nlink > 1 {
			linked[id] = true
		}
		attributes, err := listAttributes(path)
		for _, name := range attributes {
			if err == nil {
				err = check(path, name)
			}
		}
		return err
	})
	return size, err
}

// listAttributes returns the names of a file's extended attributes. It does not follow a symbolic
// link.
func listAttributes(path string) ([]string, error) {
	for {
		n, err := unix.Llistxattr(path, nil)
		if errors.Is(err, unix.ENOTSUP) {
			return nil, nil
		}
		var buf []byte
		if err == nil && n > 0 {
			buf = make([]byte, n)
			n, err = unix.Llistxattr(path, buf)
		}
		switch {
		case errors.Is(err, unix.ERANGE): // there are more now
		case err != nil:
			return nil, &fs.PathError{Op: "listxattr", Path: path, Err: err}
		case n == 0:
			return nil, nil
		default:
			return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
		}
	}
}
