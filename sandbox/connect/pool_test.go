package connect

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

var demo = sandbox.Instance{ID: "demo"}

func newPool(
	t *testing.T,
	dial func(context.Context, sandbox.Instance) (sandbox.Peer, error),
) *Pool {
	p := NewPool(PoolOptions{Dial: dial})
	t.Cleanup(func() { p.Close() })
	return p
}

func TestPoolSharesOneConnection(t *testing.T) {
	s := newServer(t, nil)
	p := newPool(t, s.dial)
	var wg sync.WaitGroup
	got := make([]*Control, 20)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = p.Control(t.Context(), demo); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range got {
		if c != got[0] {
			t.Fatal("two callers got different connections")
		}
	}
	if n := s.logins.Load(); n != 1 {
		t.Errorf("got %d logins, want 1", n)
	}
	other, err := p.Control(t.Context(), sandbox.Instance{ID: "other"})
	if err != nil || other == got[0] {
		t.Errorf("another instance: got error %v, same connection %v", err, other == got[0])
	}
}

func TestPoolReplacesDeadConnection(t *testing.T) {
	s := newServer(t, nil)
	p := newPool(t, s.dial)
	first, err := p.Control(t.Context(), demo)
	if err != nil {
		t.Fatal(err)
	}
	s.hangUp()
	<-first.Done()
	second, err := p.Control(t.Context(), demo)
	if err != nil {
		t.Fatal(err)
	}
	if first == second || second.Err() != nil {
		t.Errorf("got the dead connection again (error %v)", second.Err())
	}
	p.Forget(demo.ID)
	if !errors.Is(second.Err(), ErrClosed) {
		t.Errorf("after Forget: got %v, want %v", second.Err(), ErrClosed)
	}
	if _, err := p.Control(t.Context(), demo); err != nil {
		t.Errorf("after Forget: got error %v, want a new connection", err)
	}
}

// A rejected login is not retried before its pause has passed, or Forget.
func TestPoolDoesNotRepeatRefusedLogin(t *testing.T) {
	var open atomic.Bool
	s := newServer(t, func(s *testServer) { s.refuse = func() bool { return !open.Load() } })
	p := newPool(t, s.dial)
	for range 5 {
		if _, err := p.Control(t.Context(), demo); !errors.Is(err, ErrLogin) {
			t.Fatalf("got error %v, want %v", err, ErrLogin)
		}
		if _, err := p.SSH(t.Context(), demo); !errors.Is(err, ErrLogin) {
			t.Fatalf("got error %v, want %v", err, ErrLogin)
		}
	}
	if n := s.dials.Load(); n != 1 {
		t.Errorf("got %d dials, want 1", n)
	}
	open.Store(true)
	p.Forget(demo.ID)
	if _, err := p.Control(t.Context(), demo); err != nil {
		t.Errorf("after Forget: got error %v, want a connection", err)
	}
	conn, err := p.SSH(t.Context(), demo)
	if err != nil {
		t.Fatal(err)
	}
	discard(conn)
	conn.Close()
	conn.Wait()
}

// Time between attempts, on a clock of the test's own: the dial fails at once.
func TestPoolBacksOff(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want []time.Duration // between attempts
	}{
		{"network", net.ErrClosed, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond,
			400 * time.Millisecond,
			800 * time.Millisecond, 1600 * time.Millisecond, 3200 * time.Millisecond,
			5 * time.Second, 5 * time.Second}},
		{"gone", sandbox.ErrGone, []time.Duration{0, 0, 0}},
		{"stopped", sandbox.ErrStopped, []time.Duration{0, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				p := NewPool(
					PoolOptions{
						Dial: func(context.Context, sandbox.Instance) (sandbox.Peer, error) {
							at = append(at, time.Now())
							return sandbox.Peer{}, tt.err
						},
					},
				)
				defer p.Close()
				for range len(tt.want) + 1 {
					if _, err := p.Control(t.Context(), demo); !errors.Is(err, tt.err) {
						t.Fatalf("got error %v, want %v", err, tt.err)
					}
				}
				for i, want := range tt.want {
					if got := at[i+1].Sub(at[i]); got != want {
						t.Errorf("attempt %d: got a pause of %v, want %v", i+2, got, want)
					}
				}
			})
		})
	}
}

// All callers share an attempt: it survives the first caller and ends with the last. A later caller
// begins a new one.
func TestPoolAttemptOutlivesItsFirstCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		p := NewPool(
			PoolOptions{Dial: func(ctx context.Context, _ sandbox.Instance) (sandbox.Peer, error) {
				dials.Add(1)
				<-ctx.Done()
				return sandbox.Peer{}, context.Cause(ctx)
			}},
		)
		defer p.Close()
		ctx1, cancel1 := context.WithCancel(t.Context())
		ctx2, cancel2 := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, ctx := range []context.Context{ctx1, ctx2} {
			wg.Go(func() {
				if _, err := p.Control(ctx, demo); !errors.Is(err, context.Canceled) {
					t.Errorf("got error %v, want %v", err, context.Canceled)
				}
			})
		}
		synctest.Wait()
		cancel1()
		synctest.Wait()
		p.mu.Lock()
		alive := p.entries[demo.ID].attempt != nil
		p.mu.Unlock()
		if !alive || dials.Load() != 1 {
			t.Errorf(
				"after the first caller left: attempt alive %v, dials %d; want true, 1",
				alive,
				dials.Load(),
			)
		}
		cancel2()
		wg.Wait()
		ctx3, cancel3 := context.WithTimeout(t.Context(), time.Second)
		defer cancel3()
		if _, err := p.Control(ctx3, demo); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
		}
		if n := dials.Load(); n != 2 {
			t.Errorf("got %d dials, want 2", n)
		}
	})
}

func TestPoolClosed(t *testing.T) {
	s := newServer(t, nil)
	p := newPool(t, s.dial)
	c, err := p.Control(t.Context(), demo)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("connection after Close: got %v, want %v", c.Err(), ErrClosed)
	}
	if _, err := p.Control(t.Context(), demo); !errors.Is(err, ErrClosed) {
		t.Errorf("Control after Close: got %v, want %v", err, ErrClosed)
	}
	if _, err := p.SSH(t.Context(), demo); !errors.Is(err, ErrClosed) {
		t.Errorf("SSH after Close: got %v, want %v", err, ErrClosed)
	}
}
