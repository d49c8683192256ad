package connect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MaxEntries is how many entries of a directory Files reads: each takes some hundred bytes of memory here, and a sandbox has as many as it
// likes.
const MaxEntries = 100_000

// ErrEntries is the error of reading a directory with more than MaxEntries.
var ErrEntries = errors.New("the directory has too many entries to be listed")

// filesPatience is how long a server of files may owe answers without giving one.
const filesPatience = time.Minute

// Files is an SFTP client for a server that nobody vouches for: it reads no more of a directory than MaxEntries, and a server that owes
// answers and gives none for a minute is hung up on, which fails all that waits for it. Its methods may be called at once.
type Files struct {
	*sftp.Client
	asked, told flow
	listing     chan struct{} // semaphore: the flow does not tell whose entries they are
	clock       *time.Timer   // of the server's patience; stopped while it owes nothing
	patience    time.Duration

	mu    sync.Mutex
	owed  int                     // guarded by mu; answers
	room  int                     // guarded by mu; entries that may come yet of what is listed
	stop  context.CancelCauseFunc // guarded by mu; nil while nothing is listed
	ended bool                    // guarded by mu
}

// OpenFiles opens SFTP on a connection. The caller closes it.
func OpenFiles(c *ssh.Client, o ...sftp.ClientOption) (*Files, error) {
	s, err := c.NewSession()
	if err != nil {
		return nil, fmt.Errorf("files: %w", err)
	}
	in, err := s.StdinPipe()
	var out io.Reader
	if err == nil {
		out, err = s.StdoutPipe()
	}
	if err == nil {
		err = s.RequestSubsystem(wire.SubsystemSFTP)
	}
	var f *Files
	if err == nil {
		f, err = newFiles(out, in, func() { s.Close() }, filesPatience, o...)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("files: %w", err)
	}
	return f, nil
}

// NewFiles speaks SFTP with the server at the other end of rw, and closes it with itself.
func NewFiles(rw io.ReadWriteCloser, o ...sftp.ClientOption) (*Files, error) {
	return newFiles(rw, rw, func() { rw.Close() }, filesPatience, o...)
}

// newFiles speaks with the server at the other end of r and w; hangUp ends both.
func newFiles(r io.Reader, w io.WriteCloser, hangUp func(), patience time.Duration, o ...sftp.ClientOption) (f *Files, err error) {
	f = &Files{listing: make(chan struct{}, 1), patience: patience}
	f.clock = time.AfterFunc(patience, hangUp)
	f.clock.Stop()
	f.asked.packet = func(byte, uint32) { f.owe(1) }
	f.told.packet = f.answered
	if f.Client, err = sftp.NewClientPipe(tap{r, &f.told}, tapCloser{w, &f.asked}, o...); err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

// Close ends the connection, and all that waits on it.
func (f *Files) Close() error {
	f.end()
	return f.Client.Close()
}

// Wait waits for the end of the connection, whoever ends it.
func (f *Files) Wait() error {
	err := f.Client.Wait()
	f.end()
	return err
}

func (f *Files) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.clock.Stop()
}

// owe counts answers that are owed. The clock begins anew with each that is given.
func (f *Files) owe(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owed = max(0, f.owed+n)
	switch {
	case f.ended:
	case f.owed == 0:
		f.clock.Stop()
	case n < 0 || f.owed == n:
		f.clock.Reset(f.patience)
	}
}

// answered counts an answer.
func (f *Files) answered(_ byte, entries uint32) {
	f.owe(-1)
	if entries == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room -= int(min(entries, MaxEntries)); f.room < 0 && f.stop != nil {
		f.stop(ErrEntries)
	}
}

// ReadDir is ReadDirContext without an end.
func (f *Files) ReadDir(dir string) ([]os.FileInfo, error) {
	return f.ReadDirContext(context.Background(), dir)
}

// ReadDirContext reads a directory, one at a time. ErrEntries says that it has too many.
func (f *Files) ReadDirContext(ctx context.Context, dir string) ([]os.FileInfo, error) {
	select {
	case f.listing <- struct{}{}:
		defer func() { <-f.listing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f.mu.Lock()
	f.room, f.stop = MaxEntries, stop
	f.mu.Unlock()
	all, err := f.Client.ReadDirContext(ctx, dir)
	f.mu.Lock()
	f.stop = nil
	f.mu.Unlock()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return all, err
}

// A packet of SFTP begins with its length, its kind and, but for the first one, a number; one of names has then how many there are
// (draft-ietf-secsh-filexfer-02, sections 3 and 7).
const (
	packetKind  = 4 + 1
	packetCount = packetKind + 4 + 4
	kindName    = 104
)

// flow finds the packets in one direction of SFTP.
type flow struct {
	packet func(kind byte, entries uint32) // called for each, when it has begun
	head   []byte                          // of the packet that begins
	skip   int64                           // bytes of one that has begun
}

func (f *flow) feed(p []byte) {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, int64(len(p)))
			p, f.skip = p[n:], f.skip-n
			continue
		}
		f.head, p = append(f.head, p[0]), p[1:]
		if len(f.head) < packetKind {
			continue
		}
		length, kind := int64(binary.BigEndian.Uint32(f.head)), f.head[4]
		counts := kind == kindName && length >= packetCount-4
		if counts && len(f.head) < packetCount {
			continue
		}
		var entries uint32
		if counts {
			entries = binary.BigEndian.Uint32(f.head[packetCount-4:])
		}
		f.skip = max(0, length+4-int64(len(f.head)))
		f.head = f.head[:0]
		f.packet(kind, entries)
	}
}

// tap and tapCloser show a flow what passes.
type tap struct {
	io.Reader
	flow *flow
}

func (t tap) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	t.flow.feed(p[:n])
	return n, err
}

type tapCloser struct {
	io.WriteCloser
	flow *flow
}

func (t tapCloser) Write(p []byte) (int, error) {
	t.flow.feed(p)
	return t.WriteCloser.Write(p)
}
