package page

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxListed  = 2000             // entries of a directory that the page lists
	maxUnsized = 64 << 20         // bytes that are read of a file without a size
	bodyStall  = time.Minute      // in which an upload must make progress
	listTime   = 20 * time.Second // for a directory; the page waits as long
)

// file is an entry of a directory.
type file struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // file, dir, link or other
	Size int64  `json:"size"` // bytes
	// The time of the last change.
	Modified time.Time `json:"modified"`
	// The name is not UTF-8: Name shows it, but does not name the file.
	Unreadable bool `json:"unreadable,omitempty"`
}

// withFiles calls do with the files of a running sandbox, as the user of its sessions, and answers
// with the error. Looking at the files of a stopped sandbox does not start it.
func (h *Handler) withFiles(w http.ResponseWriter, r *http.Request,
	do func(ctx context.Context, files *connect.Files, p string) error) {
	err := func() error {
		conn, err := h.connect(r)
		if err != nil {
			return err
		}
		defer conn.Close()
		files, err := connect.OpenFiles(conn.Client())
		if err != nil {
			return err
		}
		defer files.Close()
		at := r.FormValue("path")
		if at == "" {
			if at, err = files.RealPath("."); err != nil {
				return err
			}
		}
		if !path.IsAbs(at) || strings.ContainsRune(at, 0) {
			return wire.Errorf(wire.CodeUsage, "path %q is not absolute", at)
		}
		return do(r.Context(), files, path.Clean(at))
	}()
	if err == nil {
		return
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // a client that still listens must see that it failed
	}
	rest.Fail(w, r, h.Hub, fileError(err))
}

// connect opens a connection to the sandbox that r names. It starts none.
func (h *Handler) connect(r *http.Request) (*connect.Conn, error) {
	p, name := rest.Principal(r.Context()), r.PathValue("sandbox")
	if p.Kind != wire.Person {
		return nil, errProgram
	}
	_, conn, err := reach(r.Context(), h.Hub, p, name)
	return conn, err
}

// reach opens a connection to a sandbox that runs or is paused, and describes it. It starts none.
func reach(ctx context.Context, hub *gateway.Hub, p gateway.Principal,
	name string) (lifecycle.Info, *connect.Conn, error) {
	info, err := running(ctx, hub, p, name)
	if err != nil {
		return info, nil, err
	}
	conn, err := hub.Relay.Open(ctx, p, name, nil)
	return info, conn, err
}

// running describes a sandbox that runs or is paused. For others the error says so, with code
// unavailable.
func running(ctx context.Context, hub *gateway.Hub, p gateway.Principal,
	name string) (lifecycle.Info, error) {
	info, err := hub.Get(ctx, p, name)
	if err == nil && info.State != lifecycle.Running && info.State != lifecycle.Paused {
		err = &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s is %s", name, info.State), Hint: "start it first"}
	}
	return info, err
}

// fileError gives errors of a sandbox's file system a code.
func fileError(err error) error {
	if errors.As(err, new(*wire.Error)) {
		return err
	}
	code := wire.CodeUnavailable
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = wire.CodeNotFound
	case errors.Is(err, fs.ErrPermission):
		code = wire.CodeDenied
	case !errors.As(err, new(*sftp.StatusError)) && !errors.Is(err, connect.ErrEntries):
		return err
	}
	text := strings.ToValidUTF8(err.Error(), "�")
	return wire.Errorf(code, "%s", text[:min(len(text), 300)])
}

// listFiles lists a directory, directories first.
func (h *Handler) listFiles(w http.ResponseWriter, r *http.Request) {
	h.withFiles(w, r, func(ctx context.Context, files *connect.Files, p string) error {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		infos, err := files.ReadDirContext(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		all := make([]file, 0, len(infos))
		for _, info := range infos {
			f := file{Name: info.Name(), Kind: kindOf(info), Size: info.Size(),
				Modified: info.ModTime().UTC()}
			if !utf8.ValidString(f.Name) {
				f.Name, f.Unreadable = strings.ToValidUTF8(f.Name, "�"), true
			}
			all = append(all, f)
		}
		slices.SortFunc(all, func(a, b file) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
		})
		more := max(len(all)-maxListed, 0)
		rest.WriteJSON(w, http.StatusOK, map[string]any{"path": p, "files": all[:len(all)-more],
			"more": more})
		return nil
	})
}

// rank puts directories first.
func rank(f file) int {
	if f.Kind == "dir" {
		return 0
	}
	return 1
}

func kindOf(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "dir"
	case info.Mode().IsRegular():
		return "file"
	case info.Mode()&fs.ModeSymlink != 0:
		return "link"
	}
	return "other"
}

// getFile sends the bytes of a regular file; with most=N at most the first N. The browser gets them
// as bytes without meaning, which only the page's own script may ask for.
func (h *Handler) getFile(w http.ResponseWriter, r *http.Request) {
	h.withFiles(w, r, func(_ context.Context, files *connect.Files, p string) error {
		info, err := files.Stat(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if !info.Mode().IsRegular() { // a FIFO would block, and a device has no end
			return wire.Errorf(wire.CodeUsage, "%s is not a regular file", p)
		}
		f, err := files.Open(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		defer f.Close()
		size := info.Size()
		known := size > 0
		if !known { // such as those of /proc, which have a content all the same
			size = maxUnsized
		}
		if most, err := strconv.ParseInt(r.FormValue("most"), 10, 64); err == nil && most >= 0 {
			size = min(size, most)
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", "attachment")
		if known {
			w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		}
		w.WriteHeader(http.StatusOK)
		if _, err := io.CopyN(w, f, size); err != nil && (known || !errors.Is(err, io.EOF)) {
			panic(http.ErrAbortHandler) // the client must see that the file is incomplete
		} else if err == nil && size == maxUnsized && !known {
			panic(http.ErrAbortHandler) // there may be more
		}
		return nil
	})
}

// putFile writes a file: first another one beside it, which then takes its name. So a broken upload
// changes nothing.
func (h *Handler) putFile(w http.ResponseWriter, r *http.Request) {
	h.withFiles(w, r, func(_ context.Context, files *connect.Files, p string) error {
		mode := fs.FileMode(0o644)
		switch info, err := files.Stat(p); {
		case err == nil && !info.Mode().IsRegular():
			return wire.Errorf(wire.CodeUsage, "%s is not a regular file", p)
		case err == nil:
			mode = info.Mode().Perm()
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s: %w", p, err)
		}
		part := path.Join(path.Dir(p), ".upload-"+rand.Text()[:12])
		f, err := files.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		src := &arriving{r: r.Body, c: http.NewResponseController(w)}
		_, err = f.ReadFromWithConcurrency(src, 16)
		if src.err != nil {
			err = wire.Errorf(wire.CodeUsage, "incomplete upload: %v", src.err)
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = files.Chmod(part, mode)
		}
		if err == nil {
			err = files.PosixRename(part, p)
		}
		if err != nil {
			_ = files.Remove(part) // the error says why it failed
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// arriving is a body that must make progress. It keeps its error apart from those of the file.
type arriving struct {
	r   io.Reader
	c   *http.ResponseController
	err error
}

func (b *arriving) Read(p []byte) (int, error) {
	_ = b.c.SetReadDeadline(time.Now().Add(bodyStall)) // the writers of some tests have none
	n, err := b.r.Read(p)
	if err != nil {
		_ = b.c.SetReadDeadline(time.Time{})
		if !errors.Is(err, io.EOF) {
			b.err = err
		}
	}
	return n, err
}
