package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

func TestNotify(t *testing.T) {
	for _, socket := range []string{
		filepath.Join(shortdir.New(t), "notify"),
		"@sandboxd-test-notify-" + filepath.Base(t.TempDir()) + t.Name(),
	} {
		t.Setenv("NOTIFY_SOCKET", socket)
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		n := newNotifier()
		if got := os.Getenv("NOTIFY_SOCKET"); got != "" {
			t.Errorf("children inherit NOTIFY_SOCKET=%s", got)
		}
		if err := n.send(t.Context(), "READY=1"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		read, err := manager.Read(b)
		if got := string(b[:read]); err != nil || got != "READY=1" {
			t.Errorf("%s: got %q, %v", socket, got, err)
		}
	}
	if err := newNotifier().send(t.Context(), "READY=1"); err != nil {
		t.Errorf("no manager: %v", err)
	}
}
