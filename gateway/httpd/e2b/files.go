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

// stalled is how long a transfer may stand still before it is given up.
const stalled = time.Minute

// maxParts bounds the files of one form: the answer names each.
const maxParts = 10_000

// written is an uploaded file.
type written struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Path string `json:"path"`
}

// fileAPI moves whole files: envd's /files.
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
		// Opening a FIFO would wait for its other end; a device has no end.
		return invalid("path %q is not a regular file", p)
	}
	f, err := lk.files.Open(p)
	if err != nil {
		return at(p, err)
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(p)}))
	h.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
	limit := info.Size()
	if limit > 0 { // files of /proc have no size
		h.Set("Content-Length", strconv.FormatInt(limit, 10))
	} else {
		limit = 1 << 30
	}
	w.WriteHeader(http.StatusOK)
	if _, err := f.WriteTo(&announced{w: w, left: limit}); err != nil && !errors.Is(err, errFull) {
		panic(http.ErrAbortHandler) // the client has to see that this is not all
	}
	return nil
}

// filesAtOnce is how many 32 KiB pieces of a file are in flight, in either direction. Answers of a
// sandbox stay in memory until the client has read them, and many clients may not read; more
// pieces are hardly faster.
const filesAtOnce = 16

var filesOptions = []sftp.ClientOption{sftp.UseConcurrentWrites(true), sftp.MaxConcurrentRequestsPerFile(filesAtOnce)}

var errFull = errors.New("the file has grown")

// announced writes no more bytes than were announced.
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
		return nil, &apiError{http.StatusUnsupportedMediaType, "Content-Encoding: a compressed upload is not taken; send it as it is"}
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			return nil, invalid("metadata of files is not in this version")
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
			return nil, invalid("path: where to?")
		}
		one, err := lk.store(a, to, body)
		return []written{one}, err
	case err == nil && kind == "multipart/form-data" && params["boundary"] != "":
		r.Body = io.NopCloser(body)
	default:
		return nil, &apiError{http.StatusUnsupportedMediaType, "Content-Type: multipart/form-data or application/octet-stream"}
	}
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, invalid("the form: %v", err)
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
				return nil, invalid("the form: a file has no name")
			}
		}
		one, err := lk.store(a, p, part)
		if err != nil {
			return nil, err
		}
		if all = append(all, one); len(all) > maxParts {
			return nil, invalid("the form has more than %d files", maxParts)
		}
	}
	if len(all) == 0 {
		return nil, invalid("the form has no file")
	}
	return all, nil
}

// unescape decodes what clients write for characters that a header cannot have (HTML,
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
		err = arrival(src.err) // the fault is the client's, whatever else
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

// remembering tells a read error from a write error.
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

// arriving is a body that must make progress every minute and fit on the disk.
type arriving struct {
	r     io.Reader
	c     *http.ResponseController
	left  int64
	limit int64 // 0 is none
}

func (b *arriving) Read(p []byte) (int, error) {
	_ = b.c.SetReadDeadline(time.Now().Add(stalled)) // a writer without one is a test's
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.limit > 0 && b.left < -(1<<20) { // a form has words besides its files
		return 0, tooLarge(b.limit)
	}
	if err != nil {
		_ = b.c.SetReadDeadline(time.Time{})
	}
	return n, err
}

func tooLarge(limit int64) error {
	return &apiError{http.StatusInsufficientStorage, fmt.Sprintf("it is more than the sandbox's disk may have (%d bytes)", limit)}
}

// arrival converts an error of a body.
func arrival(err error) error {
	if errors.As(err, new(*apiError)) {
		return err
	}
	return invalid("the body did not arrive whole: %v", err)
}

// at adds the file to an error.
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
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the sandbox does not answer for its files"}
	case errors.Is(err, fs.ErrNotExist):
		return &apiError{http.StatusNotFound, cutText(text, 500)}
	case errors.Is(err, fs.ErrPermission):
		return &apiError{http.StatusForbidden, cutText(text, 500)}
	case strings.Contains(text, "no space left"), strings.Contains(text, "quota exceeded"):
		return &apiError{http.StatusInsufficientStorage, "not enough disk space: " + cutText(text, 500)}
	case errors.As(err, new(*sftp.StatusError)):
		return invalid("%s", cutText(text, 500))
	}
	return err
}
