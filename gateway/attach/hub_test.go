package attach_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var alice = gateway.Principal{Name: "alice", Kind: wire.Agent}

// TestRepeatsEnd checks that the daemon stops repeating a call to a guest that ends each connection
// when it gets the call.
func TestRepeatsEnd(t *testing.T) {
	hub := gatewaytest.Hub(t, &gateway.Options{})
	if _, err := hub.Create(t.Context(), alice, lifecycle.NewSpec{Name: "demo"}, nil); err != nil {
		t.Fatal(err)
	}
	a, err := hub.Sessions.Shared(t.Context(), alice, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Request(t.Context(), wire.Request{Verb: wire.VerbRun,
		Text: "true"}); err != nil {
		t.Fatal(err)
	}
	again := a.Repeats()
	for range attach.MaxRepeats {
		client, err := again(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		client.Close()
	}
	if _, err := again(t.Context()); !isLost(err, wire.LostGuest) {
		t.Errorf("%v", err)
	}
}

func isLost(err error, reason string) bool {
	lost, ok := errors.AsType[*wire.Error](err)
	return ok && lost.Code == wire.CodeLost && lost.Reason == reason &&
		!errors.Is(err, context.Canceled)
}

// TestSharedAttachmentStaysForItsCalls checks that an unused shared attachment is closed, but never
// during a call of any length.
func TestSharedAttachmentStaysForItsCalls(t *testing.T) {
	hub := gatewaytest.Hub(t, &gateway.Options{})
	if _, err := hub.Create(t.Context(), alice, lifecycle.NewSpec{Name: "demo"}, nil); err != nil {
		t.Fatal(err)
	}
	at := wire.Target{Sandbox: "demo"}
	a, err := hub.Sessions.Shared(t.Context(), alice, at, attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Request(t.Context(), wire.Request{Verb: wire.VerbRun,
		Text: "read x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := a.Request(t.Context(),
			wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhasePrompt}, TimeoutMS: -1})
		waited <- err
	}()
	// The attachment is listed when one of its calls begins.
	for gen := a.Live().Generation(); a.Calls() == 0; {
		if gen, err = a.Live().Wait(t.Context(), gen); err != nil {
			t.Fatal(err)
		}
	}
	a.Age()
	person, err := hub.Sessions.Join(t.Context(),
		gateway.Principal{Name: "alice", Kind: wire.Person}, at, attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	if err := person.Input(t.Context(), []byte("\r")); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if err := a.Err(); err != nil {
		t.Errorf("it was ended under its call: %v", err)
	}
	a.Age()
	if a.Err() == nil {
		t.Error("unused, it is still there")
	}
}

// TestExpireWhileOpening expires unused attachments while others are opened. The race detector does
// the checking.
func TestExpireWhileOpening(t *testing.T) {
	hub := gatewaytest.Hub(t, &gateway.Options{})
	if _, err := hub.Create(t.Context(), alice, lifecycle.NewSpec{Name: "demo"}, nil); err != nil {
		t.Fatal(err)
	}
	open := func(session string) *attach.Attachment {
		a, err := hub.Sessions.Shared(t.Context(), alice,
			wire.Target{Sandbox: "demo", Session: session},
			attach.JoinOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := open("main")
	opened := make(chan struct{})
	var expiring sync.WaitGroup
	expiring.Go(func() {
		for {
			select {
			case <-opened:
				return
			default:
				a.Expire()
			}
		}
	})
	for i := range 5 {
		open(fmt.Sprintf("s%d", i))
	}
	close(opened)
	expiring.Wait()
}
