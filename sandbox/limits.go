package sandbox

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Limits bound what a sandbox may use. Zero means the default, from DefaultLimits unless a field
// says otherwise.
type Limits struct {
	Memory int64   `json:"memory"` // bytes, /dev/shm included
	CPUs   float64 `json:"cpus"`   // cores; the default is capped at what the engine has
	PIDs   int64   `json:"pids"`   // processes and threads
	Shm    int64   `json:"shm"`    // bytes of /dev/shm
	// Open files of a process; the default is at most the engine's.
	NoFile   int64 `json:"nofile"`
	Disk     int64 `json:"disk"`     // bytes that its files occupy beyond those of its image
	Sessions int64 `json:"sessions"` // concurrent sessions

	// Connections bounds concurrent connections of a network that the daemon carries.
	Connections int64 `json:"connections"`

	// Swap is how many bytes beyond Memory may be swapped out, on a machine with swap. Zero means
	// none: the kernel kills a process that exceeds Memory.
	Swap int64 `json:"swap,omitempty"`
}

// DefaultLimits are the limits of a sandbox whose Spec sets none.
var DefaultLimits = Limits{
	Memory: 2 << 30, CPUs: 2, PIDs: 512, Shm: 64 << 20, NoFile: 65536, Disk: 10 << 30,
	Sessions: 32, Connections: 1024,
}

// A Limit is one field of Limits, with the name that flags, configuration keys and messages use.
type Limit struct {
	Name string
	Help string // what it bounds, in a few words

	bytes       bool
	least, most float64
	of          func(*Limits) any // *int64 or *float64
}

// AllLimits are the fields of Limits, in the order of display. The bounds are wide: they catch
// typing errors. The backend checks what its machine really has.
var AllLimits = []Limit{
	{"memory", "memory limit, including swap and /dev/shm, such as 512m", true, 16 << 20, maxBytes,
		func(l *Limits) any { return &l.Memory }},
	{"cpus", "CPU limit in cores, such as 0.5", false, 0.01, 4096,
		func(l *Limits) any { return &l.CPUs }},
	{"pids", "largest number of processes and threads", false,
		64, 4 << 20, // the guest alone has more than forty
		func(l *Limits) any { return &l.PIDs }},
	{"shm", "size of /dev/shm, such as 256m", true, 4 << 10, maxBytes,
		func(l *Limits) any { return &l.Shm }},
	{"nofile", "largest number of open files per process; by default at most the engine's", false,
		64, 1 << 20, // fs.nr_open
		func(l *Limits) any { return &l.NoFile }},
	{"disk", "disk limit for its files, such as 20g", true, 1 << 20, maxBytes,
		func(l *Limits) any { return &l.Disk }},
	{"sessions", "largest number of sessions", false, 1, 256, // each has a terminal
		func(l *Limits) any { return &l.Sessions }},
	{"connections", "largest number of connections, with network filtered or allowlist", false, 1,
		65536,
		func(l *Limits) any { return &l.Connections }},
}

const maxBytes = 1 << 50 // a float64 holds each of these numbers exactly

// Set parses text into its field of l. The error says which values are allowed, but not for which
// limit.
func (d Limit) Set(l *Limits, text string) error {
	var value float64
	switch {
	case d.bytes:
		n, err := ParseSize(text)
		if err != nil {
			return fmt.Errorf("%w; %s", err, d.allowed())
		}
		value = float64(n)
	default:
		n, err := strconv.ParseFloat(text, 64)
		if _, whole := d.of(l).(*int64); err != nil || whole && n != math.Trunc(n) {
			return fmt.Errorf("%q is not a valid number; %s", text, d.allowed())
		}
		value = n
	}
	if err := d.check(value); err != nil {
		return err
	}
	switch at := d.of(l).(type) {
	case *int64:
		*at = int64(value)
	case *float64:
		*at = value
	}
	return nil
}

// Text returns its field of l as Set reads it, empty for zero.
func (d Limit) Text(l Limits) string {
	switch at := d.of(&l).(type) {
	case *int64:
		switch {
		case *at == 0:
			return ""
		case d.bytes:
			return FormatSize(*at)
		}
		return strconv.FormatInt(*at, 10)
	case *float64:
		if *at != 0 {
			return strconv.FormatFloat(*at, 'g', -1, 64)
		}
	}
	return ""
}

func (d Limit) check(value float64) error {
	if !(value >= d.least && value <= d.most) { // NaN fails, too
		return fmt.Errorf("%s is out of bounds; %s", d.show(value), d.allowed())
	}
	return nil
}

func (d Limit) show(value float64) string {
	if d.bytes && math.Abs(value) <= math.MaxInt64/2 {
		return FormatSize(int64(value))
	}
	return strconv.FormatFloat(value, 'f', -1, 64)
}

func (d Limit) allowed() string {
	return fmt.Sprintf("it may be %s to %s", d.show(d.least), d.show(d.most))
}

// Check reports the first limit that is neither zero nor within its bounds, by name, with the
// values that are allowed.
func (l Limits) Check() error {
	for _, d := range AllLimits {
		if value := d.value(l); value != 0 {
			if err := d.check(value); err != nil {
				return fmt.Errorf("%s: %w", d.Name, err)
			}
		}
	}
	if l.Swap < 0 || l.Swap > maxBytes {
		return fmt.Errorf("swap: %d is out of bounds; it may be 0 to %s",
			l.Swap, FormatSize(maxBytes))
	}
	if l.Memory > 0 && l.Shm > l.Memory {
		return fmt.Errorf("shm: %s of /dev/shm is more than the memory limit, %s",
			FormatSize(l.Shm), FormatSize(l.Memory))
	}
	return nil
}

// Beyond returns the first limit of l that exceeds the same limit of most. Zero exceeds nothing.
func (l Limits) Beyond(most Limits) (over Limit, ok bool) {
	for _, d := range AllLimits {
		if d.value(l) > d.value(most) {
			return d, true
		}
	}
	return over, false
}

// value returns its field of l as a number.
func (d Limit) value(l Limits) float64 {
	switch at := d.of(&l).(type) {
	case *int64:
		return float64(*at)
	case *float64:
		return *at
	}
	return 0
}

// Or returns l, with zero fields replaced by those of other.
func (l Limits) Or(other Limits) Limits {
	return Limits{
		Memory:      cmp.Or(l.Memory, other.Memory),
		CPUs:        cmp.Or(l.CPUs, other.CPUs),
		PIDs:        cmp.Or(l.PIDs, other.PIDs),
		Shm:         cmp.Or(l.Shm, other.Shm),
		NoFile:      cmp.Or(l.NoFile, other.NoFile),
		Disk:        cmp.Or(l.Disk, other.Disk),
		Sessions:    cmp.Or(l.Sessions, other.Sessions),
		Connections: cmp.Or(l.Connections, other.Connections),
		Swap:        cmp.Or(l.Swap, other.Swap),
	}
}

// ParseSize reads a number of bytes above 0 with an optional suffix k, m, g or t: powers of 1024,
// in either case, optionally followed by b.
func ParseSize(s string) (int64, error) {
	number, shift := strings.TrimSuffix(strings.ToLower(s), "b"), 0
	if number != "" {
		if at := strings.IndexByte("kmgt", number[len(number)-1]); at >= 0 {
			number, shift = number[:len(number)-1], 10*(at+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is not a size such as 512m or 2g", s)
	}
	return n << shift, nil
}

// FormatSize formats n bytes exactly, in the syntax of ParseSize.
func FormatSize(n int64) string {
	suffix := ""
	for _, next := range []string{"k", "m", "g", "t"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, suffix = n/1024, next
	}
	return strconv.FormatInt(n, 10) + suffix
}
