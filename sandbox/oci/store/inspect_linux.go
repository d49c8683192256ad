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
	maxName  = 4096    // bytes of a name in a layer, as Linux has it
	maxDepth = 256     // directories in one, also in what is copied
	stride   = 1 << 20 // bytes of a layer after which free space is checked again
	perEntry = 4 << 10 // bytes that an entry occupies besides its data

	maxReserve = 1 << 30 // bytes of a disk that unpacking leaves free
)

// inspect copies a tar, and ends with an error at the first entry that no layer has, or with which
// the image would fill the file system of dir. Sparse files become plain ones. It keeps from
// go-archive what that does badly: names with many directories, which take it minutes to resolve,
// and holes of terabytes, which it fills.
func inspect(ctx context.Context, from io.Reader, to io.Writer, dir string) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	due := int64(0) // bytes until the next check of free space
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if err := inspectEntry(h); err != nil {
			return err
		}
		if due -= perEntry + min(h.Size, stride); due < 0 {
			if err := checkRoom(dir, h); err != nil {
				return err
			}
			due = stride
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
func inspectEntry(h *tar.Header) error {
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
	h.Format = tar.FormatPAX // the one for all times, names and attributes
	return nil
}

// checkRoom checks that an entry leaves the reserve of the file system of dir: a twentieth of it,
// at most maxReserve. What runs on this machine, the daemon first, needs some disk.
func checkRoom(dir string, h *tar.Header) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	free, reserve := st.Bavail*uint64(st.Bsize), min(st.Blocks*uint64(st.Bsize)/20, maxReserve)
	if uint64(h.Size)+reserve > free {
		return fmt.Errorf("layer: entry %.80q has %s, of %s that are free, and unpacking leaves %s: %w",
			h.Name, formatSize(h.Size), formatSize(int64(free)), formatSize(int64(reserve)),
			unix.ENOSPC)
	}
	if spare := st.Files / 20; st.Ffree < spare { // both are 0 where files are not counted
		return fmt.Errorf("layer: entry %.80q: %d files are free, and unpacking leaves %d: %w",
			h.Name, st.Ffree, spare, unix.ENOSPC)
	}
	return nil
}
