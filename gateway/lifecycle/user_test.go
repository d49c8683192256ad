package lifecycle

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMayBecome(t *testing.T) {
	writable, readOnly := sandbox.Mount{Path: "/a"}, sandbox.Mount{Path: "/b", ReadOnly: true}
	for _, tt := range []struct {
		name          string
		spec          sandbox.Spec
		user          string // of the instance
		owner, shared bool   // wanted
	}{
		{"root of the image", sandbox.Spec{}, "root", true, true},
		{"user of the image", sandbox.Spec{}, "app", true, false},
		{"user of the image with sudo", sandbox.Spec{Sudo: true}, "app", true, true},
		{"given root", sandbox.Spec{User: "0:0"}, "0:0", true, true},
		{"given a user", sandbox.Spec{User: "1000"}, "1000", false, false},
		{"given a user with sudo", sandbox.Spec{User: "1000", Sudo: true}, "1000", true, true},
		{"given a user and a mount", sandbox.Spec{User: "7", Mounts: []sandbox.Mount{writable}},
			"7",
			false, false},
		{"owner of a mount", sandbox.Spec{Mounts: []sandbox.Mount{readOnly, writable}}, "1000:1000",
			true, true},
		{"read-only for root", sandbox.Spec{Mounts: []sandbox.Mount{readOnly}}, "root", true, true},
		{"read-only for another", sandbox.Spec{Mounts: []sandbox.Mount{readOnly}}, "app",
			false, false},
	} {
		f := Record{Asked: Asked{Spec: tt.spec}, Instance: sandbox.Instance{User: tt.user}}
		if got := mayBecome(f, true); got != tt.owner {
			t.Errorf("%s: the owner may = %v, want %v", tt.name, got, tt.owner)
		}
		if got := mayBecome(f, false); got != tt.shared {
			t.Errorf("%s: others may = %v, want %v", tt.name, got, tt.shared)
		}
	}
}

// A restart keeps an old guest, so the error suggests a new sandbox.
func TestBecomeWithOldGuest(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		serveOldGuest(listener, key)
	}()
	defer func() { listener.Close(); <-served }()
	nc, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connect.SSH(t.Context(), sandbox.Peer{Conn: nc, User: "root",
		HostKeys: []ssh.PublicKey{key.PublicKey()}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g := &Guest{sb: &Sandbox{state: &state{record: Record{Name: "demo"}}}}
	got, _ := errors.AsType[*wire.Error](g.Become(t.Context(), conn, "app"))
	if got == nil || got.Code != wire.CodeUnavailable ||
		!strings.Contains(got.Message, "too old") ||
		!strings.Contains(got.Hint, "create a new sandbox") {
		t.Errorf("got %+v", got)
	}
}

// serveOldGuest serves one connection as a guest that knows no order but hello.
func serveOldGuest(listener net.Listener, key ssh.Signer) {
	nc, err := listener.Accept()
	if err != nil {
		return
	}
	defer nc.Close()
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(key)
	_, _, requests, err := ssh.NewServerConn(nc, config)
	if err != nil {
		return
	}
	for r := range requests {
		var order wire.Control
		_ = json.Unmarshal(r.Payload, &order)
		reply := wire.ControlReply{Version: wire.Version}
		if order.Do != "hello" {
			reply.Error = wire.Errorf(wire.CodeUnavailable, "unknown order")
		}
		answer, _ := json.Marshal(reply)
		_ = r.Reply(true, answer)
	}
}
