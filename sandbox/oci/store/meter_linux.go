package store

import (
	"fmt"
	"io"
	"time"
)

const (
	pullEvery = 2 * time.Second // minimum time between lines of progress
	pullStep  = 5               // minimum progress between them, in percent
)

// pullMeter measures how much of an image was pulled. Layers are unpacked while they are read, so
// there is nothing else to wait for.
type pullMeter struct {
	ref         string
	done, total int64 // bytes, compressed
	said        int64 // done in the last line
	at          time.Time
	progress    func(line string)
}

// reader returns a reader that counts what is read of r.
func (m *pullMeter) reader(r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		if line := m.add(int64(n), time.Now()); line != "" {
			m.progress(line)
		}
		return n, err
	})
}

// add adds n bytes, and returns a line if one is due.
func (m *pullMeter) add(n int64, now time.Time) string {
	m.done += n
	if (m.done-m.said)*100 < m.total*pullStep || now.Sub(m.at) < pullEvery {
		return ""
	}
	m.said, m.at = m.done, now
	return fmt.Sprintf("pulling %s: %s of %s", m.ref, formatSize(m.done), formatSize(m.total))
}

// formatSize formats bytes for people.
func formatSize(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f kB", float64(n)/1e3)
}
