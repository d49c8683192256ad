package docker

import (
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
)

func TestPullMeter(t *testing.T) {
	now := time.Now()
	m := newPullMeter(now)
	var lines []string
	add := func(after time.Duration, id, status string, current, total int64) {
		now = now.Add(after)
		p := &jsonstream.Progress{Current: current, Total: total}
		if line := m.add(id, status, p, now); line != "" {
			lines = append(lines, line)
		}
	}
	add(0, "latest", "Pulling from library/x", 0, 0)
	add(0, "a", "Pulling fs layer", 0, 0)
	add(0, "b", "Pulling fs layer", 0, 0)
	add(time.Second, "a", "Downloading", 50<<20, 100<<20) // too soon
	add(time.Second, "a", "Downloading", 60<<20, 100<<20)
	add(time.Second, "a", "Download complete", 0, 0) // too soon
	add(time.Second, "a", "Extracting", 1, 100)
	add(time.Minute, "a", "Extracting", 2, 100) // too little
	add(time.Minute, "a", "Pull complete", 0, 0)
	add(time.Minute, "b", "Downloading", 10<<20, 20<<20)
	add(time.Minute, "b", "Already exists", 0, 0)
	want := "pulled 21%, 60m|pulled 35%, 60m|pulled 50%, 60m|pulled 67%, 70m|pulled 100%, 70m"
	if got := strings.Join(lines, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
