package sshd

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestKeysFileRefusedWhole(t *testing.T) {
	key := newSigner(t)
	line := keyLine("", key.PublicKey())
	for _, tt := range []struct {
		name string
		make func(path string) error
	}{
		{"others can write it", func(path string) error { return os.Chmod(path, 0o666) }},
		{"a directory", func(path string) error { os.Remove(path); return os.Mkdir(path, 0o700) }},
		{"a FIFO", func(path string) error { os.Remove(path); return syscall.Mkfifo(path, 0o600) }},
		{"too long", func(path string) error {
			return os.WriteFile(path, []byte(line+"#"+strings.Repeat("x", maxKeyFile)), 0o600)
		}},
		{"a million lines", func(path string) error { return os.WriteFile(path, []byte(line+strings.Repeat("\n", 1e6)), 0o600) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeKeys(t, line)
			if err := tt.make(path); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if g := OpenKeys(path, "owner", nil).lookup(key.PublicKey()); g != nil {
				t.Errorf("let in %+v", g)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
