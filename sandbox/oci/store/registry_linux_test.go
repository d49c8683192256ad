package store

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow answers after a pause, and then sends a byte after each pause.
type slow struct{ answer, body time.Duration }

func (s slow) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := pause(req.Context(), s.answer); err != nil {
		return nil, err
	}
	body := readerFunc(func([]byte) (int, error) {
		if err := pause(req.Context(), s.body); err != nil {
			return 0, err
		}
		return 1, nil
	})
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A registry may be slow, but not silent: neither before its answer nor in it. Time in which nobody
// reads does not count.
func TestRegistrySilence(t *testing.T) {
	const almost = registrySilence - time.Second
	for _, tt := range []struct {
		name   string
		server slow
		fails  bool
	}{
		{"slow", slow{almost, almost}, false},
		{"no answer", slow{time.Hour, 0}, true},
		{"silent in its answer", slow{0, time.Hour}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
					"https://registry.invalid/v2/", nil)
				if err != nil {
					t.Fatal(err)
				}
				var read []byte
				resp, err := impatient{tt.server}.RoundTrip(req)
				if err == nil {
					for range 3 {
						<-time.After(time.Hour)
						var b [1]byte
						if _, err = io.ReadFull(resp.Body, b[:]); err != nil {
							break
						}
						read = append(read, b[0])
					}
					resp.Body.Close()
				}
				if !tt.fails && (err != nil || len(read) != 3) {
					t.Errorf("read %d bytes, error %v", len(read), err)
				}
				if tt.fails && (err == nil || !strings.Contains(err.Error(),
					"registry.invalid did not answer within 10s")) {
					t.Errorf("error %v, want one that says who did not answer", err)
				}
			})
		})
	}
}
