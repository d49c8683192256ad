package e2b

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// stalled is how long a transfer may make no progress.
const stalled = time.Minute

// maxParts limits the files of one form, because the answer names each.
const maxParts = 10_000

// written is an uploaded file.
type written struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Path string `json:"path"`
}

// fileAPI transfers whole files: envd's /files.
type fileAPI struct{ problems *problems }

// download returns a file's bytes.
func (fa *fileAPI) download(w http.ResponseWriter, r *http.Request) {
	if err := fa.send(w, r); err != nil {
		fa.problems.fail(w, r, fileError(err))
	}
}

func (fa *fileAPI) send(w http.ResponseWriter, r *http.Request) error {
	lk, a, err := visitOf(r.Context()).asUser(r.Context())
	if err != nil {
		return err
	}
	p, err := a.path(r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	info, err := lk.files.Stat(p)
	switch {
	case err != nil:
		return at(p, err)
	case info.IsDir():
		return invalid("path %q is a directory", p)
	case !info.Mode().IsRegular():
		// Opening a FIFO would block until its other end opens; a device has no end.
		return invalid("path %q is not a regular file", p)
	}
	f, err := lk.files.Open(p)
	if err != nil {
		return at(p, err)
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType(
		"attachment", map[string]string{"filename": path.Base(p)}))
	h.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
	limit := info.Size()
	if limit > 0 { // files of /proc have no size
		h.Set("Content-Length", strconv.FormatInt(limit, 10))
	} else {
		limit = 1 << 30
	}
	w.WriteHeader(http.StatusOK)
	if _, err := f.WriteTo(&announced{w: w, left: limit}); err != nil && !errors.Is(err, errFull) {
		panic(http.ErrAbortHandler) // the client must see that the file is incomplete
	}
	return nil
}

// filesAtOnce is the number of concurrent 32 KiB requests of a transfer. Data from a sandbox stays
// in memory until the client has read it, and many clients may not read. More requests are hardly
// faster.
const filesAtOnce = 16

var filesOptions = []sftp.ClientOption{sftp.UseConcurrentWrites(true),
	sftp.MaxConcurrentRequestsPerFile(filesAtOnce)}

var errFull = errors.New("the file grew during the download")

// announced writes at most the announced number of bytes.
type announced struct {
	w    io.Writer
	left int64
}

func (p *announced) Write(b []byte) (int, error) {
	cut := min(int64(len(b)), p.left)
	n, err := p.w.Write(b[:cut])
	if p.left -= int64(n); err == nil && n < len(b) {
		err = errFull
	}
	return n, err
}

// upload writes files: the body as one, or each part of a form.
func (fa *fileAPI) upload(w http.ResponseWriter, r *http.Request) {
	all, err := fa.receive(w, r)
	if err != nil {
		fa.problems.fail(w, r, fileError(err))
		return
	}
	rest.WriteJSON(w, http.StatusOK, all)
}

func (fa *fileAPI) receive(w http.ResponseWriter, r *http.Request) ([]written, error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return nil, &apiError{http.StatusUnsupportedMediaType,
			"Content-Encoding: compressed uploads are not supported"}
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			return nil, invalid("file metadata is not supported")
		}
	}
	lk, a, err := visitOf(r.Context()).asUser(r.Context())
	if err != nil {
		return nil, err
	}
	limit := visitOf(r.Context()).disk
	if limit > 0 && r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body := &arriving{r: r.Body, c: http.NewResponseController(w), left: limit, limit: limit}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	to := r.URL.Query().Get("path")
	switch {
	case err == nil && kind == "application/octet-stream":
		if to == "" {
			return nil, invalid("path: required")
		}
		one, err := lk.store(a, to, body)
		return []written{one}, err
	case err == nil && kind == "multipart/form-data" && params["boundary"] != "":
		r.Body = io.NopCloser(body)
	default:
		return nil, &apiError{http.StatusUnsupportedMediaType,
			"Content-Type must be multipart/form-data or application/octet-stream"}
	}
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, invalid("form: %v", err)
	}
	all := []written{}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, arrival(err)
		}
		if part.FormName() != "file" {
			continue
		}
		p := to
		if p == "" {
			// Not Part.FileName, which drops directories.
			_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if p = unescape.Replace(params["filename"]); err != nil || p == "" {
				return nil, invalid("form: a file has no name")
			}
		}
		one, err := lk.store(a, p, part)
		if err != nil {
			return nil, err
		}
		if all = append(all, one); len(all) > maxParts {
			return nil, invalid("form: more than %d files", maxParts)
		}
	}
	if len(all) == 0 {
		return nil, invalid("form: no file")
	}
	return all, nil
}

// unescape decodes the escapes of characters that a header cannot contain (HTML,
// multipart/form-data encoding algorithm).
var unescape = strings.NewReplacer("%0A", "\n", "%0D", "\r", "%22", `"`)

// store writes r to a file and creates missing directories.
func (lk *link) store(a account, p string, r io.Reader) (written, error) {
	p, err := a.path(p)
	if err != nil {
		return written{}, err
	}
	info, err := lk.files.Stat(p)
	switch {
	case err == nil && info.IsDir():
		return written{}, invalid("path %q is a directory", p)
	case err == nil && !info.Mode().IsRegular():
		return written{}, invalid("path %q is not a regular file", p)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := lk.mkdirs(a, path.Dir(p)); err != nil {
			return written{}, err
		}
	case err != nil:
		return written{}, at(p, err)
	}
	f, err := lk.files.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return written{}, at(p, err)
	}
	src := &remembering{r: r}
	_, err = f.ReadFromWithConcurrency(src, filesAtOnce)
	if src.err != nil {
		err = arrival(src.err) // a read error is the client's, so it takes precedence
	} else if err != nil {
		err = at(p, err)
	}
	if cerr := f.Close(); err == nil && cerr != nil {
		err = at(p, cerr)
	}
	if err == nil && info == nil {
		err = a.give(lk.files, p)
	}
	if err != nil {
		return written{}, err
	}
	return written{Name: path.Base(p), Type: "file", Path: p}, nil
}

// remembering records a read error, to distinguish it from a write error.
type remembering struct {
	r   io.Reader
	err error
}

func (m *remembering) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	return n, err
}

// arriving is a body that must make progress each minute and fit on the disk.
type arriving struct {
	r     io.Reader
	c     *http.ResponseController
	left  int64
	limit int64 // 0: none
}

func (b *arriving) Read(p []byte) (int, error) {
	_ = b.c.SetReadDeadline(time.Now().Add(stalled)) // the writers of some tests have no deadline
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.limit > 0 && b.left < -(1<<20) { // a form has more than its files
		return 0, tooLarge(b.limit)
	}
	if err != nil {
		_ = b.c.SetReadDeadline(time.Time{})
	}
	return n, err
}

func tooLarge(limit int64) error {
	return &apiError{http.StatusInsufficientStorage,
		fmt.Sprintf("upload larger than the sandbox's disk limit (%d bytes)", limit)}
}

// arrival converts an error from reading a body.
func arrival(err error) error {
	if errors.As(err, new(*apiError)) {
		return err
	}
	return invalid("incomplete body: %v", err)
}

// at adds the path to an error.
func at(p string, err error) error { return fmt.Errorf("path %q: %w", p, err) }

// fileError converts an error of a sandbox's file system for clients.
func fileError(err error) error {
	if errors.As(err, new(*apiError)) {
		return err
	}
	text := err.Error()
	switch {
	case errors.Is(err, connect.ErrEntries):
		return &apiError{http.StatusTooManyRequests, cutText(text, 500)}
	case errors.Is(err, sftp.ErrSSHFxConnectionLost):
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: "the sandbox's file server does not answer"}
	case errors.Is(err, fs.ErrNotExist):
		return &apiError{http.StatusNotFound, cutText(text, 500)}
	case errors.Is(err, fs.ErrPermission):
		return &apiError{http.StatusForbidden, cutText(text, 500)}
	case strings.Contains(text, "no space left"), strings.Contains(text, "quota exceeded"):
		return &apiError{http.StatusInsufficientStorage, "not enough disk space: " +
			cutText(text, 500)}
	case errors.As(err, new(*sftp.StatusError)):
		return invalid("%s", cutText(text, 500))
	}
	return err
}
