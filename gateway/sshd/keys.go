package sshd

import (
	"bytes"
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
type Keys struct {
	path  string
	owner string // of lines without principal
	log   *slog.Logger

	mu      sync.Mutex
	stamp   stamp             // guarded by mu; of the file that was read
	keys    map[string]*grant // guarded by mu; by wire form; authorities apart
	signers map[string]*grant // guarded by mu; the authorities
}

// stamp tells one state of a file from another.
type stamp struct {
	size  int64
	mod   time.Time
	inode uint64
	mode  fs.FileMode // chmod leaves the time alone
}

// OpenKeys reads path. A missing file lets nobody in until it appears; so does one that cannot be read, which is logged.
// Lines without a principal belong to owner. A nil log discards.
func OpenKeys(path, owner string, log *slog.Logger) *Keys {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &Keys{path: path, owner: owner, log: log}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	return k
}

// Principals returns how many principals can log in. An authority can name any number and counts as two.
func (k *Keys) Principals() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	names := map[string]bool{}
	for _, g := range k.keys {
		names[g.Name] = true
	}
	return len(names) + 2*len(k.signers)
}

// LogsIn reports whether a key is listed as the principal's, and whether an authority may name it in certificates.
func (k *Keys) LogsIn(principal string) (key, certificate bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	for _, g := range k.keys {
		key = key || g.Name == principal
	}
	for _, g := range k.signers {
		certificate = certificate || len(g.principals) == 0 || slices.Contains(g.principals, principal)
	}
	return key, certificate
}

// lookup returns the grant of a key that may log in itself, nil if there is none.
func (k *Keys) lookup(key ssh.PublicKey) *grant {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	return k.keys[string(key.Marshal())]
}

// authority returns the grant of a key that may sign certificates, nil if it may not.
func (k *Keys) authority(key ssh.PublicKey) *grant {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshLocked()
	return k.signers[string(key.Marshal())]
}

// refreshLocked reads the file if it is not the one that was read last.
func (k *Keys) refreshLocked() {
	// Opened, then looked at: what is checked is what is read. O_NONBLOCK, for a FIFO in its place.
	f, err := os.OpenFile(k.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if k.stamp != (stamp{}) || k.keys == nil {
			if !errors.Is(err, fs.ErrNotExist) {
				k.log.Error("nobody can log in", "err", err)
			}
			k.stamp, k.keys, k.signers = stamp{}, map[string]*grant{}, nil
		}
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		k.log.Error("nobody can log in", "err", err)
		k.stamp, k.keys, k.signers = stamp{}, map[string]*grant{}, nil
		return
	}
	now := stamp{size: info.Size(), mod: info.ModTime(), mode: info.Mode()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		now.inode = s.Ino
	}
	if now == k.stamp && k.keys != nil {
		return
	}
	k.stamp = now
	k.keys, k.signers = map[string]*grant{}, map[string]*grant{}
	b, err := readKeyFile(f, info)
	if err != nil {
		k.log.Error("nobody can log in", "file", k.path, "err", err)
		return
	}
	k.keys, k.signers = parseKeys(b, k.owner, func(line int, err error) {
		k.log.Warn("line refused", "file", k.path, "line", line, "err", err)
	})
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
