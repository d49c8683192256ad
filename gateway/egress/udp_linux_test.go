package egress

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program that sends a datagram and ends still causes an event: Settle waits for it.
func TestSettle(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.stack.Settle(t.Context())
	var fd int
	w.guest.do(func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
	})
	defer unix.Close(fd)
	for port := range 500 {
		must(t, unix.Sendto(fd, []byte("x"), 0,
			&unix.SockaddrInet4{Port: port + 1, Addr: [4]byte{224, 0, 0, 251}}))
		w.stack.Settle(t.Context())
		w.mu.Lock()
		found := slices.ContainsFunc(w.events,
			func(e Event) bool { return e.Kind == KindRefused && int(e.Addr.Port()) == port+1 })
		w.events = nil
		w.mu.Unlock()
		if !found {
			t.Fatalf("datagram %d caused no event", port+1)
		}
	}
	w.stack.Close()
	w.stack.Settle(t.Context())
}

// Above the limit of UDP flows, the longest idle one ends.
func TestUDPFlowsAreBounded(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.internet.listenUDP(t, 7, func(b []byte) []byte { return b })
	for range maxUDP + 50 { // ports may repeat
		must(t, w.tries("udp", public+":7"))
	}
	for range 3 {
		w.await("evicted", func(e Event) bool {
			return e.Kind == KindClosed && e.Why == errEvicted.Error() && e.Sent == 1 &&
				e.Received == 1
		})
	}
}

// DNS queries from many ports need no flows, over UDP and TCP.
func TestQueriesInNumbers(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	out, err := w.program("python3", "-c", `import socket
q = bytes.fromhex("004d01000001000000000000") + b"\x06public\x04test\x00\x00\x01\x00\x01"
for i in range(3000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.sendto(q, ("9.9.9.9", 53)); r = s.recv(512); s.close()
    assert r[:2] == q[:2] and r[7] == 1, r
s = socket.create_connection(("9.9.9.9", 53))
for i in range(10):
    s.sendall(len(q).to_bytes(2, "big") + q); n = int.from_bytes(s.recv(2), "big"); r = s.recv(n)
    assert r[7] == 1, r
print("fine")`)
	if err != nil || !strings.Contains(out, "fine") {
		t.Errorf("got %q, %v", out, err)
	}
}
