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

// MaxEntries limits the entries of a directory that Files reads. Each uses some hundred bytes of
// memory in this process.
const MaxEntries = 100_000

// maxListing limits the bytes of these entries: each has names of any length.
const maxListing = 64 << 20

// ErrEntries is the error of ReadDir for a directory with more than MaxEntries, or with very long
// names.
var ErrEntries = errors.New("the directory has too many entries to be listed")

// filesPatience is how long an SFTP server may send no reply while requests wait.
const filesPatience = time.Minute

// Files is an SFTP client for an untrusted server. It stops reading a directory that has more than
// MaxEntries; replies that arrive until then, usually none, are read and dropped. If the server
// sends no reply for a minute while requests wait, Files closes the connection and the requests
// fail. Its methods are safe for concurrent use.
type Files struct {
	*sftp.Client
	requests flow // packets to the server
	replies  flow // packets from the server
	// semaphore of ReadDir: replies do not identify the directory of entries
	listing chan struct{}
	// closes the connection after patience; stopped while no request waits
	clock    *time.Timer
	patience time.Duration

	mu   sync.Mutex
	owed int // guarded by mu; requests without a reply
	// guarded by mu; further entries, and bytes of them, that the listed directory may have
	room, bytes int
	// guarded by mu; ends ReadDir; nil while no directory is listed
	stop  context.CancelCauseFunc
	ended bool // guarded by mu
}

// OpenFiles opens an SFTP connection on an SSH connection. The caller closes it.
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

// NewFiles returns a client of the SFTP server at the other end of rw. Its Close closes rw.
func NewFiles(rw io.ReadWriteCloser, o ...sftp.ClientOption) (*Files, error) {
	return newFiles(rw, rw, func() { rw.Close() }, filesPatience, o...)
}

// newFiles returns a client of the server at the other end of r and w. hangUp closes both.
func newFiles(
	r io.Reader,
	w io.WriteCloser,
	hangUp func(),
	patience time.Duration,
	o ...sftp.ClientOption,
) (f *Files, err error) {
	f = &Files{listing: make(chan struct{}, 1), patience: patience}
	f.clock = time.AfterFunc(patience, hangUp)
	f.clock.Stop()
	f.requests.packet = func(byte, uint32, uint32) { f.owe(1) }
	f.replies.packet = f.answered
	if f.Client, err = sftp.NewClientPipe(tap{r, &f.replies}, tapCloser{w, &f.requests},
		o...); err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

// Close closes the connection. Waiting requests fail.
func (f *Files) Close() error {
	f.end()
	return f.Client.Close()
}

// Wait waits until the connection has ended.
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

// owe adds n to the number of requests without a reply. Each reply restarts the clock.
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

// answered counts a reply.
func (f *Files) answered(_ byte, entries, length uint32) {
	f.owe(-1)
	if entries == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.room -= int(min(entries, MaxEntries))
	f.bytes -= int(length)
	if (f.room < 0 || f.bytes < 0) && f.stop != nil {
		f.stop(ErrEntries)
	}
}

// ReadDir is ReadDirContext with context.Background.
func (f *Files) ReadDir(dir string) ([]os.FileInfo, error) {
	return f.ReadDirContext(context.Background(), dir)
}

// ReadDirContext reads a directory. Concurrent calls wait for each other. The error is ErrEntries
// if the directory has more than MaxEntries.
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
	f.room, f.bytes, f.stop = MaxEntries, maxListing, stop
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

// An SFTP packet begins with its length, its kind and, except for the first one, an ID. A packet of
// names then has their number (draft-ietf-secsh-filexfer-02, sections 3 and 7).
const (
	packetKind  = 4 + 1
	packetCount = packetKind + 4 + 4
	kindName    = 104
)

// flow parses the heads of packets in one direction of SFTP.
type flow struct {
	packet func(kind byte, entries, length uint32) // called with the head of each packet
	head   []byte                                  // incomplete head of a packet
	skip   int64                                   // remaining bytes of a packet
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
		f.packet(kind, entries, uint32(length))
	}
}

// tap and tapCloser copy data to a flow.
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
