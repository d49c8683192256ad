package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// placer keeps copies of files that containers mount, named by checksum. A container mounts its
// file for its whole life, so a copy is never replaced.
type placer struct {
	dir string

	mu    sync.Mutex
	known map[string]placed // guarded by mu; by source and name
}

type placed struct {
	path string
	size int64 // of the source when it was copied
	time time.Time
}

// place returns the path of the copy of source, dir/name-<first 12 digits of its SHA-256>. It makes
// the copy if it is missing.
func (p *placer) place(source, name string, mode os.FileMode) (string, error) {
	info, err := os.Stat(source)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := name + "\x00" + source
	if got, ok := p.known[key]; ok && got.size == info.Size() && got.time.Equal(info.ModTime()) {
		if _, err := os.Stat(got.path); err == nil {
			return got.path, nil
		}
	}
	path, err := p.copy(source, name, mode)
	if err != nil {
		return "", err
	}
	if p.known == nil {
		p.known = make(map[string]placed)
	}
	p.known[key] = placed{path, info.Size(), info.ModTime()}
	return path, nil
}

func (p *placer) copy(source, name string, mode os.FileMode) (string, error) {
	in, err := os.Open(source)
	if err != nil {
		return "", err
	}
	defer in.Close()
	path, err := p.keep(in, name, mode)
	if err != nil {
		return "", fmt.Errorf("copy %s: %w", source, err)
	}
	return path, nil
}

// write is like place, for bytes.
func (p *placer) write(text []byte, name string, mode os.FileMode) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keep(bytes.NewReader(text), name, mode)
}

func (p *placer) keep(in io.Reader, name string, mode os.FileMode) (string, error) {
	tmp, err := os.CreateTemp(p.dir, ".new-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name()) // no effect after the rename
	defer tmp.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(tmp, sum), in); err != nil {
		return "", err
	}
	path := filepath.Join(p.dir, name+"-"+hex.EncodeToString(sum.Sum(nil))[:12])
	if same(path, sum.Sum(nil)) {
		return path, nil
	}
	if err := tmp.Chmod(mode); err != nil {
		return "", err
	}
	if err := tmp.Sync(); err != nil {
		return "", err
	}
	// Containers that run from a damaged copy keep its inode; new ones get an intact file.
	return path, os.Rename(tmp.Name(), path)
}

// same reports whether the file at path has the checksum want.
func same(path string, want []byte) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return err == nil && string(sum.Sum(nil)) == string(want)
}
