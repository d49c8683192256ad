package egress

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// restart starts the stack again, with other options.
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

// A sandbox that opens all that it can holds what it may and no more, is told of the rest, and gives everything back.
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
	// Each has its program's end, the daemon's, the server's and the pipe with which that copies here.
	if held := descriptors(t) - before; held > 5*most+10 {
		t.Errorf("%d descriptors more", held)
	}
	for range more - most {
		if e := w.await("refused", is(KindRefused, public)); e.Why != "20 connections are open already, as many as this sandbox may have" || e.Opens != "" || e.Addr.Port() != 7 {
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

	// What others took is not there.
	must(t, w.stack.Close())
	w.start(ModeFiltered)
	if !budget.take(10 * most) {
		t.Fatalf("%d descriptors were not given back", budget.used)
	}
	for _, network := range []string{"tcp", "udp"} {
		if err := w.tries(network, public+":7"); err == nil {
			t.Errorf("%s beyond the budget of the daemon", network)
		}
		if e := w.await("refused", is(KindRefused, public)); !strings.Contains(e.Why, "the daemon's sandboxes have 200 connections open") {
			t.Errorf("got %+v", e)
		}
	}
	if out, err := w.program("getent", "hosts", "two.test"); err == nil {
		t.Errorf("a name was looked up beyond the budget: %s", out)
	}
	w.await("refused", func(e Event) bool { return is(KindRefused, "two.test")(e) && e.Proto == "dns" })
	budget.give(10 * most)
	must(t, w.tries("tcp", public+":7"))
	must(t, w.stack.Close())
	if budget.used != 0 {
		t.Errorf("%d descriptors were not given back", budget.used)
	}
}

// One sandbox leaves the others most of what there is, whatever it asks for.
func TestMostOfABudget(t *testing.T) {
	for _, c := range []struct {
		budget *Budget
		asked  int
		want   int
	}{{nil, 0, DefaultConnections}, {nil, 7, 7}, {NewBudget(400), 0, 100}, {NewBudget(400), 7, 7}, {NewBudget(400), 4000, 100}, {NewBudget(1), 0, 1}} {
		if got := c.budget.most(c.asked); got != c.want {
			t.Errorf("%d of %+v: got %d, want %d", c.asked, c.budget, got, c.want)
		}
	}
}

// However a sandbox goes about it, the buffers of its connections together stay within bounds.
func TestBuffersAreBounded(t *testing.T) {
	worst := 0
	for n := 1; n <= DefaultConnections; n++ {
		worst += 2 * bufferShare(n)
	}
	if most := 256 << 20; worst > most {
		t.Errorf("a sandbox can fill %d MiB of buffers", worst>>20)
	}
	w := newWorld(t, ModeFiltered)
	w.internet.listen(t, 7, func(c net.Conn) { _, _ = io.Copy(c, zeros{}) }) // which the program never reads
	for range 100 {
		_, err := w.dial("tcp", public+":7")
		must(t, err)
	}
	sum := 0
	for _, e := range w.stack.net.RegisteredEndpoints() {
		if e, ok := e.(tcpip.Endpoint); ok {
			sum += int(e.SocketOptions().GetSendBufferSize() + e.SocketOptions().GetReceiveBufferSize())
		}
	}
	if most := 150 << 20; sum == 0 || sum > most {
		t.Errorf("a hundred connections may hold %d MiB, want some and at most %d", sum>>20, most>>20)
	}
	w.stack.mu.Lock()
	defer w.stack.mu.Unlock()
	if want := bufferShare(100); w.stack.share != want || !w.stack.crowded.Load() {
		t.Errorf("each may have %d, want %d", w.stack.share, want)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
