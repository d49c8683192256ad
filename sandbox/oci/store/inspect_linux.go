package store

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxName  = 4096     // bytes of a name in a layer, as Linux has it
	maxDepth = 256      // directories in one, also in what is copied
	statSize = 16 << 20 // bytes of a file for which free space is checked first
)

// inspect copies a tar, and ends with an error at the first entry that no layer has, or for which
// the file system of dir has no space. Sparse files become plain ones. It keeps from go-archive
// what that does badly: names with many directories, which take it minutes to resolve, and holes of
// terabytes, which it fills.
func inspect(ctx context.Context, from io.Reader, to io.Writer, dir string) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if err := inspectEntry(h, dir); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("layer: entry %.80q: %w", h.Name, err)
		}
		if _, err := io.Copy(out, whileAlive(ctx, in)); err != nil {
			return err
		}
	}
}

// inspectEntry checks an entry, and changes it into one that a tar.Writer can write.
func inspectEntry(h *tar.Header, dir string) error {
	for _, name := range []string{h.Name, h.Linkname} {
		if len(name) > maxName || strings.Count(name, "/") > maxDepth {
			return fmt.Errorf("layer: entry %.80q: a name of more than %d bytes or %d directories",
				h.Name, maxName, maxDepth)
		}
	}
	switch h.Typeflag {
	case tar.TypeGNUSparse, tar.TypeCont:
		h.Typeflag = tar.TypeReg
	}
	if h.Size > statSize {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return err
		}
		if free := st.Bavail * uint64(st.Bsize); uint64(h.Size) > free {
			return fmt.Errorf("layer: entry %.80q has %s, and %s are free: %w", h.Name,
				formatSize(h.Size), formatSize(int64(free)), unix.ENOSPC)
		}
	}
	h.Format = tar.FormatPAX // the one for all times, names and attributes
	return nil
}
