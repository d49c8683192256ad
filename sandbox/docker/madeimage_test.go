package docker

import "testing"

// An image that is removed takes steps along that a build may be about to use.
func TestTrimDuringABuild(t *testing.T) {
	im := &images{engineStore: &imageStore{}} // without an engine, which it does not reach
	im.engineStore.committing.RLock()
	im.trimMade(t.Context())
	im.engineStore.committing.RUnlock()
}
