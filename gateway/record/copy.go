package record

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Copy writes bytes [at, end) of a record. It calls missing, if set, for each missing range.
func Copy(ctx context.Context, w io.Writer, r *Reader, at, end uint64,
	missing func(*GapError)) error {
	buf := make([]byte, 64<<10)
	for at < end && ctx.Err() == nil {
		n, err := r.ReadAt(buf[:min(uint64(len(buf)), end-at)], at)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			at += uint64(n)
			continue
		}
		var gap *GapError
		switch {
		case errors.As(err, &gap):
			if missing != nil {
				missing(gap)
			}
			at = gap.To
		case err == nil, errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("record: %w", err)
		}
	}
	return context.Cause(ctx)
}

// Missing returns the text that stands for a missing range.
func Missing(g *GapError) string {
	if g.Why == WhyPrivate {
		return fmt.Sprintf("[private: %d bytes]", g.To-g.From)
	}
	return fmt.Sprintf("[%d bytes are missing: %s]", g.To-g.From, g.Why)
}
