package gateway

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
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("only root can mount a small file system")
	}
	dir := filepath.Join(w.dir, "records")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			w.t.Fatal(err)
		}
		w.t.Skipf("no mounts here: %v", err)
	}
	w.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			w.t.Errorf("unmount: %v", err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	return func() {
			if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); !errors.Is(err,
				unix.ENOSPC) {
				w.t.Fatalf("filling the disk: %v, want ENOSPC", err)
			}
		}, func() {
			if err := os.Remove(ballast); err != nil {
				w.t.Fatal(err)
			}
		}
}

// Where records are strict a session whose output cannot be recorded ends, and nobody is shown what
// is not on disk.
func TestStrictSessionEndsWithTheDisk(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	fill, empty := w.smallDisk("1m")
	w.options.RecordStrict = true
	d := w.start()
	t.Cleanup(d.stop) // before the disk goes
	w.create(d, "demo")
	if res := w.run(d, "echo be''fore"); res.Ended != wire.Done {
		t.Fatalf("result = %+v", res)
	}
	l, err := d.Sessions.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	fill()
	a, err := d.Sessions.Shared(w.ctx(), robot, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	// More than the last page of the file takes.
	reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "head -c 500000 /dev/zero | tr '\\0' x; echo se''cret"})
	if err == nil || reply.Result == nil || reply.Result.Ended != wire.Lost ||
		reply.Result.Output != "" || !strings.Contains(err.Error(), "not recorded: "+
		record.WhyFull) {
		t.Errorf("the agent gets %+v, %v; want it lost, with an error that names the full disk, "+
			"and no output", reply.Result, err)
	}
	w.eventually("the session ends", func() bool { return l.Final() })
	if why := l.State().Reason; !strings.Contains(why, "not recorded: "+record.WhyFull) {
		t.Errorf("the session ended for %q, want the full disk", why)
	}
	shown, err := everything(w.ctx(), l, 0, l.Len())
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(record.Dir(d.registry.Find("demo").Records(), "main", 0),
		record.LogFile))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(log, []byte(shown)) || !strings.Contains(shown, "before") ||
		strings.Contains(shown, "secret") {
		t.Errorf("shown are %d bytes, which are not the first of the %d recorded, or not those",
			len(shown), len(log))
	}
	empty()
	w.eventually("the guest has closed it", func() bool {
		infos, err := d.Sessions.List(w.ctx(), alice, "demo")
		return err == nil && len(infos) == 0
	})
	if res := w.run(d, "echo a''gain"); res.Ended != wire.Done || !strings.Contains(res.Output,
		"again") {
		t.Errorf("a new session: %+v", res)
	}
}

// By default the session goes on, and its record says what it lacks.
func TestSessionGoesOnWithoutDisk(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	fill, empty := w.smallDisk("1m")
	d := w.start()
	t.Cleanup(d.stop)
	w.create(d, "demo")
	w.run(d, "true")
	fill()
	res := w.run(d, "head -c 500000 /dev/zero | tr '\\0' x; echo; echo sh''own")
	if res.Ended != wire.Done || !strings.Contains(res.Output, "shown") {
		t.Errorf("result = %+v", res)
	}
	empty()
	w.eventually("recording goes on", func() bool {
		w.run(d, "true")
		l, err := d.Sessions.Live(w.ctx(), alice, main)
		return err == nil && l.Recording() == ""
	})
	w.run(d, "echo la''ter")
	text, r := w.recorded(d, main)
	if len(r.Gaps()) == 0 || r.Gaps()[0].Why != record.WhyFull || !strings.Contains(text, "later") {
		t.Errorf("gaps %v, text ends in %.40q; want a full disk, and what came later", r.Gaps(),
			text[max(0, len(text)-40):])
	}
}
