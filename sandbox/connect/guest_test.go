package connect

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The real guest supports this package: hello, health, a session stream, and the connection of a
// relayed client.
func TestRealGuest(t *testing.T) {
	b := sandboxtest.New(t, sandboxtest.Options{})
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	p := newPool(t, b.Dial)
	c, err := p.Control(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := c.Do(t.Context(), wire.Control{Do: "health"})
	if err != nil || reply.Health != "ok" {
		t.Errorf("health: got %+v, error %v; want ok", reply, err)
	}
	if _, err := c.Do(t.Context(), wire.Control{Do: "dance"}); err == nil {
		t.Error("an order that no guest knows: got no error")
	}
	stream, err := c.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := wire.Open(t.Context(), stream, wire.Attach{}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := client.Request(t.Context(), wire.Request{Verb: wire.VerbList}); err != nil ||
		len(got.Sessions) != 0 {
		t.Errorf("list: got %+v, error %v; want no session", got, err)
	}
	if err := client.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	conn, err := p.SSH(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	discard(conn)
	if ok, _, err := conn.SendRequest(wire.GlobalKeepalive, true, nil); err != nil || !ok {
		t.Errorf("keepalive: got %v, error %v", ok, err)
	}
	conn.Close()
	conn.Wait()
	p.Forget(inst.ID)
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Control(t.Context(), inst); err == nil {
		t.Error("after Destroy: got no error")
	}
}
