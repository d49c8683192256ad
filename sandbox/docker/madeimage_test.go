package docker

import "testing"

// An image that is removed takes steps along that a build may be about to use.
func TestTrimDuringABuild(t *testing.T) {
	im := &images{} // without an engine, which it does not reach
	im.committing.RLock()
	im.trimMade(t.Context())
	im.committing.RUnlock()
}
