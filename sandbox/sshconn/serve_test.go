package sshconn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// opening is a channel that a client opened, as its place among all that the client sent.
type opening struct {
	ssh.NewChannel
	at int
}

// The library puts requests and channels into two queues. Whatever is in both when they are
// received from, each request comes before the channels behind it, and no-more-sessions refuses
// none of those in front of it.
func TestOrder(t *testing.T) {
	const room = 16 // of the library's queues
	for _, sent := range []string{"rc", "cr", "rrrc", "rcrcrcrc", "cn", "cnrc", "rcn", "ncn",
		"ccccn", "rrcrncrc", "nrrrrc",
		strings.Repeat("r", room) + "c", strings.Repeat("rc", 3*room),
		strings.Repeat("c", room) + "n" + strings.Repeat("r", 2*room) + "c"} {
		t.Run(sent, func(t *testing.T) {
			for range 200 { // which queue is received from first is chance
				takeInOrder(t, sent, room)
			}
		})
	}
}

func takeInOrder(t *testing.T, sent string, room int) {
	t.Helper()
	channels, requests := make(chan ssh.NewChannel, room), make(chan *ssh.Request, room)
	var sending sync.WaitGroup
	sending.Go(func() {
		for i, what := range sent {
			switch what {
			case 'c':
				channels <- opening{at: i}
			case 'r':
				requests <- &ssh.Request{Type: "tcpip-forward", Payload: []byte{byte(i)}}
			case 'n':
				requests <- &ssh.Request{Type: wire.GlobalNoMoreSessions, Payload: []byte{byte(i)}}
			}
		}
		close(channels)
		close(requests)
	})
	done := 0 // requests that were handed over
	last := -1
	take(channels, requests, func(q *ssh.Request) {
		if at := int(q.Payload[0]); at <= last {
			t.Errorf("request %d came after %d", at, last)
		} else {
			last = at
		}
		done++
	}, func(nc ssh.NewChannel, noMore bool) {
		at := nc.(opening).at
		if before := at - strings.Count(sent[:at], "c"); done < before {
			t.Errorf("channel %d came after %d of %d requests before it", at, done, before)
		}
		if said := strings.Contains(sent[:at], "n"); noMore && !said {
			t.Errorf("channel %d counts as opened after no-more-sessions", at)
		}
	})
	sending.Wait()
	if want := len(sent) - strings.Count(sent, "c"); done != want {
		t.Errorf("%d requests, want %d", done, want)
	}
}

// A channel that was not there yet when no-more-sessions was received is after it.
func TestNoMore(t *testing.T) {
	channels, requests := make(chan ssh.NewChannel, 16), make(chan *ssh.Request, 16)
	received := make(chan bool)
	var taking sync.WaitGroup
	taking.Go(func() {
		take(
			channels,
			requests,
			func(*ssh.Request) { received <- false },
			func(_ ssh.NewChannel, noMore bool) { received <- noMore },
		)
	})
	defer taking.Wait()
	defer func() { close(channels); close(requests) }()
	channels <- opening{}
	if <-received {
		t.Error("before: refused")
	}
	for range 2 { // saying it again changes nothing
		requests <- &ssh.Request{Type: wire.GlobalNoMoreSessions}
		<-received
		channels <- opening{}
		if !<-received {
			t.Error("after: not refused")
		}
	}
}

// Requests are answered in order, one at a time, and a channel can wait for those before it.
func TestAnswers(t *testing.T) {
	near, far := pair(t)
	var answered []string
	release := make(chan struct{})
	early := make(chan error, 1)
	serve(t, near, Handler{
		Request: func(q *ssh.Request) {
			if q.Type == "slow" {
				<-release
			}
			answered = append(answered, q.Type)
			_ = q.Reply(q.Type != "no", []byte(q.Type))
		},
		Channel: func(nc *NewChannel) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errTest)
			early <- nc.Await(ctx)
			go func() { // ends with the answers
				if err := nc.Await(t.Context()); err != nil ||
					strings.Join(answered, " ") != "slow yes no" {
					t.Errorf("a channel behind %q, %v", answered, err)
				}
				_ = nc.Reject(ssh.Prohibited, "enough")
			}()
		},
	})
	go func() { // ends with the connection
		_, _, _ = far.SendRequest("slow", false, nil)
		_, _, _ = far.SendRequest("yes", false, nil)
		if ok, payload, err := far.SendRequest("no", true, nil); ok || string(payload) != "no" ||
			err != nil {
			t.Errorf("got %v, %q, %v", ok, payload, err)
		}
	}()
	eventually(t, "a request that waits", func() bool {
		near.answers.mu.Lock()
		defer near.answers.mu.Unlock()
		return len(near.answers.waiting) == 3
	})
	opened := make(chan error, 1)
	go func() {
		_, err := far.Open(t.Context(), "session", nil)
		opened <- err
	}()
	if err := <-early; !errors.Is(err, errTest) {
		t.Errorf("got %v, want the cause of ctx", err)
	}
	close(release)
	if err := <-opened; !errors.As(err, new(*ssh.OpenChannelError)) {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := near.AwaitAnswer(t.Context()); err != nil {
		t.Error(err)
	}
}

// Too many waiting requests, by number or by size, end the connection.
func TestAnswersAreBounded(t *testing.T) {
	for name, payload := range map[string][]byte{"many": nil, "large": make([]byte, 200_000)} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			release := make(chan struct{})
			defer close(release)
			serve(t, near, Handler{Request: func(*ssh.Request) { <-release }})
			var err error
			for n := 0; err == nil && n < 2000; n++ {
				_, _, err = far.SendRequest("x", false, payload)
			}
			within(t, "the end of the connection", func() { _ = far.Wait() })
			if !near.Flooded() || far.Flooded() {
				t.Error("it was not ended for that")
			}
		})
	}
}

// Unhandled requests and channels are rejected.
func TestServeNothing(t *testing.T) {
	near, far := pair(t)
	serve(t, near, Handler{})
	if ok, _, err := far.SendRequest("x", true, nil); ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
	if _, err := far.Open(t.Context(), "session", nil); !errors.As(
		err,
		new(*ssh.OpenChannelError),
	) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// stuck is a channel whose refusal does not get through.
type stuck struct {
	ssh.NewChannel
	until <-chan struct{}
}

func (s stuck) Reject(ssh.RejectionReason, string) error { <-s.until; return nil }

// A side that opens channels and does not read rejections is not read from any more.
func TestRefusals(t *testing.T) {
	until := make(chan struct{})
	var started atomic.Int32
	flooded := make(chan struct{})
	c := new(Conn)
	c.answers.refusing = make(chan struct{}, maxRequests)
	go func() {
		defer close(flooded)
		for range 2 * maxRequests {
			(&NewChannel{NewChannel: stuck{until: until}, conn: c}).Refuse(
				ssh.ResourceShortage,
				"too many",
			)
			started.Add(1)
		}
	}()
	eventually(
		t,
		"as many as there is room for",
		func() bool { return int(started.Load()) == maxRequests },
	)
	select {
	case <-flooded:
		t.Error("none had to wait")
	default:
	}
	close(until)
	<-flooded
	c.Settle()
}

// eventually waits until what is true.
func eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !true(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// FuzzOrder sends requests (r), channels (c) and no-more-sessions (n) in any order.
func FuzzOrder(f *testing.F) {
	f.Add("rcrcncr", 16)
	f.Add("ccnrrrc", 1)
	f.Fuzz(func(t *testing.T, sent string, room int) {
		if len(sent) > 200 || room < 1 || room > 64 || strings.Trim(sent, "rcn") != "" {
			t.Skip()
		}
		takeInOrder(t, sent, room)
	})
}
