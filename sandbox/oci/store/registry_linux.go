package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// registrySilence is how long a registry may be silent before a pull fails. A pull has no other
// limit.
const registrySilence = 10 * time.Second

// impatient is a transport whose requests fail when the server is silent: while the answer, or more
// of it, is awaited.
type impatient struct{ http.RoundTripper }

func (t impatient) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(registrySilence, func() {
		cancel(fmt.Errorf("%s did not answer within %v", req.URL.Host, registrySilence))
	})
	why := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	resp, err := t.RoundTripper.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		defer cancel(nil)
		return nil, why(err)
	}
	resp.Body = &impatientBody{ReadCloser: resp.Body, why: why, cancel: cancel, timer: timer}
	return resp, nil
}

// impatientBody is the body of an answer. The timer runs during Read only: its reader may do
// something else in between.
type impatientBody struct {
	io.ReadCloser

	why    func(error) error // returns why the request has ended, if it has
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (b *impatientBody) Read(p []byte) (int, error) {
	b.timer.Reset(registrySilence)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.why(err)
	}
	return n, err
}

func (b *impatientBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
