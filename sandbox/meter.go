package sandbox

import (
	"context"
	"time"
)

// A Meter can say what an instance uses without asking its guest, which is not trusted.
type Meter interface {
	// Usage reads the kernel's counters of an instance that runs. It is cheap enough to be asked for every second.
	// Errors that callers branch on: ErrGone, ErrStopped.
	Usage(ctx context.Context, inst Instance) (Usage, error)
	// Disk measures what the files of an instance occupy, whether it runs or not. It takes as long as looking at each of
	// them, and stops when it has found more than most, whose zero fields are no bound.
	Disk(ctx context.Context, inst Instance, most DiskUsage) (DiskUsage, error)
	// Room is how many bytes are free where instances keep their files. It is cheap.
	Room(ctx context.Context) (int64, error)
}

// Usage is what an instance uses, and what it was refused since it was started.
type Usage struct {
	Memory int64         // bytes
	PIDs   int64         // processes and threads
	CPU    time.Duration // of processors, since it was started

	OOMKills    int64 // processes that were killed because the memory limit was reached
	PIDsRefused int64 // processes and threads that were not started because the limit of them was reached
}

// DiskUsage is what the files of an instance occupy beyond those of its image: its own, those of its volumes, and those that
// were removed and are still open.
type DiskUsage struct {
	Bytes int64 // of blocks: a file with holes counts with what is in it
	Files int64 // of any kind
}

// MaxFiles is how many files a sandbox may have whose limit of disk is so many bytes: empty ones take room, too, which no
// count of their blocks shows.
func MaxFiles(disk int64) int64 { return max(disk/(8<<10), 64<<10) }
