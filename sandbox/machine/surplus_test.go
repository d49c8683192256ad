package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestSurplus(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	images := func(n int, age time.Duration) map[string]time.Time {
		used := make(map[string]time.Time)
		for i := range n {
			used[fmt.Sprintf("i%03d", i)] = now.Add(-age + time.Duration(i))
		}
		return used
	}
	if got := Surplus(images(maxMade-1, time.Hour), now); len(got) != 0 {
		t.Errorf("with room: %v", got)
	}
	if got, want := Surplus(images(maxMade+2, time.Hour), now),
		[]string{"i000", "i001", "i002"}; !slices.Equal(got, want) {
		t.Errorf("old ones: %v, want %v", got, want)
	}
	// Many sandboxes are made at once, each from an image of its own.
	if got := Surplus(images(2*maxMade, freshMade/2), now); len(got) != 0 {
		t.Errorf("images that are about to boot: %v", got)
	}
	mixed := images(maxMade, time.Second)
	mixed["old"] = now.Add(-time.Hour)
	if got := Surplus(mixed, now); !slices.Equal(got, []string{"old"}) {
		t.Errorf("one old one among fresh ones: %v", got)
	}
}
