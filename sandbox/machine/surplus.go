package machine

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxMade is how many images of a kind that can be made again are kept for an owner.
	maxMade = 128
	// freshMade is how long one is kept after it was made or used: its sandbox may not exist yet.
	freshMade = 2 * time.Minute
)

// Surplus returns which images of a kind and owner to remove before one more is made: those that
// were not used for the longest time. used has the last use of each that can be removed.
func Surplus(used map[string]time.Time, now time.Time) []string {
	refs := slices.SortedFunc(maps.Keys(used), func(a, b string) int {
		return used[a].Compare(used[b])
	})
	refs = refs[:max(0, len(refs)-maxMade+1)]
	return slices.DeleteFunc(refs, func(ref string) bool { return now.Sub(used[ref]) < freshMade })
}
