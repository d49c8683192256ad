package mcp

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

const (
	maxRead    = 1 << 20  // bytes of one read_file
	readBytes  = 64 << 10 // default of read_file
	maxWrite   = 4 << 20  // bytes of one write_file
	maxEntries = 1000     // entries of one list_files
)

// file are the arguments that select a file.
type file struct {
	Path    string `json:"path" jsonschema:"path, absolute or relative to the home directory; a link such as sandbox:/mnt/data/x works, too"`
	Sandbox string `json:"sandbox,omitempty" jsonschema:"name of another sandbox; default this server's sandbox"`
}

type (
	readIn struct {
		file
		Offset int64 `json:"offset,omitempty" jsonschema:"first byte; default 0"`
		Bytes  int   `json:"bytes,omitempty" jsonschema:"number of bytes, at most 1048576; default 65536"`
	}
	readOut struct {
		Path     string `json:"path"`
		Size     int64  `json:"size"`
		Offset   int64  `json:"offset"`
		Next     int64  `json:"next"` // offset for the next call; equals size at the end
		Encoding string `json:"encoding"`
		Content  string `json:"content"`
	}

	writeIn struct {
		file
		Content  string `json:"content" jsonschema:"content of the file, or text to append; at most 4 MiB"`
		Encoding string `json:"encoding,omitempty" jsonschema:"utf-8 (default) or base64"`
		Append   bool   `json:"append,omitempty" jsonschema:"append to the file instead of replacing it"`
		Mode     string `json:"mode,omitempty" jsonschema:"permissions in octal, such as 755; default unchanged, 644 for a new file"`
	}
	writeOut struct {
		Path string `json:"path"`
		Size int64  `json:"size"`
	}

	listOut struct {
		Path      string  `json:"path"`
		Entries   []entry `json:"entries"`
		Truncated bool    `json:"truncated"`
	}
	entry struct {
		Name     string    `json:"name"`
		Type     string    `json:"type"` // file, dir, link or other
		Size     int64     `json:"size"`
		Mode     string    `json:"mode"`
		Modified time.Time `json:"modified"`
	}
)

// addFiles adds the tools for files. They use the sandbox's SFTP server, so that no path reaches a
// file of this machine.
func (s *Server) addFiles() {
	add(
		s,
		tool{
			name:  "read_file",
			reads: true,
			about: "Read a file of the sandbox, or a part of a large file. Binary content is " +
				"base64.",
		},
		func(ctx context.Context, c *call, in readIn) (answer, error) {
			return withFiles(ctx, c, &in.file,
				func(client *connect.Files) (answer, error) { return readFile(client, in) },
			)
		},
	)
	add(
		s,
		tool{
			name: "write_file",
			about: "Create a file of the sandbox or replace its content. Creates missing " +
				"directories.",
		},
		func(ctx context.Context, c *call, in writeIn) (answer, error) {
			return withFiles(ctx, c, &in.file,
				func(client *connect.Files) (answer, error) { return writeFile(client, in) },
			)
		},
	)
	add(s, tool{name: "list_files", reads: true, about: "List a directory of the sandbox."},
		func(ctx context.Context, c *call, in file) (answer, error) {
			return withFiles(ctx, c, &in,
				func(client *connect.Files) (answer, error) { return listFiles(client, in.Path) },
			)
		})
}

// withFiles calls do with an SFTP client of the sandbox. It first replaces a link in f.Path by its
// path. If ctx ends, it closes the client and returns.
func withFiles(
	ctx context.Context,
	c *call,
	f *file,
	do func(*connect.Files) (answer, error),
) (answer, error) {
	if path, ok := agent.LinkedPath(f.Path); ok {
		f.Path = path
	}
	if f.Path == "" || strings.ContainsRune(f.Path, 0) {
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: c.request.Params.Name + ": path is empty or contains a zero byte",
			Hint:    "set path to an absolute path, or to one relative to the home directory",
		}
	}
	t, err := c.server.places.target(ctx, where{Sandbox: f.Sandbox})
	if err != nil {
		return answer{}, err
	}
	client, err := c.server.places.sftp(ctx, t.Sandbox)
	if err != nil {
		return answer{}, err
	}
	type did struct {
		answer answer
		err    error
	}
	done := make(chan did, 1)
	go func() { // ends with do, or when the client is closed
		a, err := do(client)
		done <- did{a, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			err := fileError(f.Path, d.err)
			if broke(err) && !errors.Is(err, &agent.Error{Code: agent.CodeNotFound}) {
				c.server.places.lost(t.Sandbox)
			}
			return answer{}, err
		}
		return d.answer, nil
	case <-ctx.Done():
		c.server.places.unfile(t.Sandbox, client)
		<-done
		return answer{}, context.Cause(ctx)
	}
}

// fileError converts an error of SFTP to one with a code and a hint for the model.
func fileError(name string, err error) error {
	var known *agent.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, connect.ErrEntries):
		return &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("%s has more than %d entries", name, connect.MaxEntries),
			Hint:    "run ls or find for a part of them",
		}
	case errors.Is(err, fs.ErrNotExist):
		return &agent.Error{
			Code:    agent.CodeNotFound,
			Message: name + " does not exist",
			Hint:    "list_files lists its directory",
		}
	case errors.Is(err, fs.ErrPermission):
		return &agent.Error{
			Code:    agent.CodeDenied,
			Message: name + ": permission denied",
			Hint: "the sandbox's user lacks the permission; try sudo in run, if the sandbox " +
				"allows it",
		}
	}
	var status *sftp.StatusError
	if errors.As(err, &status) {
		return &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("%s: %v", name, text.Line(err.Error(), 200)),
		}
	}
	return err
}

func readFile(client *connect.Files, in readIn) (answer, error) {
	if in.Offset < 0 || in.Bytes < 0 || in.Bytes > maxRead {
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("read_file: offset must be at least 0, bytes 1 to %d", maxRead),
			Hint:    "read the file in parts: pass next as the next offset",
		}
	}
	if in.Bytes == 0 {
		in.Bytes = readBytes
	}
	info, err := client.Stat(in.Path)
	if err != nil {
		return answer{}, err
	}
	if !info.Mode().IsRegular() { // a pipe has no end
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "read_file: " + text.Line(in.Path, 200) + " is not a regular file",
			Hint:    "list_files lists a directory",
		}
	}
	f, err := client.Open(in.Path)
	if err != nil {
		return answer{}, err
	}
	defer f.Close()
	buf := make([]byte, in.Bytes)
	n, err := f.ReadAt(buf, in.Offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return answer{}, err
	}
	buf = buf[:n]
	out := readOut{
		Path:     f.Name(),
		Size:     max(info.Size(), in.Offset+int64(n)),
		Offset:   in.Offset,
		Encoding: "utf-8",
	}
	if more := in.Offset+int64(n) < out.Size; more { // do not split a character
		for cut := 1; cut < utf8.UTFMax && cut < len(buf); cut++ {
			if last := buf[len(buf)-cut:]; utf8.RuneStart(last[0]) {
				if !utf8.FullRune(last) {
					buf = buf[:len(buf)-cut]
				}
				break
			}
		}
	}
	out.Next = in.Offset + int64(len(buf))
	said := fmt.Sprintf(
		"%s: bytes %d to %d of %d\n",
		text.Line(in.Path, 200),
		out.Offset,
		out.Next,
		out.Size,
	)
	if utf8.Valid(buf) && !slices.Contains(buf, 0) {
		out.Content = string(buf)
		said += fence("content", out.Content)
	} else {
		out.Encoding, out.Content = "base64", base64.StdEncoding.EncodeToString(buf)
		said += fence("content in base64", out.Content)
	}
	if out.Next < out.Size {
		said += fmt.Sprintf("next: offset=%d reads on\n", out.Next)
	}
	return answer{object: out, text: said}, nil
}

func writeFile(client *connect.Files, in writeIn) (answer, error) {
	content := []byte(in.Content)
	switch in.Encoding {
	case "", "utf-8":
	case "base64":
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return answer{}, &agent.Error{
				Code:    agent.CodeUsage,
				Message: "write_file: content is not base64",
				Hint:    "omit encoding for text",
			}
		}
	default:
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: fmt.Sprintf("write_file: unknown encoding %q", in.Encoding),
			Hint:    "use utf-8 or base64",
		}
	}
	if len(content) > maxWrite {
		return answer{}, &agent.Error{
			Code: agent.CodeUsage,
			Message: fmt.Sprintf("write_file: content has %d bytes, more than %d", len(content),
				maxWrite),
			Hint: "write the file in parts, with append",
		}
	}
	var mode os.FileMode
	if in.Mode != "" {
		var bits uint32
		if n, err := fmt.Sscanf(in.Mode, "%o", &bits); n != 1 || err != nil || bits > 0o777 ||
			strings.Trim(in.Mode, "01234567") != "" {
			return answer{}, &agent.Error{
				Code:    agent.CodeUsage,
				Message: fmt.Sprintf("write_file: invalid mode %q", in.Mode),
				Hint:    "use three octal digits, such as 755",
			}
		}
		mode = os.FileMode(bits)
	}
	if info, err := client.Stat(in.Path); err == nil && !info.Mode().IsRegular() {
		return answer{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "write_file: " + text.Line(in.Path, 200) + " exists and is not a regular file",
		}
	}
	if dir := path.Dir(in.Path); dir != "." && dir != "/" {
		if err := client.MkdirAll(dir); err != nil {
			return answer{}, err
		}
	}
	how := os.O_WRONLY | os.O_CREATE
	if !in.Append {
		how |= os.O_TRUNC
	}
	f, err := client.OpenFile(in.Path, how)
	if err != nil {
		return answer{}, err
	}
	// not O_APPEND: SFTP writes have offsets, and the client's begin at 0
	if in.Append {
		_, err = f.Seek(0, io.SeekEnd)
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return answer{}, err
	}
	if in.Mode != "" {
		if err := client.Chmod(in.Path, mode); err != nil {
			return answer{}, err
		}
	}
	info, err := client.Stat(in.Path)
	if err != nil {
		return answer{}, err
	}
	out := writeOut{Path: in.Path, Size: info.Size()}
	return answer{
		object: out,
		text:   fmt.Sprintf("%s now has %d bytes\n", text.Line(out.Path, 200), out.Size),
	}, nil
}

func listFiles(client *connect.Files, dir string) (answer, error) {
	infos, err := client.ReadDir(dir)
	if err != nil {
		return answer{}, err
	}
	slices.SortFunc(
		infos,
		func(a, b os.FileInfo) int { return strings.Compare(a.Name(), b.Name()) },
	)
	out := listOut{Path: dir, Entries: []entry{}}
	var lines strings.Builder
	for _, info := range infos {
		if len(out.Entries) == maxEntries {
			out.Truncated = true
			break
		}
		e := entry{
			Name:     info.Name(),
			Type:     "other",
			Size:     info.Size(),
			Mode:     fmt.Sprintf("%03o", info.Mode().Perm()),
			Modified: info.ModTime().UTC(),
		}
		switch {
		case info.Mode().IsRegular():
			e.Type = "file"
		case info.IsDir():
			e.Type = "dir"
		case info.Mode()&fs.ModeSymlink != 0:
			e.Type = "link"
		}
		out.Entries = append(out.Entries, e)
		fmt.Fprintf(
			&lines,
			"%-5s %s %10d %s  %s\n",
			e.Type,
			e.Mode,
			e.Size,
			e.Modified.Format("2006-01-02 15:04"),
			text.Line(e.Name, 255),
		)
	}
	said := fmt.Sprintf(
		"%s: %d entries\n",
		text.Line(dir, 200),
		len(infos),
	) + fence(
		"entries",
		lines.String(),
	)
	if out.Truncated {
		said += fmt.Sprintf("note: only the first %d are listed; run ls or find for the others\n",
			maxEntries)
	}
	return answer{object: out, text: said}, nil
}
