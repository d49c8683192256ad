package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func leftIn(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the files are being removed
		}
		if err == nil && path != dir {
			found = append(found, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Sessions on a host with the guest work as in a container, outlive the connection, and leave
// nothing behind.
func TestGuest(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines []string
	}{
		{"by its socket", nil},
		{"by a program", []string{"AllowStreamLocalForwarding no"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := openSSH(t, settings{lines: tt.lines})
			b := newBackend(t)
			inst := boot(t, b, p.spec(t))
			if len(inst.Host.Keys) != 1 {
				t.Errorf("the accepted key is not pinned: %+v", inst.Host)
			}
			c := dialSessions(t, b, inst, TierGuest)
			client := attach(t, c, "main", wire.Start{})
			res := run(t, client, "echo hello; (exit 7)")
			if res.Output != "hello\n" || exitCode(res) != "7" ||
				!slices.Equal(res.Basis, []wire.Basis{wire.BasisProcess, wire.BasisMark}) {
				t.Errorf("run: got %q, %s, basis %v; want hello, 7, by process and mark",
					res.Output, exitCode(res), res.Basis)
			}
			if res := do(t, client, wire.Request{Verb: wire.VerbRun,
				Text: "x=kept; read -p 'name? ' y"}); res.Ended != wire.Waiting ||
				res.Prompt != "name?" && res.Prompt != "name? " {
				t.Errorf("read: got %+v, want waiting", res)
			}
			if reply, err := c.Do(timeout(t), wire.Control{Do: "health"}); err != nil ||
				reply.Health != "ok" {
				t.Errorf("health: got %q, %v", reply.Health, err)
			}
			for _, dir := range []string{".cache", ".cache/sandboxd-guest",
				".cache/sandboxd-guest/" + inst.ID} {
				if st, err := os.Stat(filepath.Join(p.home, dir)); err != nil ||
					st.Mode().Perm() != 0o700 {
					t.Errorf("%s: %v, %v; want mode 0700", dir, st.Mode(), err)
				}
			}
			c.Close() // like a loss of the network or the daemon

			c = dialSessions(t, b, inst, TierGuest)
			client = attach(t, c, "main", wire.Start{})
			if res := do(t, client, wire.Request{Verb: wire.VerbType,
				Text: "bob"}); res.Ended != wire.Done {
				t.Errorf("type: got %+v", res)
			}
			if res := run(t, client, `echo "$x $y"`); res.Output != "kept bob\n" {
				t.Errorf("after a new connection: got %q, want kept bob", res.Output)
			}
			do(t, client, wire.Request{Verb: wire.VerbRun,
				Text: "setsid sleep 1000 & sleep 2000 & disown"})
			c.Close()
			if err := b.Destroy(timeout(t), inst); err != nil {
				t.Fatalf("Destroy: %v", err)
			}
			if left := leftIn(t, p.home); len(left) > 0 &&
				!slices.Equal(left, []string{".bash_history"}) {
				t.Errorf("files are left: %v", left)
			}
			until(t, "all processes are gone", func() bool { return len(ours(t, p.home)) == 0 })
		})
	}
}

// Two sandboxes on one account share only the binary.
func TestSideBySide(t *testing.T) {
	p := openSSH(t, settings{})
	b := newBackend(t)
	one, two := boot(t, b, p.spec(t)), boot(t, b, p.spec(t))
	run(t, attach(t, dialSessions(t, b, one, TierGuest), "main", wire.Start{}), "x=one")
	if err := b.Destroy(timeout(t), one); err != nil {
		t.Fatal(err)
	}
	c := dialSessions(t, b, two, TierGuest)
	if res := run(t, attach(t, c, "main", wire.Start{}), `echo "<$x>"`); res.Output != "<>\n" {
		t.Errorf("got %q, want the other's shell untouched", res.Output)
	}
	if guests, _ := filepath.Glob(p.home + "/.cache/sandboxd-guest/guest-*"); len(guests) != 1 {
		t.Errorf("guests: %v, want one", guests)
	}
}

// Streams beyond the limit of one connection use further ones.
func TestMaxSessions(t *testing.T) {
	p := openSSH(t, settings{lines: []string{"MaxSessions 2", "AllowStreamLocalForwarding no"}})
	b := newBackend(t)
	c := dialSessions(t, b, boot(t, b, p.spec(t)), TierGuest)
	var clients []*wire.Client
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		clients = append(clients, attach(t, c, name, wire.Start{}))
	}
	for _, client := range clients {
		if res := run(t, client, "echo here"); res.Output != "here\n" {
			t.Errorf("got %q, want here", res.Output)
		}
	}
}

// Neither output of start-up files nor a shell that they start affects the guest.
func TestHostileStart(t *testing.T) {
	if _, err := os.Stat("/usr/bin/zsh"); err != nil {
		needed(t, "zsh")
	}
	for _, rc := range []string{"echo noise; echo more >&2\n", "echo noise; exec zsh\n",
		"cat <<< 'no newline at the end' | tr -d '\\n'\n"} {
		t.Run(rc, func(t *testing.T) {
			p := openSSH(t, settings{lines: []string{"AllowStreamLocalForwarding no"}, rc: rc})
			b := newBackend(t)
			c := dialSessions(t, b, boot(t, b, p.spec(t)), TierGuest)
			client := attach(t, c, "prog", wire.Start{Argv: []string{"/bin/cat"}})
			if res := do(t, client, wire.Request{Verb: wire.VerbType,
				Text: "echoed"}); res.Ended != wire.Waiting ||
				!strings.Contains(res.Output, "echoed") {
				t.Errorf("got %+v, want cat waiting", res)
			}
		})
	}
}

// An abandoned Boot leaves nothing behind.
func TestBootCancelled(t *testing.T) {
	p := openSSH(t, settings{})
	b := newBackend(t)
	began := time.Now()
	inst, err := b.Boot(timeout(t), p.spec(t))
	if err != nil {
		t.Fatal(err)
	}
	whole := time.Since(began)
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Fatal(err)
	}
	for part := 0.1; part < 1; part += 0.1 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(part*float64(whole)))
		spec := p.spec(t)
		say := spec.Progress
		var said string
		spec.Progress = func(s string) { said = s; say(s) }
		inst, err := b.Boot(ctx, spec)
		cancel()
		if err == nil { // it completed first
			if !strings.Contains(said, "tier guest") {
				t.Errorf("an interrupted login counts as a machine with a lower tier: %s", said)
			}
			if err := b.Destroy(timeout(t), inst); err != nil {
				t.Errorf("Destroy: %v", err)
			}
		} else if !errors.As(err, new(*sandbox.BootError)) {
			t.Errorf("got error %v, want a BootError", err)
		}
		until(t, "nothing is left", func() bool {
			return len(leftIn(t, p.home)) == 0 && len(ours(t, p.home)) == 0
		})
	}
}
