// Package record stores a session's output and events on disk, outside the sandbox: the exact bytes
// in out.log, where the position is the offset, and the events in events.ndjson, one wire.Event a
// line. The daemon writes a byte here before any client reads it. The package knows nothing of
// sandboxes, principals and terminals.
//
// Durability: every Append and Event reaches the kernel before it returns, so that nothing is lost
// when the daemon is killed. Tidy and Finish call fsync, for bytes before the events that describe
// them. A power cut loses what came after the last Tidy; the record is then a prefix.
//
// A record never delays its session or makes it fail. When it cannot write it reports that to its
// caller, counts on, and marks the gap once it can write again.
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

// Kinds of events that only records have, besides those of package wire.
const (
	// First line: when the session began, its title in Text, Cols, Rows.
	Begin  wire.EventKind = "begin"
	Output wire.EventKind = "output" // the log was Offset bytes long at that time
	// Missed bytes from Offset on are missing; Text is one of the Why words.
	Gap wire.EventKind = "gap"
	// Recording stopped at Offset, and the session continued; Text says why.
	Stopped wire.EventKind = "stopped"
	Finish  wire.EventKind = "finish" // last line: nothing follows

	// PrivateBegin means that By made output after Offset private. Private ends that: it is a gap
	// of Missed bytes from Offset on, also given by from and to.
	PrivateBegin wire.EventKind = "private_begin"
	Private      wire.EventKind = "private"
)

// Why bytes are missing.
const (
	WhyLagged = "lagged"    // the guest no longer had them
	WhyFull   = "disk full" // there was no space for them
	WhyQuota  = "quota"     // the record was at its quota
	WhyCrash  = "crash"     // written, and lost in a power cut

	WhyRotated = "rotated" // the oldest part, removed at the quota
	WhyPrivate = "private" // a person used private mode
)

// Options describe a new record. Only Quota and Whole apply to an existing one.
type Options struct {
	Title string    // shown by players
	Begun time.Time // of the session; zero is now
	Cols  int       // 0 is wire.DefaultCols
	Rows  int       // 0 is wire.DefaultRows
	Quota int64     // bytes of both files; 0 is 256 MiB, negative none
	Whole bool      // at the quota recording stops; otherwise the oldest part is removed
}

const (
	defaultQuota = 256 << 20
	maxGaps      = 10_000  // more than any real session has
	maxLine      = 2 << 20 // an event fits a frame, which is at most 1 MiB
	maxOffset    = 1 << 62 // files have signed offsets
)

// mark is the resolution of times: bytes within it share an event.
const mark = 15 * time.Millisecond

// retry is how long a record waits before it tries a full disk again.
const retry = time.Second

// Errors that callers branch on.
var (
	ErrFinished = errors.New("record is finished")
	ErrStopped  = errors.New("recording stopped")
	ErrPrivate  = errors.New("private mode")
)

// Size is the terminal's size from offset Offset on.
type Size struct {
	Offset     uint64
	Cols, Rows int
}

// GapError is returned by reads of missing bytes. The next byte is at To.
type GapError struct {
	From, To uint64
	Why      string
}

func (e *GapError) Error() string {
	return fmt.Sprintf("bytes %d to %d were not recorded: %s", e.From, e.To, e.Why)
}
