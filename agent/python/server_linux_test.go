package python

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Many tiny outputs cost no more than larger ones, and their number is limited.
func TestTinyOutputs(t *testing.T) {
	c := collector{limits: Limits{}.orDefaults()}
	sent := int64(0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	for i := range 300_000 {
		c.add(Output{Type: []Type{Stdout, Stderr}[i%2], Chars: "x"})
		sent++
	}
	if took := threadTime(t) - began; took > 5*time.Second {
		t.Errorf("300,000 outputs took %v of a processor", took)
	}
	kept := c.outputs()
	if len(kept) > 2*maxPieces+2 {
		t.Errorf("%d outputs are kept", len(kept))
	}
	for _, o := range kept {
		sent -= int64(len(o.Chars)) + o.Omitted
	}
	if sent != 0 {
		t.Errorf("%d bytes are neither kept nor counted", sent)
	}
}

// threadTime returns the processor time of the calling thread, which other work on the machine does
// not lengthen (getrusage(2)).
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
