package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// listenEvery is how often a machine's guest is asked for a sign of life while somebody waits for it to answer.
const listenEvery = 5 * time.Second

// silentError says that a sandbox which is connected has not answered.
type silentError struct {
	what string
	time time.Duration
}

func (e *silentError) Error() string {
	return fmt.Sprintf("%s has not answered for %v: is it stopped (SIGSTOP), or the machine busy?", e.what, e.time)
}

// silent is the error of a guest that has not answered for so long.
func (b *box) silent(time time.Duration) error {
	what := "the guest"
	if uri := b.get().inst.Host.URI; uri != "" {
		what += " on " + uri
	}
	return &silentError{what, time}
}

// listening is ctx for a call that may take as long as a command does, ended by *silentError when nobody is there to answer: on a
// machine the guest is a program of the account, which may stop it, while the SSH server, and so the connection, lives on. over
// ends the listening, and returns when it has ended.
func (b *box) listening(ctx context.Context) (_ context.Context, over func()) {
	inst := b.get().inst
	if inst.Host.URI == "" {
		return ctx, func() {} // there it is PID 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, listenEvery) {
			within, stop := context.WithTimeoutCause(ctx, reachWithin, b.silent(reachWithin))
			if c, err := b.hub.pool.Control(within, inst); err == nil { // else it is the connection that is not there
				_, err = c.Do(within, wire.Control{Do: "health"})
				if silent := (*silentError)(nil); errors.As(err, &silent) {
					cancel(silent)
				}
			}
			stop()
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}
