package docker

import (
	"fmt"
	"time"

	"github.com/moby/moby/api/types/jsonstream"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	pullEvery = 2 * time.Second // minimum time between lines of progress
	pullStep  = 5               // minimum progress between them, in percent
)

// pullMeter measures how much of an image was pulled. The sizes of waiting layers are unknown, so
// each layer counts the same: seven tenths for its download, the rest for its extraction.
type pullMeter struct {
	layers map[string]*layerMeter
	said   int // percent in the last line
	at     time.Time
}

type layerMeter struct {
	loaded, unpacked float64 // fractions
	bytes            int64
}

func newPullMeter(now time.Time) *pullMeter {
	return &pullMeter{layers: make(map[string]*layerMeter), at: now}
}

// add takes a message of the engine about the layer id, and returns a line if one is due.
func (m *pullMeter) add(id, status string, p *jsonstream.Progress, now time.Time) string {
	l := m.layers[id]
	if l == nil {
		if status != "Pulling fs layer" && status != "Already exists" {
			return "" // about the image, not about a layer
		}
		l = new(layerMeter)
		m.layers[id] = l
	}
	fraction := 0.0
	if p != nil && p.Total > 0 {
		fraction = min(float64(p.Current)/float64(p.Total), 1)
	}
	switch status {
	case "Downloading":
		l.loaded = max(l.loaded, fraction)
		if p != nil {
			l.bytes = max(l.bytes, p.Current)
		}
	case "Verifying Checksum", "Download complete":
		l.loaded = 1
	case "Extracting":
		l.loaded, l.unpacked = 1, max(l.unpacked, fraction)
	case "Pull complete", "Already exists":
		l.loaded, l.unpacked = 1, 1
	}
	return m.line(now)
}

func (m *pullMeter) line(now time.Time) string {
	var done float64
	var bytes int64
	for _, l := range m.layers {
		done += 0.7*l.loaded + 0.3*l.unpacked
		bytes += l.bytes
	}
	percent := int(100 * done / float64(len(m.layers)))
	if percent < m.said+pullStep || now.Sub(m.at) < pullEvery {
		return ""
	}
	m.said, m.at = percent, now
	return fmt.Sprintf("pulled %d%%, %s", percent, sandbox.FormatSize(bytes))
}
