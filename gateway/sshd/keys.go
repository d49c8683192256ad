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

// Limits of an authorized_keys file. A larger file is rejected as a whole, because a restriction
// may be in the part that is cut.
const (
	maxKeyFile  = 1 << 20
	maxKeyLines = 10_000
)

// Keys decides who may log in, from a file in OpenSSH's authorized_keys format. Options besides
// sshd's are principal="NAME", kind="agent|person" and role="drive|watch". A line with an unknown
// option is rejected, and so is a file that others can write. The file is read again when it
// changes. Its methods are safe for concurrent use.
//
// A login uses the current content. Existing connections and tokens use any content of the last
// grace period, so that an editor that replaces or rewrites the file ends no access.
type Keys struct {
	path  string
	owner string // of lines without principal
	grace time.Duration
	log   *slog.Logger

	mu    sync.Mutex
	stamp stamp    // guarded by mu; of the file that was read last
	now   *keyFile // guarded by mu; its content
	past  []past   // guarded by mu; contents within the last grace period, oldest first
}

// keyFile is a parsed content of the file. It is immutable. One that could not be read allows no
// logins.
type keyFile struct {
	sum     [sha256.Size]byte // of the content
	err     error             // why it could not be read
	keys    map[string]*grant // by wire format; without authorities
	signers map[string]*grant // authorities, by wire format

	lines map[string][]*grant // both, by fingerprint
}

// past is a content of the file, and when it was found changed.
type past struct {
	*keyFile
	until time.Time
}

// stamp identifies a state of the file.
type stamp struct {
	size  int64
	mod   time.Time
	meta  time.Time // last change of content or inode (ctime, stat(2)), which programs cannot set
	inode uint64
	mode  fs.FileMode
	young bool // read so soon after a change that another change may have the same time
}

const (
	// keysGrace is how long an old content still counts for existing connections and tokens.
	keysGrace = time.Second / 2
	// maxPast limits the number of old contents. More frequent ones do not count.
	maxPast = 8
	// clockTick is more than the resolution of file times.
	clockTick = 2 * time.Second
)

// OpenKeys reads path. A missing or unreadable file allows no logins until it can be read; the
// latter is logged. Lines without a principal belong to owner. A nil log discards.
func OpenKeys(path, owner string, log *slog.Logger) *Keys {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &Keys{path: path, owner: owner, grace: keysGrace, log: log}
	k.look()
	return k
}

// Principals returns the number of principals that can log in. An authority can name any number,
// and counts as two.
func (k *Keys) Principals() int {
	f := k.look()
	names := map[string]bool{}
	for _, g := range f.keys {
		names[g.Name] = true
	}
	return len(names) + 2*len(f.signers)
}

// LogsIn reports whether the principal has a key, and whether an authority may name it in
// certificates. Expired lines do not count.
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

// Backs returns why p can no longer hold a token, or nil if the line that p logged in with could
// create it now. p.Line names that line. If it is empty, any line of p's principal counts.
func (k *Keys) Backs(p gateway.Principal) error {
	now := time.Now()
	return k.recent(now).holds(func(f *keyFile) error { return f.backs(p, now) })
}

// recent is the current content of the file, followed by those of the last grace period.
type recent []*keyFile

// recent checks the file and returns its contents.
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

// holds returns nil if check does for any content, otherwise the error for the current one.
func (r recent) holds(check func(*keyFile) error) error {
	err := check(r[0])
	for _, f := range r[1:] {
		if err == nil || check(f) == nil {
			return nil
		}
	}
	return err
}

// look returns the current content.
func (k *Keys) look() *keyFile {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lookLocked()
	return k.now
}

// lookLocked reads the file if it may have changed.
func (k *Keys) lookLocked() {
	f, err := k.readLocked()
	if err != nil {
		k.stamp = stamp{}
		if k.now != nil && k.now.err != nil && k.now.err.Error() == err.Error() {
			return
		}
		if k.now != nil || !errors.Is(err, fs.ErrNotExist) {
			k.log.Error("cannot read authorized_keys; logins are disabled", "file", k.path, "err",
				err)
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

// readLocked returns the content, or nil if it has not changed.
func (k *Keys) readLocked() (*keyFile, error) {
	// Stat first, because it needs no descriptor, and there may be none left.
	info, err := os.Stat(k.path)
	if err != nil {
		return nil, err
	}
	if !k.stamp.young && stampOf(info) == k.stamp {
		return nil, nil //nolint:nilnil // unchanged
	}
	// Open before the checks, so that they apply to what is read. O_NONBLOCK in case of a FIFO.
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
	k.stamp.young = time.Since(k.stamp.mod).Abs() < clockTick ||
		time.Since(k.stamp.meta).Abs() < clockTick
	now := &keyFile{sum: sha256.Sum256(b)}
	if k.now != nil && k.now.err == nil && k.now.sum == now.sum {
		return nil, nil //nolint:nilnil // as above
	}
	now.keys, now.signers = parseKeys(b, k.owner, func(line int, err error) {
		k.log.Warn("line rejected", "file", k.path, "line", line, "err", err)
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
	s.inode, s.meta = identityOf(info)
	return s
}

func readKeyFile(f *os.File, info fs.FileInfo) ([]byte, error) {
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("other users can write it (mode %#o); run chmod 600",
			info.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxKeyFile:
		return nil, fmt.Errorf("longer than %d bytes", maxKeyFile)
	case bytes.Count(b, []byte("\n")) > maxKeyLines:
		return nil, fmt.Errorf("more than %d lines", maxKeyLines)
	}
	return b, nil
}

// parseKeys parses the lines of an authorized_keys file. It reports rejected lines with their
// number, from 1.
func parseKeys(b []byte, owner string, refused func(line int, err error)) (keys,
	signers map[string]*grant) {
	keys, signers = map[string]*grant{}, map[string]*grant{}
	for n := 1; len(b) > 0; n++ {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		// Parse one line at a time: the library skips invalid lines, which must be reported.
		key, _, options, _, err := ssh.ParseAuthorizedKey(line)
		if err == nil {
			err = weak(key)
		}
		if _, cert := key.(*ssh.Certificate); cert && err == nil {
			err = errors.New("a certificate; list its authority with cert-authority instead")
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
			refused(n, errors.New("duplicate key; the earlier line applies"))
		}
	}
	return keys, signers
}
