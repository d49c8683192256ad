package page

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// Ports count that are open to the loopback interface. Other lines of a table mean nothing.
func TestListening(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   2: 0100007F:1F42 0100007F:0001 01 00000000:00000000 00:00000000 00000000     0        0 1
   3: 0200A8C0:1F43 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   4: 00000000000000000000000001000000:1F44 00000000000000000000000000000000:0000 0A 0 0 0 0 0 1
   5: 00000000000000000000000000000000:1F45 00000000000000000000000000000000:0000 0A 0 0 0 0 0 1
   6: 0000000000000000FFFF00000100007F:1F46 00000000000000000000000000000000:0000 0A 0 0 0 0 0 1
   7: 00000000:0000 00000000:0000 0A
   8: 00000000:10000 00000000:0000 0A
   9: xx:1F47 00000000:0000 0A
  10: 000000:1F47 00000000:0000 0A
  11: 00000000 00000000:0000 0A
`
	found := make(map[int]bool)
	listening(strings.NewReader(table), found)
	if got, want := slices.Sorted(maps.Keys(found)),
		[]int{8000, 8001, 8004, 8005, 8006}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
