package docker

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestSurplus(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	images := func(n int, age time.Duration) map[string]int64 {
		since := make(map[string]int64)
		for i := range n {
			since[fmt.Sprintf("i%03d", i)] = now.Add(-age + time.Duration(i)).UnixNano()
		}
		return since
	}
	if got := surplus(images(maxMade-1, time.Hour), now); len(got) != 0 {
		t.Errorf("with room: %v", got)
	}
	if got, want := surplus(images(maxMade+2, time.Hour), now),
		[]string{"i000", "i001", "i002"}; !slices.Equal(got, want) {
		t.Errorf("old ones: %v, want %v", got, want)
	}
	// Many sandboxes are made at once, each from an image of its own.
	if got := surplus(images(2*maxMade, freshMade/2), now); len(got) != 0 {
		t.Errorf("images that are about to boot: %v", got)
	}
	mixed := images(maxMade, time.Second)
	mixed["old"] = now.Add(-time.Hour).UnixNano()
	if got := surplus(mixed, now); !slices.Equal(got, []string{"old"}) {
		t.Errorf("one old one among fresh ones: %v", got)
	}
}

// An image that is removed takes steps along that a build may be about to use.
func TestTrimDuringABuild(t *testing.T) {
	im := &images{} // without an engine, which it does not reach
	im.committing.RLock()
	im.trimMade(t.Context())
	im.committing.RUnlock()
}
