// Package record keeps what a session printed and what happened in it, on disk, outside the sandbox: the exact bytes in
// out.log, where the position is the offset, and the events in events.ndjson, one wire.Event a line. The daemon writes a
// byte here before anybody reads it. It knows nothing of sandboxes, parties and terminals.
//
// Durability: every Append and Event reaches the kernel before it returns, so that nothing is lost when the daemon is
// killed. Tidy and Finish call fsync, bytes before the events that speak of them; a power cut loses what came after the
// last Tidy, and the record is then a prefix of the truth.
//
// A record never makes its session wait or fail. When it cannot write it says so to its caller, goes on counting, and
// marks the hole once it can write again.
package record

import (
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The files of a record.
const (
	LogFile    = "out.log"
	EventsFile = "events.ndjson"
)

// Kinds of events that only records have, beside those of package wire.
const (
	Begin   wire.EventKind = "begin"   // first line: when the session began, its title in Text, Cols, Rows
	Output  wire.EventKind = "output"  // the log was Offset bytes long at that time
	Gap     wire.EventKind = "gap"     // Missed bytes from Offset on are not here; Text is one of the Why words
	Stopped wire.EventKind = "stopped" // recording stopped at Offset, the session went on; Text says why
	Finish  wire.EventKind = "finish"  // last line: nothing follows

	// PrivateBegin says that By made what comes after Offset private. Private ends that: it is a gap, of Missed bytes from
	// Offset on, and says so in from and to as well.
	PrivateBegin wire.EventKind = "private_begin"
	Private      wire.EventKind = "private"
)

// Why bytes are missing.
const (
	WhyLagged = "lagged"    // the guest no longer had them
	WhyFull   = "disk full" // there was no space for them
	WhyQuota  = "quota"     // the record was at its quota
	WhyCrash  = "crash"     // written and lost, in a power cut

	WhyRotated = "rotated" // the oldest part, let go of at the quota
	WhyPrivate = "private" // a person kept them to themselves
)

// Options say what a record is of. Only Quota and Whole count when an existing one is opened.
type Options struct {
	Title string    // shown by players
	Begun time.Time // of the session; zero is now
	Cols  int       // 0 is wire.DefaultCols
	Rows  int       // 0 is wire.DefaultRows
	Quota int64     // bytes of both files; 0 is 256 MiB, negative none
	Whole bool      // at the quota recording stops; otherwise the oldest part makes room
}

const (
	defaultQuota = 256 << 20
	maxGaps      = 10_000  // more than any honest session has
	maxLine      = 2 << 20 // an event fits a frame, which is at most 1 MiB
	maxOffset    = 1 << 62 // files have signed offsets
)

// mark is how finely output is timed: bytes that come within it share an event.
const mark = 15 * time.Millisecond

// retry is how long a record waits before it tries a full disk again.
const retry = time.Second

// Errors that callers branch on.
var (
	ErrFinished = errors.New("record is finished")
	ErrStopped  = errors.New("recording stopped")
	ErrPrivate  = errors.New("the stretch is private")
)

// Size is the terminal's from offset Offset on.
type Size struct {
	Offset     uint64
	Cols, Rows int
}

// GapError is returned by reads where bytes are missing. Reading goes on at To.
type GapError struct {
	From, To uint64
	Why      string
}

func (e *GapError) Error() string {
	return fmt.Sprintf("bytes %d to %d were not recorded: %s", e.From, e.To, e.Why)
}
