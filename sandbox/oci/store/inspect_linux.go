package store

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxName  = 4096    // bytes of a name in a layer, as Linux has it
	maxDepth = 256     // directories in one, also in what is copied
	stride   = 1 << 20 // bytes of a layer after which free space is checked again
	perEntry = 4 << 10 // bytes that an entry occupies besides its data

	maxReserve = 1 << 30 // bytes of a disk that unpacking leaves free

	// Bytes of the extended attributes of an entry; of one attribute see xattr(7).
	maxAttributes = 64 << 10
	// Bytes that go-archive may keep of a layer's directories until it has unpacked it: about
	// 250,000 directories.
	maxDirs = 256 << 20
	perDir  = 1 << 10 // bytes of a directory besides its name and its attributes
)

// inspect copies a tar, and ends with an error at the first entry that no layer has, or with which
// the image would fill the file system of dir. Sparse files become plain ones. It keeps from
// go-archive what that does badly: names with many directories, which take it minutes to resolve,
// and holes of terabytes, which it fills.
func inspect(ctx context.Context, from io.Reader, to io.Writer, dir string) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	due := int64(0) // bytes until the next check of free space
	dirs := 0       // bytes of directories
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		attributes, err := inspectEntry(h)
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			if dirs += perDir + len(h.Name) + attributes; dirs > maxDirs {
				return fmt.Errorf("layer: entry %.80q: the names and attributes of its directories "+
					"have more than %d bytes", h.Name, maxDirs)
			}
		}
		if due -= perEntry + min(h.Size, stride); due < 0 {
			if err := checkRoom(dir, h.Name, h.Size); err != nil {
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
		if err := copyEntry(ctx, out, in, dir, h); err != nil {
			return err
		}
	}
}

// copyEntry copies the data of an entry. Others may fill the file system meanwhile.
func copyEntry(ctx context.Context, to io.Writer, from io.Reader, dir string,
	h *tar.Header) error {
	from = whileAlive(ctx, from)
	for left := h.Size; ; {
		n, err := io.CopyN(to, from, copyChunk)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if left -= n; left <= 0 {
			continue
		}
		if err := checkRoom(dir, h.Name, left); err != nil {
			return err
		}
	}
}

// inspectEntry checks an entry, and changes it into one that a tar.Writer can write. It returns the
// bytes of its attributes.
func inspectEntry(h *tar.Header) (attributes int, err error) {
	for _, name := range []string{h.Name, h.Linkname} {
		if len(name) > maxName || strings.Count(name, "/") > maxDepth {
			return 0, fmt.Errorf("layer: entry %.80q: a name of more than %d bytes or %d directories",
				h.Name, maxName, maxDepth)
		}
	}
	// Names of users and groups mean nothing here. The other records have been read.
	h.Uname, h.Gname = "", ""
	if h.Typeflag != tar.TypeLink && h.Typeflag != tar.TypeSymlink {
		h.Linkname = ""
	}
	maps.DeleteFunc(h.PAXRecords, func(key, _ string) bool {
		return !strings.HasPrefix(key, "SCHILY.xattr.")
	})
	for key, value := range h.PAXRecords {
		attributes += len(key) + len(value)
	}
	if attributes > maxAttributes {
		return 0, fmt.Errorf("layer: entry %.80q: attributes of more than %d bytes", h.Name,
			maxAttributes)
	}
	switch h.Typeflag {
	case tar.TypeGNUSparse, tar.TypeCont:
		h.Typeflag = tar.TypeReg
	}
	h.Format = tar.FormatPAX // the one for all times, names and attributes
	return attributes, nil
}

// checkRoom checks that size more bytes of an entry leave the reserve of the file system of dir: a
// twentieth of it, at most maxReserve. What runs on this machine, the daemon first, needs some.
func checkRoom(dir, name string, size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	free, reserve := st.Bavail*uint64(st.Bsize), min(st.Blocks*uint64(st.Bsize)/20, maxReserve)
	if uint64(size)+reserve > free {
		return fmt.Errorf("layer: entry %.80q has %s, of %s that are free, and unpacking leaves %s: %w",
			name, formatSize(size), formatSize(int64(free)), formatSize(int64(reserve)),
			unix.ENOSPC)
	}
	if spare := st.Files / 20; st.Ffree < spare { // both are 0 where files are not counted
		return fmt.Errorf("layer: entry %.80q: %d files are free, and unpacking leaves %d: %w",
			name, st.Ffree, spare, unix.ENOSPC)
	}
	return nil
}
