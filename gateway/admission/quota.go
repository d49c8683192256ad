// Package admission decides whether a sandbox may be made, started, given more disk or copied into
// an image. Its functions are pure: usage in, decision out. Call it with the usage of an owner and
// of the daemon; it knows no sandbox, no store and no engine. Errors are *wire.Error with a code
// and a hint for the caller.
package admission

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Quota bounds all sandboxes of one principal together: the sums of their limits, not of their
// current use. Hosts count as sandboxes, and with their sessions. 0 is no limit, unless a field
// says otherwise.
type Quota struct {
	Sandboxes int     // 0 is 64
	Sessions  int     // live ones
	Memory    int64   // bytes; of sandboxes that are not stopped
	CPUs      float64 // of these
	// Open to the outside; 0 is half of the limit for all owners, and no more than are left.
	Connections int
	// Bytes; of all sandboxes, because files stay when they stop, and of images made from or for
	// them.
	Disk int64
}

const defaultSandboxes = 64

// WithDefaults sets fields that are zero.
func (q Quota) WithDefaults() Quota {
	if q.Sandboxes == 0 {
		q.Sandboxes = defaultSandboxes
	}
	return q
}

// Usage is the usage of one owner's sandboxes.
type Usage struct {
	Sandboxes int
	Memory    int64   // bytes; limits of those that run or are starting
	CPUs      float64 // of these
	Disk      int64   // bytes; limits of all
	Kept      int64   // bytes in images that were made from or for them
}

// Create returns why an owner may not have another running sandbox with those limits; nil if they
// may. The code is limit_sandboxes or limit_quota.
func Create(q Quota, t Total, has Usage, all All, own sandbox.Limits) error {
	if has.Sandboxes >= q.Sandboxes {
		e := wire.Errorf(wire.CodeLimitSandboxes,
			"you have %d sandboxes; the limit is %d (max_sandboxes)", has.Sandboxes, q.Sandboxes)
		e.Hint = "remove one with sandboxd rm"
		return e
	}
	if err := t.create(all); err != nil {
		return err
	}
	if err := Disk(q, has, own); err != nil {
		return err
	}
	return q.run(has, own)
}

// Start returns why a stopped sandbox with those limits may not start; nil if it may. has and all
// do not include it.
func Start(q Quota, t Total, has Usage, all All, own sandbox.Limits) error {
	if err := t.start(all); err != nil {
		return err
	}
	return q.run(has, own)
}

// run checks the resources that a sandbox takes while it runs.
func (q Quota) run(has Usage, own sandbox.Limits) error {
	memory, cpus := has.Memory+own.Memory, has.CPUs+own.CPUs
	if q.Memory > 0 && memory > q.Memory {
		return overQuota("quota.memory", "memory", Size(memory), Size(own.Memory), Size(q.Memory),
			"stop or rm a running sandbox, or use less --memory")
	}
	if q.CPUs > 0 && cpus > q.CPUs+1e-9 {
		return overQuota("quota.cpus", "cpus", Cores(cpus), Cores(own.CPUs), Cores(q.CPUs),
			"stop or rm a running sandbox, or use less --cpus")
	}
	return nil
}

// ErrImages is wrapped by errors that would not occur without images of the owner.
var ErrImages = errors.New("images of the owner take disk of the quota")

type imagesError struct{ public *wire.Error }

func (e imagesError) Error() string   { return e.public.Message }
func (e imagesError) Unwrap() []error { return []error{e.public, ErrImages} }

// Disk returns why a sandbox may not have that disk limit; nil if it may. has does not include it.
func Disk(q Quota, has Usage, own sandbox.Limits) error {
	disk := own.Disk + has.Disk + has.Kept
	if q.Disk == 0 || disk <= q.Disk {
		return nil
	}
	err := overQuota("quota.disk", "disk", Size(disk), Size(own.Disk), Size(q.Disk),
		"rm a sandbox, docker rmi a snapshot, or use less --disk")
	if has.Kept == 0 {
		return err
	}
	err.Message += ", " + Size(has.Kept) + " of it in images of yours"
	return imagesError{err}
}

// Image returns why an owner may not have more bytes in images; nil if they may.
func Image(q Quota, has Usage, more int64) error {
	disk := has.Disk + has.Kept + more
	if q.Disk == 0 || disk <= q.Disk {
		return nil
	}
	e := wire.Errorf(wire.CodeLimitQuota,
		"with %s more your sandboxes and images would have %s of disk; the limit is %s (quota.disk)",
		Size(more), Size(disk), Size(q.Disk))
	e.Hint = "rm a sandbox, or docker rmi a snapshot"
	return imagesError{e}
}

// Session returns why an owner with that many sessions may not begin another; nil if they may.
func Session(q Quota, has int) error {
	if q.Sessions == 0 || has < q.Sessions {
		return nil
	}
	e := wire.Errorf(wire.CodeLimitQuota,
		"your sandboxes have %d sessions; the limit is %d (quota.sessions)", has, q.Sessions)
	e.Hint = "end one with exit, or stop a sandbox"
	return e
}

func overQuota(key, what, sum, own, most, hint string) *wire.Error {
	e := wire.Errorf(wire.CodeLimitQuota,
		"with its %s your sandboxes would have %s of %s; the limit is %s (%s)", own, sum, what,
		most, key)
	e.Hint = hint
	return e
}

// Cores formats a number of CPUs, rounded to thousandths.
func Cores(n float64) string { return strconv.FormatFloat(math.Round(n*1000)/1000, 'f', -1, 64) }

// Size formats a number of bytes, in the largest unit of which there is at least one.
func Size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}
