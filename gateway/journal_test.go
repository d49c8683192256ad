package gateway

import (
	"testing"

	"github.com/sandboxd/sandboxd/gateway/store"
)

// Connections that wait to be written leave room for what people do.
func TestJournalKeepsRoomForActs(t *testing.T) {
	var j journal
	j.init(new(Hub))
	for range 2 * maxWaiting {
		j.add("id", store.Connection, nil)
	}
	j.add("id", "allow", nil)
	if last := j.waiting[len(j.waiting)-1]; last.Kind != "allow" || len(j.waiting) != maxConnections+1 {
		t.Errorf("%d wait, and the last is %q", len(j.waiting), last.Kind)
	}
}
