package live

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Render returns [from, to) of the log of s as a person would read it, at most limit bytes. cut
// says that there is more. missing is the last gap in it that nobody made on purpose. With an error
// it could not be read to its end.
func Render(ctx context.Context, s *Session, from, to uint64, limit int) (output string, cut bool,
	missing, err error) {
	w := text.NewWriter(limit)
	buf := make([]byte, 32<<10)
	read := false
	for at := from; at < to; {
		n, err := s.ReadAt(ctx, at, buf[:min(uint64(len(buf)), to-at)])
		var lagged *LaggedError
		switch {
		case errors.As(err, &lagged) && lagged.To > at:
			gap := record.GapError{From: at, To: min(lagged.To, to), Why: lagged.Why}
			if gap.Why != record.WhyPrivate {
				missing = &gap
			}
			// In memory, here and below: it takes everything.
			_, _ = fmt.Fprintf(w, "%s\r\n", record.Missing(&gap))
			at = gap.To
		case err != nil:
			return w.String(), w.Truncated(), missing, err
		default:
			_, _ = w.Write(buf[:n])
			at += uint64(n)
			read = true
		}
	}
	if !read && missing != nil {
		return "", false, nil, missing
	}
	return w.String(), w.Truncated(), missing, nil
}
