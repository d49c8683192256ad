package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/sftp"
)

// ahead is how much of a file is read in advance.
const ahead = 8 << 20

// spool makes a file without a name.
func spool() (*os.File, error) {
	f, err := os.CreateTemp("", "sandboxd-file-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// Fileread opens a file for reading. The bytes arrive once, in order; readers may ask in any order.
func (m *machine) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if err := m.do(`[ ! -d "$1" ] || { echo "Is a directory" >&2; exit 1; }; : <"$1"`,
		r.Filepath); err != nil {
		return nil, err
	}
	f, err := spool()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(m.ctx)
	d := &download{file: f, cancel: cancel, over: make(chan struct{})}
	d.moved.L = &d.mu
	go func() { // ends with the file, or with Close, which waits for it
		defer close(d.over)
		d.end(m.stream(ctx, nil, d, `cat <"$1"`, r.Filepath))
	}()
	context.AfterFunc(ctx, func() { d.end(context.Canceled) })
	return d, nil
}

// download is a file that is being read from the machine.
type download struct {
	file   *os.File
	cancel context.CancelFunc
	over   chan struct{} // closed when no more bytes come

	mu    sync.Mutex
	moved sync.Cond // of mu: any of these fields changed
	have  int64     // guarded by mu; bytes in file
	want  int64     // guarded by mu; end of the furthest read so far
	ended bool      // guarded by mu
	err   error     // guarded by mu; why it ended, unless at the end of the file
}

func (d *download) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.ended, d.err = true, err
	}
	d.moved.Broadcast()
}

// Write receives bytes, and blocks while nothing reads them.
func (d *download) Write(p []byte) (int, error) {
	d.mu.Lock()
	for d.have > d.want+ahead && !d.ended {
		d.moved.Wait()
	}
	at, ended := d.have, d.ended
	d.mu.Unlock()
	if ended {
		return 0, io.ErrClosedPipe
	}
	n, err := d.file.WriteAt(p, at)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.have += int64(n)
	d.moved.Broadcast()
	return n, err
}

func (d *download) ReadAt(p []byte, at int64) (int, error) {
	d.mu.Lock()
	d.want = max(d.want, at+int64(len(p)))
	d.moved.Broadcast()
	for d.have < at+int64(len(p)) && !d.ended {
		d.moved.Wait()
	}
	have, err := d.have, d.err
	d.mu.Unlock()
	if have < at+int64(len(p)) {
		if err != nil {
			return 0, err
		}
		if at >= have {
			return 0, io.EOF
		}
	}
	return d.file.ReadAt(p[:min(int64(len(p)), have-at)], at)
}

func (d *download) Close() error {
	d.cancel()
	d.end(context.Canceled)
	<-d.over
	return d.file.Close()
}

// Filewrite opens a file for writing. It creates or truncates the file immediately; Close sends the
// bytes and returns their error.
func (m *machine) Filewrite(r *sftp.Request) (io.WriterAt, error) { return m.open(r) }

// OpenFile is like Filewrite, and also allows reads: of the previous content and of written bytes,
// before they are sent.
func (m *machine) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) { return m.open(r) }

func (m *machine) open(r *sftp.Request) (*upload, error) {
	flags := r.Pflags()
	if flags.Append {
		return nil, errors.New("append is not supported without SFTP")
	}
	open := `[ ! -d "$1" ] || { echo "Is a directory" >&2; exit 1; }; [ -e "$1" ] || new=1; `
	switch {
	case flags.Excl && flags.Creat:
		open += `[ ! -L "$1" ] && set -C && : >"$1" && `
	case flags.Creat && flags.Trunc:
		open += `: >"$1" && `
	case flags.Creat:
		open += `: >>"$1" && `
	case flags.Trunc:
		open += `ls -d -- "$1" >/dev/null && : >"$1" && `
	default:
		open += `ls -d -- "$1" >/dev/null && : >>"$1" && `
	}
	args := []string{r.Filepath}
	if a := r.Attributes(); r.AttrFlags().Permissions { // as open(2) sets them on a new file
		args = append(args, fmt.Sprintf("0%o", a.Mode&0o7777))
		open += `{ [ -z "$new" ] || chmod "$(printf %o $(($2 & ~0$(umask))))" "$1"; } && `
	}
	f, err := spool()
	if err != nil {
		return nil, err
	}
	u := &upload{m: m, file: f, name: r.Filepath}
	err = m.do(open+":", args...)
	if err == nil && !flags.Trunc && !flags.Excl { // bytes that are not overwritten stay
		err = m.stream(m.ctx, nil, f, `cat <"$1"`, r.Filepath)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uploads[u.name] = u
	return u, nil
}

// upload is a file that is being written to the machine.
type upload struct {
	m     *machine
	file  *os.File
	name  string
	wrote atomic.Bool

	later []func() error // guarded by m.mu; attributes that were set meanwhile
}

func (u *upload) WriteAt(p []byte, at int64) (int, error) {
	u.wrote.Store(true)
	return u.file.WriteAt(p, at)
}

func (u *upload) ReadAt(p []byte, at int64) (int, error) { return u.file.ReadAt(p, at) }

// Close sends the bytes, checks that all have arrived, and sets the attributes.
func (u *upload) Close() error {
	defer u.file.Close()
	var err error
	if u.wrote.Load() {
		err = u.send()
	}
	u.m.mu.Lock()
	later := u.later
	if u.m.uploads[u.name] == u {
		delete(u.m.uploads, u.name)
	}
	u.m.mu.Unlock()
	for _, set := range later {
		if err == nil {
			err = set()
		}
	}
	return err
}

func (u *upload) send() error {
	st, err := u.file.Stat()
	if err != nil {
		return err
	}
	u.m.turn.Lock()
	defer u.m.turn.Unlock()
	var out answer
	if err := u.m.stream(u.m.ctx, io.NewSectionReader(u.file, 0, st.Size()), &out,
		`cat >"$1" && { [ ! -f "$1" ] || wc -c <"$1"; }`, u.name); err != nil {
		return err
	}
	if said := strings.TrimSpace(out.String()); said != "" &&
		said != strconv.FormatInt(st.Size(), 10) {
		return fmt.Errorf("sent %d bytes, of which %.20s arrived", st.Size(), said)
	}
	return nil
}
