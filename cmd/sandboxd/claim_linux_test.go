package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// claimed is the result of the claims of one round, as the callers saw it.
type claimed struct {
	mu sync.Mutex
	// guarded by mu; acknowledged sandboxes, by owner and name
	ids   map[string]string
	gone  map[string]bool // guarded by mu; acknowledged removals
	asked map[string]bool // guarded by mu; all attempts
}

// as logs in as an owner with its own key.
func (m *machine) as(ctx context.Context, identity, user string) (*agent.Client, error) {
	return agent.Dial(ctx, "ssh://"+user+"@"+m.at.SSH,
		agent.Options{Kind: agent.KindGateway, State: m.state,
			KnownHosts: []string{m.at.KnownHosts},
			Identity:   identity, DialTimeout: patience})
}

// claims creates, marks and removes pooled sandboxes until the daemon ends.
func (m *machine) claims(ctx context.Context, identity, owner string, round int, did *claimed) {
	c, err := m.as(ctx, identity, "sandboxd")
	if err != nil {
		return
	}
	defer c.Close()
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s-%d-%d", owner, round, n)
		did.mu.Lock()
		did.asked[name] = true
		did.mu.Unlock()
		s, err := ask(ctx, c, "new --json --image sandboxd/busybox:latest "+name)
		var info lifecycle.Info
		if err != nil || s.code != 0 || json.Unmarshal([]byte(s.out), &info) != nil {
			return
		}
		did.mu.Lock()
		did.ids[name] = info.ID
		did.mu.Unlock()
		if s, err = ask(ctx, c,
			"exec "+name+" -- sh -c 'cat /mine 2>/dev/null; echo "+name+" >>/mine'"); err != nil {
			return
		} else if s.out != "" {
			m.t.Errorf("%s was somebody's before: %q", name, s.out)
		}
		if n%2 == 1 {
			did.mu.Lock()
			delete(did.ids, name) // unknown until it is acknowledged
			did.mu.Unlock()
			if s, err = ask(ctx, c, "rm -f "+name); err != nil || s.code != 0 {
				return
			}
			did.mu.Lock()
			did.gone[name] = true
			did.mu.Unlock()
		}
	}
}

// owned returns the sandboxes of the owner of that key.
func (m *machine) owned(identity string) map[string]lifecycle.Info {
	m.t.Helper()
	c, err := m.as(m.ctx(), identity, "sandboxd")
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	s, err := ask(m.ctx(), c, "ls --json")
	if err != nil || s.code != 0 {
		m.t.Fatalf("ls: %v, %+v", err, s)
	}
	all := make(map[string]lifecycle.Info)
	for line := range strings.Lines(s.out) {
		var info lifecycle.Info
		if err := json.Unmarshal([]byte(line), &info); err != nil {
			m.t.Fatal(err)
		}
		all[info.Name] = info
	}
	return all
}

// kill -9 of the daemon while several owners claim pooled sandboxes: acknowledged sandboxes exist
// and keep their owner, none has two owners or a former one, removed ones have no owner, and the
// pool is full again.
func TestClaimsAndKills(t *testing.T) {
	rounds := times(t, "SANDBOXD_TEST_KILLS", 6)
	const size = 3
	m := newMachine(t)
	m.env = []string{"SANDBOXD_MAX_SANDBOXES=1000", fmt.Sprintf("SANDBOXD_POOL_SIZE=%d", size),
		"SANDBOXD_POOL_IMAGES=sandboxd/busybox:latest", "SANDBOXD_NETWORK=none"}
	m.start()
	bob := filepath.Join(m.dir, "bob")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		bob).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	key, err := os.ReadFile(bob + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := os.OpenFile(filepath.Join(m.state, "authorized_keys"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintf(keys, "\nprincipal=\"bob\" %s", key)
	}
	if err != nil || keys.Close() != nil {
		t.Fatal(err)
	}
	who := map[string]string{"own": m.at.Identity, "bob": bob}
	full := func() {
		t.Helper()
		m.eventually("the pool is full", func() bool {
			return strings.Contains(m.control("pool --json"), fmt.Sprintf(`"ready":%d`, size))
		})
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	acknowledged := 0
	for round := range rounds {
		full()
		did := &claimed{ids: make(map[string]string), gone: make(map[string]bool),
			asked: make(map[string]bool)}
		ctx, cancel := context.WithCancel(m.ctx())
		var wg sync.WaitGroup
		for owner, identity := range who {
			wg.Go(func() { m.claims(ctx, identity, owner, round, did) })
		}
		at := time.NewTimer(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
		<-at.C
		m.kill()
		cancel()
		wg.Wait()
		m.start()
		full()
		acknowledged += len(did.ids) + len(did.gone)
		owners := make(map[string]string) // by id
		for owner, identity := range who {
			m.eventually("no removal is under way", func() bool {
				for _, info := range m.owned(identity) {
					if info.State == lifecycle.Creating || info.State == lifecycle.Deleting &&
						info.Reason != interrupted {
						return false
					}
				}
				return true
			})
			has := m.owned(identity)
			maps.DeleteFunc(has, func(_ string, info lifecycle.Info) bool {
				return info.State == lifecycle.Deleting
			})
			for name, id := range did.ids {
				if strings.HasPrefix(name, owner+"-") &&
					(has[name].ID != id || has[name].State != lifecycle.Running) {
					t.Errorf("round %d: %s was acknowledged as %s, and is %q, %s", round, name, id,
						has[name].ID, has[name].State)
				}
			}
			for name, info := range has {
				switch other := owners[info.ID]; {
				case other != "":
					t.Errorf("round %d: %s is %s's and %s's", round, info.ID, owner, other)
				case !did.asked[name] || !strings.HasPrefix(name, owner+"-") || did.gone[name]:
					t.Errorf("round %d: %s has %s, which they do not have", round, owner, name)
				}
				owners[info.ID] = owner
				c, err := m.as(m.ctx(), identity, name)
				if err != nil {
					t.Fatal(err)
				}
				if s, err := ask(m.ctx(), c, "cat /mine 2>/dev/null; hostname"); err != nil ||
					!slices.Contains([]string{info.ID + "\n", name + "\n", name + "\n" + info.ID +
						"\n", name + "\n" + name + "\n"}, s.out) {
					t.Errorf("round %d: in %s: %v, %+v", round, name, err, s)
				}
				c.Close()
			}
			if len(has) > 0 {
				c, err := m.as(m.ctx(), identity, "sandboxd")
				if err != nil {
					t.Fatal(err)
				}
				if s, err := ask(m.ctx(), c, "rm -f "+strings.Join(slices.Collect(maps.Keys(has)),
					" ")); err != nil || s.code != 0 {
					t.Errorf("round %d: %v, %+v", round, err, s)
				}
				c.Close()
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d times killed, %d claims acknowledged", rounds, acknowledged)
	if acknowledged == 0 {
		t.Error("nothing was claimed: nothing was tested")
	}
	full()
	id, err := os.ReadFile(filepath.Join(m.state, "daemon_id"))
	if err != nil {
		t.Fatal(err)
	}
	// also of creations that the last kill interrupted, which the daemon looks for during half a
	// minute
	m.eventually("only the pool is left", func() bool {
		return len(m.engine("ps", "-aq", "--filter",
			"label=sandboxd.daemon="+strings.TrimSpace(string(id)))) == size
	})
	m.control("pool --drain")
}
