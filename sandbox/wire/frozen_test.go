package wire

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
)

// frozen is a connection whose other side neither replies nor closes.
type frozen struct{ resumed chan struct{} }

func (f frozen) Read([]byte) (int, error)    { <-f.resumed; return 0, io.EOF }
func (f frozen) Write(p []byte) (int, error) { return len(p), nil }
func (f frozen) Close() error                { return nil }

// Attaching to a frozen guest ends with ctx.
func TestOpenGivesUpOnFrozenGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := frozen{make(chan struct{})}
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() {
			_, err := Open(ctx, f, Attach{Session: "main"}, Handler{})
			failed <- err
		}()
		synctest.Wait()
		cancel(gone)
		synctest.Wait()
		select {
		case err := <-failed:
			if !errors.Is(err, gone) {
				t.Errorf("%v, want the cause of the context", err)
			}
		default:
			t.Error("it waits for the guest")
		}
		close(f.resumed)
	})
}
