package dockerfile

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// copying is a part of a layer that copies files: a source of a COPY or ADD, or a WORKDIR. Its
// exported fields determine the result.
type copying struct {
	Dest  string // absolute
	Owner string `json:",omitempty"` // name or number, with or without a group
	// MakeDir makes the directory Dest, and copies nothing.
	MakeDir bool `json:",omitempty"`
	// Into means that Dest is a directory; else a single file gets that name, unless a directory
	// has it.
	Into    bool        `json:",omitempty"`
	Mode    os.FileMode `json:",omitempty"` // of all files; 0 keeps theirs
	Extract bool        `json:",omitempty"` // the source is an archive, if it looks like one
	Source  string      `json:",omitempty"` // path or pattern
	From    string      `json:",omitempty"` // identifies the image of a stage; empty is the context
	Inline  bool        `json:",omitempty"` // Text is the file, of a here-document
	Text    string      `json:",omitempty"`
	Sum     string      `json:",omitempty"` // of files of the context
	// Mount is the type of a mount of a RUN, which has it only for its command. Otherwise empty.
	Mount instructions.MountType `json:",omitempty"`

	title string
	image string   // of From
	spool *os.File // files of From, as a tar archive; nil until they are needed
}

// copy notes what a COPY or ADD copies.
func (w *worker) copy(ctx context.Context, s step, what instructions.SourcesAndDest,
	owner, mode, from string, extract bool) error {
	c := copying{Owner: owner, title: s.title, Dest: w.path(what.DestPath),
		Into: strings.HasSuffix(what.DestPath, "/") || what.DestPath == "." ||
			strings.HasSuffix(what.DestPath, "/.") ||
			len(what.SourcePaths)+len(what.SourceContents) > 1}
	if mode != "" {
		n, err := strconv.ParseUint(mode, 8, 12)
		if err != nil {
			return fmt.Errorf("--chmod=%s: want an octal number such as 755", brief(mode))
		}
		c.Mode = octal(n)
		if c.Mode == 0 {
			return errors.New("--chmod=0: nobody could read the files")
		}
	}
	if from != "" {
		r, err := w.source(ctx, s, from)
		if err != nil {
			return err
		}
		c.From, c.image = r.id, r.image
	}
	env := w.env()
	for _, doc := range what.SourceContents {
		one := c
		one.Source, one.Inline, one.Text = doc.Path, true, doc.Data
		if doc.Expand {
			var err error
			if one.Text, err = w.expandBy(w.texts, doc.Data, env); err != nil {
				return err
			}
		}
		if err := w.add(one); err != nil {
			return err
		}
	}
	for _, source := range what.SourcePaths {
		one := c
		one.Source, one.Extract = source, extract
		if err := w.add(one); err != nil {
			return err
		}
	}
	return nil
}

// octal converts the mode of a file, as chmod(1) writes it.
func octal(mode uint64) os.FileMode {
	return (&tar.Header{Mode: int64(mode)}).FileInfo().Mode()
}

// add notes a part of the next layer.
func (w *worker) add(c copying) error {
	if err := w.count(c); err != nil {
		return err
	}
	w.copies = append(w.copies, c)
	return nil
}

// count returns an error for a copy beyond the bounds.
func (w *worker) count(c copying) error {
	if w.sources++; w.sources > maxSources {
		return fmt.Errorf("more than %d sources and directories in the whole file", maxSources)
	}
	if len(c.Dest) > maxPath || len(c.Source) > maxPath || len(c.Owner) > maxPath {
		return fmt.Errorf("a path is longer than %d bytes", maxPath)
	}
	return nil
}

// source returns the image that a COPY or a mount names.
func (w *worker) source(ctx context.Context, s step, from string) (result, error) {
	if stage, ok := s.from[from]; ok && stage != none {
		return w.done[stage], nil
	}
	img, err := w.sandboxes.Image(ctx, from)
	return result{image: from, id: img.ID}, err
}

// flush makes a layer of the copies since the last one.
func (w *worker) flush(ctx context.Context) error {
	copies := w.copies
	if w.copies = nil; len(copies) == 0 {
		return nil
	}
	for i := range copies {
		if err := copies[i].sum(ctx, w.files); err != nil {
			return copies[i].failed(err)
		}
	}
	defer drop(copies)
	return w.layer(ctx, &w.result, layer{of: copies,
		before: func() error { return w.fetch(ctx, copies) },
		do: func(ctx context.Context, conn *connect.Conn) error {
			client := conn.Client()
			defer client.Close()
			return withFiles(ctx, client, func(files *connect.Files) error {
				for _, c := range copies {
					if err := w.place(ctx, files, c); err != nil {
						return c.failed(err)
					}
				}
				return nil
			})
		}})
}

// drop closes the files of copies that were fetched.
func drop(copies []copying) {
	for _, c := range copies {
		if c.spool != nil {
			c.spool.Close()
		}
	}
}

// sum reads the files of the context that c names.
func (c *copying) sum(ctx context.Context, files *buildContext) (err error) {
	if !c.MakeDir && c.From == "" && !c.Inline {
		c.Sum, err = files.pack(ctx, io.Discard, c.Source)
	}
	return err
}

// withFiles calls do with the files of a sandbox. It closes client at the end of ctx.
func withFiles(ctx context.Context, client *ssh.Client, do func(*connect.Files) error) error {
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	files, err := connect.OpenFiles(client)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := do(files); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// fetch stores the files that are copied from other stages and images, one image at a time.
func (w *worker) fetch(ctx context.Context, copies []copying) error {
	room := w.MaxSpool
	if room == 0 {
		room = maxSpool
	}
	for i := range copies {
		c := &copies[i]
		if c.From == "" || c.spool != nil {
			continue
		}
		err := w.sandboxes.Visit(ctx, Start{Image: c.image, ID: c.From},
			func(ctx context.Context, conn *connect.Conn) error {
				client := conn.Client()
				defer client.Close()
				return withFiles(ctx, client, func(files *connect.Files) error {
					for j := i; j < len(copies); j++ {
						other := &copies[j]
						if other.From != c.From {
							continue
						}
						var err error
						other.spool, err = spool(ctx, w.Spool, &room, files, other.Source)
						if err != nil {
							return other.failed(err)
						}
					}
					return nil
				})
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// spool stores files of a sandbox as a tar archive in a file without a name. It takes its size from
// room, and fails if there is none.
func spool(ctx context.Context, dir string, room *int64, files *connect.Files,
	source string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "copy-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	out := bufio.NewWriter(&bounded{w: f, room: room})
	err = collect(ctx, out, files, source)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// failed returns the error of a copy for its step.
func (c copying) failed(err error) error {
	const most = 400
	if step, ok := errors.AsType[*sandbox.StepError](err); ok {
		return step
	}
	return sandbox.Hint(&sandbox.StepError{Step: c.title, Output: text.Line(err.Error(), most)},
		sandbox.HintOf(err))
}

// maxSpool is how many bytes of files of other stages and images are copied for a layer.
const maxSpool = 4 << 30

// bounded fails when it would write more than room.
type bounded struct {
	w    io.Writer
	room *int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > *b.room {
		return 0, errors.New("the files of other stages and images are larger than the disk limit, " +
			"or 4 GiB")
	}
	*b.room -= int64(len(p))
	return b.w.Write(p)
}

// place copies what c says into a sandbox.
func (w *worker) place(ctx context.Context, files *connect.Files, c copying) error {
	uid, gid, err := owner(files, c.Owner)
	if err != nil {
		return err
	}
	p := &placing{files: files, copying: c, uid: uid, gid: gid, keep: c.From != "" && c.Owner == ""}
	if c.MakeDir {
		return p.makeDirs(c.Dest)
	}
	r, send := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := w.send(ctx, send, c)
		send.CloseWithError(err)
		sent <- err
	}()
	err = p.all(ctx, r)
	r.CloseWithError(errGivenUp)
	if failed := <-sent; failed != nil && !errors.Is(failed, errGivenUp) {
		return failed
	}
	return err
}

var errGivenUp = errors.New("the copy was given up")

// send writes the files of c as a tar archive.
func (w *worker) send(ctx context.Context, to io.Writer, c copying) error {
	switch {
	case c.Inline:
		t := tar.NewWriter(to)
		h := &tar.Header{Name: path.Base(c.Source), Mode: 0o644, Size: int64(len(c.Text)),
			ModTime: time.Now()}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.WriteString(t, c.Text); err != nil {
			return err
		}
		return t.Close()
	case c.From != "":
		_, err := io.Copy(to, io.NewSectionReader(c.spool, 0, math.MaxInt64))
		return err
	}
	sum, err := w.files.pack(ctx, to, c.Source)
	if err == nil && sum != c.Sum {
		err = sandbox.Hint(errors.New("files changed during the build"),
			"try again when nothing writes to the directory")
	}
	return err
}
