package egress

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// restart restarts the stack with other options.
func (w *world) restart(change func(*Options)) {
	w.t.Helper()
	must(w.t, w.stack.Close())
	w.change = change
	w.start(ModeFiltered)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// A sandbox gets connections up to its limit, an event for each further one, and gives all back.
func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	const most, more = 20, 30
	budget := NewBudget(10 * most)
	w.restart(func(o *Options) { o.Budget, o.Connections = budget, most })
	w.internet.listen(t, 7, echoes)
	w.internet.listenUDP(t, 7, func(b []byte) []byte { return b })
	before := descriptors(t)
	var open []net.Conn
	for range more {
		if c, err := w.dial("tcp", public+":7"); err == nil {
			open = append(open, c)
		}
	}
	if len(open) != most {
		t.Errorf("%d connections are open, want %d", len(open), most)
	}
	// Each has the program's end, the daemon's, the server's, and a pipe for the copy here.
	if held := descriptors(t) - before; held > 5*most+10 {
		t.Errorf("%d descriptors more", held)
	}
	for range more - most {
		if e := w.await("refused", is(KindRefused,
			public)); e.Why != "20 connections are open, the limit of this sandbox" ||
			e.Limit != LimitSandbox || e.Opens != "" || e.Addr.Port() != 7 {
			t.Errorf("got %+v", e)
		}
	}
	if err := w.tries("udp", public+":7"); err == nil {
		t.Error("datagrams go on beyond the limit")
	}
	w.await("refused", func(e Event) bool { return e.Kind == KindRefused && e.Proto == "udp" })
	for _, c := range open {
		c.Close()
	}
	for range open {
		w.await("closed", is(KindClosed, public))
	}
	must(t, w.tries("tcp", public+":7"))
	must(t, w.tries("udp", public+":7"))

	// Connections of others are not available.
	must(t, w.stack.Close())
	w.start(ModeFiltered)
	if budget.take(10*most) != (refusal{}) {
		t.Fatalf("%d descriptors were not given back", budget.used)
	}
	for _, network := range []string{"tcp", "udp"} {
		if err := w.tries(network, public+":7"); err == nil {
			t.Errorf("%s beyond the budget of the daemon", network)
		}
		if e := w.await("refused", is(KindRefused, public)); !strings.Contains(
			e.Why, "the daemon's sandboxes have 200 connections open") || e.Limit != LimitDaemon {
			t.Errorf("got %+v", e)
		}
	}
	if out, err := w.program("getent", "hosts", "two.test"); err == nil {
		t.Errorf("a name was looked up beyond the budget: %s", out)
	}
	w.await("refused", func(e Event) bool {
		return is(KindRefused, "two.test")(e) && e.Proto == "dns"
	})
	budget.give(10 * most)
	must(t, w.tries("tcp", public+":7"))
	must(t, w.stack.Close())
	if budget.used != 0 {
		t.Errorf("%d descriptors were not given back", budget.used)
	}
}

// A sandbox leaves most of the budget to others, whatever its limit.
func TestMostOfABudget(t *testing.T) {
	for _, c := range []struct {
		budget *Budget
		asked  int
		want   int
	}{{nil, 0, DefaultConnections}, {nil, 7, 7}, {NewBudget(400), 0, 100}, {NewBudget(400), 7, 7},
		{NewBudget(400), 4000, 100}, {NewBudget(1), 0, 1}} {
		if got := c.budget.most(c.asked); got != c.want {
			t.Errorf("%d of %+v: got %d, want %d", c.asked, c.budget, got, c.want)
		}
	}
}

// A greedy share leaves capacity for the next one, and stays within its limit.
func TestShares(t *testing.T) {
	all := NewBudget(120)
	greedy := func(b *Budget) (n int, why refusal) {
		for why = b.take(1); why == (refusal{}); why = b.take(1) {
			n++
		}
		return n, why
	}
	first, second, third, bounded := all.Share(0), all.Share(0), all.Share(0), all.Share(5)
	for i, c := range []struct {
		share *Budget
		want  int
		says  string
	}{{first, 60, "60 connections open, and only 60 are left for all owners (connections)"},
		{second, 30, "30 are left"}, {bounded, 5,
			"5 connections open, the limit of one owner (quota.connections)"},
		{third, 13, "12 are left"}} {
		n, why := greedy(c.share)
		if n != c.want || why.limit != LimitOwner || !strings.Contains(why.why, c.says) {
			t.Errorf("owner %d: got %d connections and %+v, want %d and %q", i, n, why, c.want,
				c.says)
		}
	}
	if used := all.Used(); used != 60+30+5+13 {
		t.Errorf("%d are taken of all", used)
	}
	first.give(60)
	if n, _ := greedy(third); n != 30 { // all that are left then, and one
		t.Errorf("after an owner went: got %d more", n)
	}
	second.give(30)
	third.give(43)
	bounded.give(5)
	if all.Used() != 0 || first.Used() != 0 || third.Used() != 0 {
		t.Errorf("not all was given back: %d, %d, %d", all.Used(), first.Used(), third.Used())
	}
	if first.Most() != 60 || bounded.Most() != 5 || all.Share(1000).Most() != 60 ||
		all.Most() != 120 {
		t.Errorf("most: got %d, %d, %d, %d", first.Most(), bounded.Most(), all.Share(1000).Most(),
			all.Most())
	}
	tiny := NewBudget(1)
	if why := tiny.Share(0).take(1); why != (refusal{}) {
		t.Errorf("the only one: %+v", why)
	}
	if why := tiny.Share(0).take(1); why.limit != LimitDaemon {
		t.Errorf("nothing is left: %+v", why)
	}
	if got := all.Share(0).most(0); got != 30 {
		t.Errorf("one sandbox of a share: got %d, want a quarter of all", got)
	}
}

// At the limit of its owner, a sandbox gets an error and an event that name it. After a change of
// the owner, the new owner's limit applies.
func TestShareOfAnOwner(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	all := NewBudget(100)
	one, other := all.Share(3), all.Share(3)
	w.restart(func(o *Options) { o.Budget = one })
	w.internet.listen(t, 7, echoes)
	for range 3 {
		c, err := w.dial("tcp", public+":7")
		must(t, err)
		t.Cleanup(func() { c.Close() })
	}
	if err := w.tries("tcp", public+":7"); err == nil {
		t.Error("one more than its owner may have")
	}
	if e := w.await("refused", is(KindRefused, public)); e.Limit != LimitOwner ||
		!strings.Contains(e.Why, "quota.connections") || e.Opens != "" {
		t.Errorf("got %+v", e)
	}
	w.stack.SetBudget(other)
	must(t, w.tries("tcp", public+":7"))
	must(t, w.stack.Close())
	if one.Used() != 0 || other.Used() != 0 || all.Used() != 0 {
		t.Errorf("not all was given back: %d, %d of %d", one.Used(), other.Used(), all.Used())
	}
}

// The buffers of a sandbox's connections together stay within their limit.
func TestBuffersAreBounded(t *testing.T) {
	worst := 0
	for n := 1; n <= DefaultConnections; n++ {
		worst += 2 * bufferShare(n)
	}
	if most := 256 << 20; worst > most {
		t.Errorf("a sandbox can fill %d MiB of buffers", worst>>20)
	}
	w := newWorld(t, ModeFiltered)
	// Which the program never reads.
	w.internet.listen(t, 7, func(c net.Conn) { _, _ = io.Copy(c, zeros{}) })
	for range 100 {
		_, err := w.dial("tcp", public+":7")
		must(t, err)
	}
	sum := 0
	for _, e := range w.stack.net.RegisteredEndpoints() {
		if e, ok := e.(tcpip.Endpoint); ok {
			sum += int(e.SocketOptions().GetSendBufferSize() +
				e.SocketOptions().GetReceiveBufferSize())
		}
	}
	if most := 150 << 20; sum == 0 || sum > most {
		t.Errorf("a hundred connections may hold %d MiB, want some and at most %d", sum>>20,
			most>>20)
	}
	w.stack.mu.Lock()
	defer w.stack.mu.Unlock()
	if want := bufferShare(100); w.stack.share != want || !w.stack.crowded.Load() {
		t.Errorf("each may have %d, want %d", w.stack.share, want)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
