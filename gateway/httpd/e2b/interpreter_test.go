package e2b

import (
	"fmt"
	"testing"
)

// A sandbox that returns other contexts at each call does not fill memory; contexts in use stay.
func TestNotebooks(t *testing.T) {
	pl := &place{notebooks: make(map[string]*notebook)}
	used := pl.notebook("e2b")
	leave, err := used.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		pl.notebook(fmt.Sprintf("e2b-%d", i))
	}
	if n := len(pl.notebooks); n > 2*maxNotebooks {
		t.Errorf("%d contexts are remembered", n)
	}
	if pl.notebook("e2b") != used {
		t.Error("one in use is forgotten")
	}
	leave()
}
