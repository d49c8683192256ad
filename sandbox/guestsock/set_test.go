package guestsock

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Set opens a sandbox's sockets once, shuts them together, and opens none after Close.
func TestSet(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := NewSet(func(id string) string { return filepath.Join(root, id) },
		slog.New(slog.DiscardHandler))
	first, err := s.Open("a", SSH)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Open("a", SSH); again != first || err != nil {
		t.Errorf("Open of an open socket: got another one, %v", err)
	}
	if _, err := s.Open("a", Tun); err != nil {
		t.Error(err)
	}
	if pid := s.PID("a"); pid != 0 {
		t.Errorf("PID before Admit: got %d", pid)
	}
	first.Admit(42)
	if pid := s.PID("a"); pid != 42 {
		t.Errorf("PID: got %d, want 42", pid)
	}
	if _, err := s.Open("none", SSH); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open without a directory: got %v", err)
	}
	s.Shut("a")
	if s.IsOpen("a") {
		t.Error("a socket is open after Shut")
	}
	if _, err := first.Take(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Take after Shut: got %v, want ErrClosed", err)
	}
	if again, err := s.Open("a", SSH); again == first || err != nil {
		t.Errorf("Open after Shut: got the closed one, %v", err)
	}
	s.Close()
	if _, err := s.Open("a", SSH); !errors.Is(err, ErrClosed) {
		t.Errorf("Open after Close: got %v, want ErrClosed", err)
	}
}
