package sshd

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
)

// What an authorized_keys file may hold. A file beyond that is refused whole: half of one would let in whom its end
// restricts.
const (
	maxKeyFile  = 1 << 20
	maxKeyLines = 10_000
)

// Keys is who may log in: a file in the form of OpenSSH's authorized_keys, with principal="NAME", kind="agent|person"
// and role="drive|watch" beside sshd's own options. A line with an option that is not understood is refused, as is a
// whole file that others could have written. It is read again when it changes. Its methods may be called at once.
//
// A login goes by what the file says now. What was let in before – connections, tokens – goes by
// what the file said at any time within the last grace: an editor that replaces the file or writes
// it anew ends nobody's access.
type Keys struct {
	path  string
	owner string // of lines without principal
	grace time.Duration
	log   *slog.Logger

	mu    sync.Mutex
	stamp stamp    // guarded by mu; of the file that was read last
	now   *keyFile // guarded by mu; what it said
	past  []past   // guarded by mu; what it said within the last grace, the oldest first
}

// keyFile is what the file said at one look. It is not changed once made. One that could not be
// read lets nobody in.
type keyFile struct {
	sum     [sha256.Size]byte // of the content
	err     error             // why nobody could read it
	keys    map[string]*grant // by wire form; authorities apart
	signers map[string]*grant // the authorities

	lines map[string][]*grant // both, by fingerprint
}

// past is what the file said until a look found it changed.
type past struct {
	*keyFile
	until time.Time
}

// stamp tells one state of a file from another.
type stamp struct {
	size  int64
	mod   time.Time
	meta  time.Time // of the last change of content or inode (ctime, stat(2)), which no program can set
	inode uint64
	mode  fs.FileMode
	young bool // read so soon after a change that another may have the same time
}

const (
	// keysGrace is how long what the file no longer says still holds for what is live.
	keysGrace = time.Second / 2
	// maxPast is how many states of the file are remembered. Those of a file that changes more
	// often do not count.
	maxPast = 8
	// clockTick is more than the step in which file systems count the times of files.
	clockTick = 2 * time.Second
)

// OpenKeys reads path. A missing file lets nobody in until it appears; so does one that cannot be read, which is logged.
// Lines without a principal belong to owner. A nil log discards.
func OpenKeys(path, owner string, log *slog.Logger) *Keys {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &Keys{path: path, owner: owner, grace: keysGrace, log: log}
	k.look()
	return k
}

// Principals returns how many principals can log in. An authority can name any number and counts as two.
func (k *Keys) Principals() int {
	f := k.look()
	names := map[string]bool{}
	for _, g := range f.keys {
		names[g.Name] = true
	}
	return len(names) + 2*len(f.signers)
}

// LogsIn reports whether a key is listed as the principal's, and whether an authority may name it
// in certificates. Lines that have expired do not count.
func (k *Keys) LogsIn(principal string) (key, certificate bool) {
	f, now := k.look(), time.Now()
	for _, g := range f.keys {
		key = key || g.Name == principal && !g.expired(now)
	}
	for _, g := range f.signers {
		certificate = certificate || g.names(principal) && !g.expired(now)
	}
	return key, certificate
}

// Backs says why p cannot hold a token any more: nil where the line of the file that let p in could
// make that token now. p.Line names the line; where it is empty any line will do that lets p's
// principal in.
func (k *Keys) Backs(p gateway.Principal) error {
	now := time.Now()
	return k.recent(now).holds(func(f *keyFile) error { return f.backs(p, now) })
}

// recent is what the file says, first, and what it said within the last grace.
type recent []*keyFile

// recent looks at the file.
func (k *Keys) recent(now time.Time) recent {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lookLocked()
	all := recent{k.now}
	for _, p := range k.past {
		if now.Before(p.until) {
			all = append(all, p.keyFile)
		}
	}
	return all
}

// holds returns nil where check does of one of them, else what check returns for the file as it is.
func (r recent) holds(check func(*keyFile) error) error {
	err := check(r[0])
	for _, f := range r[1:] {
		if err == nil || check(f) == nil {
			return nil
		}
	}
	return err
}

// look returns what the file says.
func (k *Keys) look() *keyFile {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lookLocked()
	return k.now
}

// lookLocked reads the file if it may not say what it said at the last look.
func (k *Keys) lookLocked() {
	f, err := k.readLocked()
	if err != nil {
		k.stamp = stamp{}
		if k.now != nil && k.now.err != nil && k.now.err.Error() == err.Error() {
			return
		}
		if k.now != nil || !errors.Is(err, fs.ErrNotExist) {
			k.log.Error("nobody can log in", "file", k.path, "err", err)
		}
		f = &keyFile{err: err}
	}
	if f == nil {
		return
	}
	now := time.Now()
	k.past = slices.DeleteFunc(k.past, func(p past) bool { return !now.Before(p.until) })
	if k.now != nil && len(k.past) < maxPast {
		k.past = append(k.past, past{k.now, now.Add(k.grace)})
	}
	k.now = f
}

// readLocked returns what the file says, nil if that is what it said at the last look.
func (k *Keys) readLocked() (*keyFile, error) {
	// By name first: that takes no descriptor, of which there may be none left.
	info, err := os.Stat(k.path)
	if err != nil {
		return nil, err
	}
	if !k.stamp.young && stampOf(info) == k.stamp {
		return nil, nil //nolint:nilnil // nothing new is no error
	}
	// Opened, then looked at: what is checked is what is read. O_NONBLOCK, for a FIFO in its place.
	f, err := os.OpenFile(k.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	b, err := readKeyFile(f, info)
	if err != nil {
		return nil, err
	}
	k.stamp = stampOf(info)
	k.stamp.young = time.Since(k.stamp.mod).Abs() < clockTick || time.Since(k.stamp.meta).Abs() < clockTick
	now := &keyFile{sum: sha256.Sum256(b)}
	if k.now != nil && k.now.err == nil && k.now.sum == now.sum {
		return nil, nil //nolint:nilnil // as above
	}
	now.keys, now.signers = parseKeys(b, k.owner, func(line int, err error) {
		k.log.Warn("line refused", "file", k.path, "line", line, "err", err)
	})
	now.lines = make(map[string][]*grant)
	for _, all := range []map[string]*grant{now.keys, now.signers} {
		for _, g := range all {
			now.lines[g.Line] = append(now.lines[g.Line], g)
		}
	}
	return now, nil
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), mod: info.ModTime(), mode: info.Mode()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.meta = sys.Ino, time.Unix(sys.Ctim.Unix())
	}
	return s
}

func readKeyFile(f *os.File, info fs.FileInfo) ([]byte, error) {
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("others can write it (mode %#o); chmod 600 it", info.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxKeyFile:
		return nil, fmt.Errorf("it is longer than %d bytes", maxKeyFile)
	case bytes.Count(b, []byte("\n")) > maxKeyLines:
		return nil, fmt.Errorf("it has more than %d lines", maxKeyLines)
	}
	return b, nil
}

// parseKeys reads the lines of an authorized_keys file. Lines that are refused are reported, with their number from 1.
func parseKeys(b []byte, owner string, refused func(line int, err error)) (keys, signers map[string]*grant) {
	keys, signers = map[string]*grant{}, map[string]*grant{}
	for n := 1; len(b) > 0; n++ {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		// One line at a time: the library skips lines that it does not understand, and we say which.
		key, _, options, _, err := ssh.ParseAuthorizedKey(line)
		if err == nil {
			err = weak(key)
		}
		if _, cert := key.(*ssh.Certificate); cert && err == nil {
			err = errors.New("it is a certificate; name the authority that signed it, as cert-authority")
		}
		var g *grant
		if err == nil {
			g, err = parseOptions(options, owner)
		}
		if err != nil {
			refused(n, err)
			continue
		}
		g.Key = ssh.FingerprintSHA256(key)
		g.Line = g.Key
		into := keys
		if g.authority {
			into = signers
		}
		if wire := string(key.Marshal()); into[wire] == nil {
			into[wire] = g
		} else {
			refused(n, errors.New("the key is on an earlier line, which counts"))
		}
	}
	return keys, signers
}
