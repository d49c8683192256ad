package files

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/sftp"
)

// info describes a file, from the machine's own report.
type info struct {
	name     string
	mode     uint32 // st_mode on the machine
	size     int64
	time     int64
	uid, gid uint32
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) ModTime() time.Time { return time.Unix(i.time, 0) }
func (i info) IsDir() bool        { return i.Mode().IsDir() }
func (i info) Sys() any {
	return &sftp.FileStat{Size: uint64(i.size), Mode: i.mode, Mtime: uint32(i.time), Atime: uint32(i.time), UID: i.uid, GID: i.gid} //nolint:gosec // the types of SFTP
}

// Uid and Gid return the owners, for the server's list of attributes.
func (i info) Uid() uint32 { return i.uid } //nolint:staticcheck // name of the interface
func (i info) Gid() uint32 { return i.gid } //nolint:staticcheck // name of the interface

// Mode converts st_mode to Go's bits.
func (i info) Mode() fs.FileMode {
	mode := fs.FileMode(i.mode & 0o777)
	for bit, is := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid,
		0o1000: fs.ModeSticky} {
		if i.mode&bit != 0 {
			mode |= is
		}
	}
	switch i.mode & 0o170000 {
	case 0o040000:
		mode |= fs.ModeDir
	case 0o120000:
		mode |= fs.ModeSymlink
	case 0o010000:
		mode |= fs.ModeNamedPipe
	case 0o140000:
		mode |= fs.ModeSocket
	case 0o060000:
		mode |= fs.ModeDevice
	case 0o020000:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	}
	return mode
}

// parse parses a line of stat_.
func parse(line, name string) (info, error) {
	i := info{name: name}
	f := strings.Fields(line)
	if len(f) != 5 {
		return i, fmt.Errorf("stat: it printed %.80q", line)
	}
	mode, err := strconv.ParseUint(f[0], 16, 32)
	if err != nil {
		return i, fmt.Errorf("stat: mode %.20q", f[0])
	}
	i.mode = uint32(mode)
	for n, to := range []*int64{&i.size, &i.time} {
		if *to, err = strconv.ParseInt(f[n+1], 10, 64); err != nil {
			return i, fmt.Errorf("stat: number %.20q", f[n+1])
		}
	}
	for n, to := range []*uint32{&i.uid, &i.gid} {
		id, err := strconv.ParseUint(f[n+3], 10, 32)
		if err != nil {
			return i, fmt.Errorf("stat: number %.20q", f[n+3])
		}
		*to = uint32(id)
	}
	return i, nil
}

// listScript prints, for each batch of names, their number, a line for each, and the names
// themselves, each ended by a NUL. If a file of a batch disappears meanwhile the batch fails, and
// the script lists its files one by one.
const listScript = `ls -d -- "$1" >/dev/null && cd -- "$1" && find . ! -name . -prune -exec sh -c '
s() { stat -c "%f %s %Y %u %g" -- "$@" 2>/dev/null || stat -f "%Xp %z %m %u %g" -- "$@" 2>/dev/null; }
if o=$(s "$@"); then echo $#; printf "%s\n" "$o"; printf "%s\0" "$@"
else for f; do ! o=$(s "$f") || { echo 1; printf "%s\n" "$o"; printf "%s\0" "$f"; }; done; fi' sh {} +`

// Filelist answers List, Stat and Readlink.
func (m *machine) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		out, err := m.ask(m.ctx, listScript, r.Filepath)
		if err != nil {
			return nil, err
		}
		return parseList(out)
	case "Stat":
		return m.stat("follow_", r.Filepath)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat is like Stat, but does not follow a link.
func (m *machine) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	return m.stat("stat_", r.Filepath)
}

// Readlink returns the target of a link.
func (m *machine) Readlink(name string) (string, error) {
	out,
		err := m.ask(
		m.ctx,
		`[ -L "$1" ] || { ls -d -- "$1" >/dev/null && echo "not a link" >&2; exit 1; }; readlink -- "$1"`, name)
	return strings.TrimSuffix(string(out), "\n"), err
}

func (m *machine) stat(how, name string) (sftp.ListerAt, error) {
	out, err := m.ask(m.ctx, how+` "$1"`, name)
	if err != nil {
		return nil, err
	}
	i, err := parse(string(out), path.Base(name))
	return list{i}, err
}

func parseList(out []byte) (list, error) {
	var all list
	for len(out) > 0 {
		count, rest, _ := bytes.Cut(out, []byte("\n"))
		n, err := strconv.Atoi(string(count))
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("list: it printed %.80q", count)
		}
		lines := bytes.SplitN(rest, []byte("\n"), n+1)
		if len(lines) != n+1 {
			return nil, io.ErrUnexpectedEOF
		}
		out = lines[n]
		for _, line := range lines[:n] {
			name, rest, ok := bytes.Cut(out, []byte{0})
			if !ok {
				return nil, io.ErrUnexpectedEOF
			}
			out = rest
			i, err := parse(string(line), strings.TrimPrefix(string(name), "./"))
			if err != nil {
				return nil, err
			}
			all = append(all, i)
		}
	}
	return all, nil
}

// list is a complete answer.
type list []os.FileInfo

func (l list) ListAt(to []os.FileInfo, at int64) (int, error) {
	if at >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(to, l[at:])
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}
