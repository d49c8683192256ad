package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stateDir returns a path for a state directory that does not exist yet.
func stateDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "state")
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func row(id, name string) Sandbox {
	now := time.UnixMilli(1_700_000_000_123)
	return Sandbox{ID: id, Name: name, Owner: "alice", Spec: []byte(`{"Image":"x"}`),
		Instance: []byte{}, State: "creating", Since: now, Created: now}
}

func TestRowsSurviveReopening(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	want := row("id1", "demo")
	if err := s.Add(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	want.State, want.Instance, want.Error = "broken", []byte(`{"ref":"c1"}`),
		"no\x00 such \xff thing"
	want.Since = want.Since.Add(time.Second)
	if err := s.Put(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := s.AddEvents(t.Context(), Event{Sandbox: "id1", Time: want.Since, Kind: "exec",
		Data: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	got, err := s.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Sandbox{want}, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	events, err := s.Events(t.Context(), "id1", 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Event{{Sandbox: "id1", Time: want.Since, Kind: "exec",
		Data: []byte(`{}`)}}, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestNameIsHeldWhileLive(t *testing.T) {
	s := open(t, stateDir(t))
	first := row("id1", "demo")
	if err := s.Add(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(t.Context(), row("id2", "demo")); !errors.Is(err, ErrNameTaken) {
		t.Fatalf("second of one name: %v, want ErrNameTaken", err)
	}
	if err := s.Add(t.Context(), row("id1", "other")); err == nil || errors.Is(err, ErrNameTaken) {
		t.Fatalf("second of one id: %v, want another error than ErrNameTaken", err)
	}
	first.State = Deleting
	if err := s.Put(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(t.Context(), row("id2", "demo")); err != nil {
		t.Fatalf("name of a sandbox that is being deleted: %v", err)
	}
	if err := s.Put(t.Context(), row("id9", "x")); !errors.Is(err, ErrNoSandbox) {
		t.Fatalf("put of nothing: %v, want ErrNoSandbox", err)
	}
	for range 2 {
		if err := s.Delete(t.Context(), "id1"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneOfManyGetsTheName(t *testing.T) {
	s := open(t, stateDir(t))
	var wg sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		wg.Go(func() { errs[i] = s.Add(t.Context(), row(fmt.Sprint("id", i), "demo")) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, ErrNameTaken):
			t.Errorf("loser: %v, want ErrNameTaken", err)
		}
	}
	if won != 1 {
		t.Errorf("%d calls won, want 1", won)
	}
}

// A program that connects without end does not displace other events, such as who allowed what.
func TestConnectionsPushOutNoOtherEvents(t *testing.T) {
	s := open(t, stateDir(t))
	if err := s.Add(t.Context(), row("id1", "demo")); err != nil {
		t.Fatal(err)
	}
	batch := []Event{{Sandbox: "id1", Kind: "allow"}}
	for range keptEvents + keptConnections {
		batch = append(batch, Event{Sandbox: "id1", Kind: Connection})
	}
	for _, events := range [][]Event{batch, {{Sandbox: "id1", Kind: "share"}},
		{{Sandbox: "id1", Kind: Connection}}} {
		if err := s.AddEvents(t.Context(), events...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Events(t.Context(), "id1", 2*keptEvents)
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, e := range got {
		kinds[e.Kind]++
	}
	if diff := cmp.Diff(map[string]int{"allow": 1, "share": 1, Connection: keptConnections},
		kinds); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestEventsAreTrimmedAndGoWithTheirSandbox(t *testing.T) {
	s := open(t, stateDir(t))
	if err := s.Add(t.Context(), row("id1", "demo")); err != nil {
		t.Fatal(err)
	}
	var batch []Event
	for i := range keptEvents + 7 {
		batch = append(batch, Event{Sandbox: "id1", Kind: fmt.Sprint(i), Data: []byte(`{}`)})
	}
	batch = append(batch, Event{Sandbox: "gone", Kind: "exec"})
	if err := s.AddEvents(t.Context(), batch...); err != nil {
		t.Fatal(err)
	}
	got, err := s.Events(t.Context(), "id1", keptEvents*2)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != keptEvents || got[0].Kind != "7" {
		t.Errorf("%d events from %q, want %d from \"7\"", len(got), got[0].Kind, keptEvents)
	}
	if got, _ := s.Events(t.Context(), "id1", 2); len(got) != 2 ||
		got[1].Kind != fmt.Sprint(keptEvents+6) {
		t.Errorf("newest two: %v", got)
	}
	if err := s.Delete(t.Context(), "id1"); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Events(t.Context(), "id1", 10); len(got) != 0 {
		t.Errorf("%d events of a removed sandbox, want 0", len(got))
	}
}

func TestSecondDaemonIsRefusedWithThePid(t *testing.T) {
	dir := stateDir(t)
	first := open(t, dir)
	_, err := Open(t.Context(), dir)
	locked, ok := errors.AsType[*LockedError](err)
	if !ok || locked.Pid != os.Getpid() {
		t.Fatalf("second Open: %v, want *LockedError with pid %d", err, os.Getpid())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

func TestRuns(t *testing.T) {
	dir := stateDir(t)
	if Runs(dir, os.Getpid()) {
		t.Error("a daemon runs in a directory that does not exist")
	}
	st := open(t, dir)
	if !Runs(dir, os.Getpid()) {
		t.Error("the daemon that holds the lock does not run")
	}
	if Runs(dir, os.Getppid()) {
		t.Error("another process runs as the daemon")
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if Runs(dir, os.Getpid()) {
		t.Error("a daemon runs after its end")
	}
}

// TestRunsBesideOtherLocks checks that a daemon runs while others lock other files, and that the
// question does not keep a daemon from its start.
func TestRunsBesideOtherLocks(t *testing.T) {
	dir := stateDir(t)
	st := open(t, dir)
	var others sync.WaitGroup
	others.Go(func() { // with a list of locks that is longer than a page, and changes
		for range 20 {
			var held []*lock
			for range 150 {
				if l, err := lockDir(t.TempDir()); err != nil {
					t.Error(err)
				} else {
					held = append(held, l)
				}
			}
			for _, l := range held {
				if err := l.release(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	ended := make(chan struct{})
	go func() { others.Wait(); close(ended) }()
	n := 0
	for done := false; !done; n++ {
		if !Runs(dir, os.Getpid()) {
			t.Fatalf("question %d: the daemon that holds the lock does not run", n)
		}
		select {
		case <-ended:
			done = true
		default:
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}

	stop := make(chan struct{})
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					Runs(dir, os.Getpid())
				}
			}
		})
	}
	for range 500 {
		l, err := lockDir(dir)
		if err != nil {
			t.Error(err)
			break
		}
		if err := l.release(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	others.Wait()
}

func TestStaleLockFileIsNoLock(t *testing.T) {
	dir := stateDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

func TestDirectoryThatOthersCouldUseIsRefused(t *testing.T) {
	chmod := func(mode os.FileMode) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"others write": chmod(0o702),
		"group writes": chmod(0o720),
		"others read":  chmod(0o705),
		"symlink": func(t *testing.T, dir string) {
			if err := os.Symlink(t.TempDir(), dir); err != nil {
				t.Fatal(err)
			}
		},
		"file": func(t *testing.T, dir string) {
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := stateDir(t)
			prepare(t, dir)
			_, err := Open(t.Context(), dir)
			refused, ok := errors.AsType[*DirError](err)
			if !ok || refused.Why == "" || refused.Hint == "" {
				t.Fatalf("Open: %v, want *DirError with reason and hint", err)
			}
		})
	}
}

func TestDirectoryOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := stateDir(t)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); err == nil {
		t.Fatal("Open of another user's directory succeeded")
	}
}

func TestFilesAreOurs(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	if err := s.Add(t.Context(), row("id1", "demo")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", e.Name(), info.Mode())
		}
	}
}

func TestDamageIsRefusedAndLeftAlone(t *testing.T) {
	for name, damage := range map[string]func(whole []byte) []byte{
		"empty":            func([]byte) []byte { return nil },
		"cut in header":    func(b []byte) []byte { return b[:10] },
		"cut in half":      func(b []byte) []byte { return b[:len(b)/2] },
		"text":             func([]byte) []byte { return []byte("this is not a database, not at all") },
		"page overwritten": func(b []byte) []byte { copy(b[4096:8192], make([]byte, 4096)); return b },
		"another program's": func(b []byte) []byte {
			// application_id (sqlite.org/fileformat2.html, section 1.3)
			copy(b[68:72], []byte{0, 0, 0, 1})
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := stateDir(t)
			s := open(t, dir)
			for i := range 50 {
				if err := s.Add(t.Context(),
					row(fmt.Sprint("id", i), fmt.Sprint("n", i))); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, File)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bad := damage(whole)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), dir)
			if _, ok := errors.AsType[*DamagedError](err); !ok {
				t.Fatalf("Open: %v, want *DamagedError", err)
			}
			if left, _ := os.ReadFile(path); !bytes.Equal(left, bad) {
				t.Error("the damaged file was changed")
			}
		})
	}
}

func TestDatabaseThatWentMissingIsNotTakenForAFirstStart(t *testing.T) {
	dir := stateDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, File+"-wal"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), dir)
	if _, ok := errors.AsType[*DamagedError](err); !ok {
		t.Fatalf("Open: %v, want *DamagedError", err)
	}
}

func TestNewerStoreIsRefused(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	if _, err := s.db.Exec(
		`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), dir)
	newer, ok := errors.AsType[*NewerError](err)
	if !ok || newer.Have != 99 || newer.Know != 4 {
		t.Fatalf("Open: %v, want *NewerError 99 over 4", err)
	}
}

func TestCrashWhileMakingIsNoDamage(t *testing.T) {
	dir := stateDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, File+".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := s.Add(t.Context(), row("id1", "demo")); err != nil {
		t.Fatal(err)
	}
}

func TestCancelledOpenLeavesNothingLocked(t *testing.T) {
	dir := stateDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, dir); err == nil {
		t.Fatal("Open with an ended ctx succeeded")
	}
	open(t, dir)
}
