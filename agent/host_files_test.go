package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// Files works by commands on a host without SFTP that allows few channels.
func TestHostFilesWithoutSFTP(t *testing.T) {
	server := openssh.Start(
		t,
		openssh.Settings{NoSFTP: true, RC: "echo noise\n", Lines: []string{"MaxSessions 2"}},
	)
	c := dialHost(t, server.URI(), hostOptions(t, server), agent.TierMarks)
	files, err := c.Files(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	body := make([]byte, 3<<20)
	rand.Read(body)
	name, old := server.Home+"/it's made", time.Unix(981173106, 0)
	w, err := files.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.ReadFrom(bytes.NewReader(body))
	if err := errors.Join(err, w.Chmod(0o640), w.Close(),
		files.Chtimes(name, old, old)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, body) {
		t.Errorf("there are %d bytes, %v; want %d, the same", len(got), err, len(body))
	}
	list, err := files.ReadDir(server.Home)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, st := range list {
		found = found ||
			st.Name() == "it's made" && st.Size() == int64(len(body)) && st.Mode() == 0o640 &&
				st.ModTime().Equal(old)
	}
	if !found {
		t.Errorf("list: %v", list)
	}
	r, err := files.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	var back bytes.Buffer
	_, err = r.WriteTo(&back)
	if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(back.Bytes(), body) {
		t.Errorf("%d bytes came back, %v", back.Len(), err)
	}
	if err := errors.Join(files.PosixRename(name, name+"2"), files.Remove(name+"2")); err != nil {
		t.Error(err)
	}
	if _, err := files.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}

	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	if _, err := c.Files(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := files.Stat(server.Home); err == nil {
		t.Error("a closed client has files")
	}
}
