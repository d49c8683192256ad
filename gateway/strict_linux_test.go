package gateway_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// smallDisk makes the records of w lie on a file system of that size, and returns what fills it and
// what empties it.
func (w *world) smallDisk(size string) (fill, empty func()) {
	w.T.Helper()
	if os.Geteuid() != 0 {
		w.T.Skip("only root can mount a small file system")
	}
	dir := filepath.Join(w.Dir, "records")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.T.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			w.T.Fatal(err)
		}
		w.T.Skipf("no mounts here: %v", err)
	}
	w.T.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			w.T.Errorf("unmount: %v", err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	return func() {
			if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); !errors.Is(err,
				unix.ENOSPC) {
				w.T.Fatalf("filling the disk: %v, want ENOSPC", err)
			}
		}, func() {
			if err := os.Remove(ballast); err != nil {
				w.T.Fatal(err)
			}
		}
}

// Where records are strict a session whose output cannot be recorded ends, and nobody is shown what
// is not on disk.
func TestStrictSessionEndsWithTheDisk(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	fill, empty := w.smallDisk("1m")
	w.Options.RecordStrict = true
	d := w.Start()
	t.Cleanup(d.End) // before the disk goes
	w.Create(d, "demo")
	if res := w.Run(d, "echo be''fore"); res.Ended != wire.Done {
		t.Fatalf("result = %+v", res)
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	fill()
	a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	// More than the last page of the file takes.
	reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "head -c 500000 /dev/zero | tr '\\0' x; echo se''cret"})
	if err == nil || reply.Result == nil || reply.Result.Ended != wire.Lost ||
		reply.Result.Output != "" || !strings.Contains(err.Error(), "not recorded: "+
		record.WhyFull) {
		t.Errorf("the agent gets %+v, %v; want it lost, with an error that names the full disk, "+
			"and no output", reply.Result, err)
	}
	w.Eventually("the session ends", func() bool { return l.Final() })
	if why := l.State().Reason; !strings.Contains(why, "not recorded: "+record.WhyFull) {
		t.Errorf("the session ended for %q, want the full disk", why)
	}
	shown, err := readTo(w.Ctx(), l, 0, l.Len())
	if err != nil {
		t.Fatal(err)
	}
	dir := record.Dir(d.Registry().Find("demo").Records(), "main", 0)
	log, err := os.ReadFile(filepath.Join(dir, record.LogFile))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(log, []byte(shown)) || !strings.Contains(shown, "before") ||
		strings.Contains(shown, "secret") {
		t.Errorf("shown are %d bytes, which are not the first of the %d recorded, or not those",
			len(shown), len(log))
	}
	empty()
	w.Eventually("the guest has closed it", func() bool {
		infos, err := d.Sessions.List(w.Ctx(), alice, "demo")
		return err == nil && len(infos) == 0
	})
	if res := w.Run(d, "echo a''gain"); res.Ended != wire.Done || !strings.Contains(res.Output,
		"again") {
		t.Errorf("a new session: %+v", res)
	}
}

// By default the session goes on, and its record says what it lacks.
func TestSessionGoesOnWithoutDisk(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	fill, empty := w.smallDisk("1m")
	d := w.Start()
	t.Cleanup(d.End)
	w.Create(d, "demo")
	w.Run(d, "true")
	fill()
	res := w.Run(d, "head -c 500000 /dev/zero | tr '\\0' x; echo; echo sh''own")
	if res.Ended != wire.Done || !strings.Contains(res.Output, "shown") {
		t.Errorf("result = %+v", res)
	}
	empty()
	w.Eventually("recording goes on", func() bool {
		w.Run(d, "true")
		l, err := d.Sessions.Live(w.Ctx(), alice, main)
		return err == nil && l.Recording() == ""
	})
	w.Run(d, "echo la''ter")
	text, r := w.Recorded(d, main)
	if len(r.Gaps()) == 0 || r.Gaps()[0].Why != record.WhyFull || !strings.Contains(text, "later") {
		t.Errorf("gaps %v, text ends in %.40q; want a full disk, and what came later", r.Gaps(),
			text[max(0, len(text)-40):])
	}
}
