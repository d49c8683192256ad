package e2b

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// fileState identifies a version of a file.
type fileState struct {
	inode, modified, size, mode string
	dir                         bool
}

// snapshotOf parses find(1)'s output of a directory in the format of snapshotCommand, by relative
// path, up to the empty record at its end. size is the memory of the result, at most room bytes.
func snapshotOf(r *bufio.Reader, room int) (all map[string]fileState, size int, err error) {
	all = make(map[string]fileState)
	for records := 0; ; records++ {
		record, err := r.ReadSlice(0)
		if err != nil {
			// Too long for the buffer, or ended.
			return nil, 0, fmt.Errorf("read the output of find: %w", err)
		}
		text := string(record[:len(record)-1])
		if text == "" {
			return all, size, nil
		}
		f := strings.SplitN(text, " ", 6)
		if len(f) < 6 || f[5] == "" {
			return nil, 0, errors.New("invalid output of find")
		}
		size += len(text) + entryBytes
		// Counts records, not names: find may repeat one endlessly.
		if records == maxWatched || size > room {
			return nil, 0, &apiError{http.StatusTooManyRequests,
				fmt.Sprintf(
					"directory has more than %d entries, or %d MiB of names: too large to watch",
					maxWatched, room>>20)}
		}
		all[f[5]] = fileState{inode: f[0], modified: f[1], size: f[2], mode: f[3], dir: f[4] == "d"}
	}
}

// snapshotCommand prints a snapshot for each line of its input. It needs GNU find.
func snapshotCommand(dir string, recursive bool) string {
	depth := "-maxdepth 1 "
	if recursive {
		depth = fmt.Sprintf("-maxdepth %d ", maxDepth)
	}
	return `find / -maxdepth 0 -printf '' 2>/dev/null || exit 64; while read -r x; do find ` +
		quote(strings.TrimSuffix(dir, "/")+"/") + ` -mindepth 1 ` + depth +
		`-printf '%i %T@ %s %m %y %P\0' 2>/dev/null; printf '\0'; done`
}

// change is one event of a directory.
type change struct{ name, kind string }

// Kinds of events.
const (
	created  = "EVENT_TYPE_CREATE"
	wrote    = "EVENT_TYPE_WRITE"
	removed  = "EVENT_TYPE_REMOVE"
	renamed  = "EVENT_TYPE_RENAME"
	chmodded = "EVENT_TYPE_CHMOD"
)

// changes returns the events between two states, as inotify would report them: a rename is an
// event of the old name, and a creation of the new one.
func changes(before, after map[string]fileState) []change {
	var all []change
	moved := make(map[string]bool) // inodes that still exist
	for _, st := range after {
		moved[st.inode] = true
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, still := after[name]; still {
			continue
		}
		kind := removed
		if moved[before[name].inode] {
			kind = renamed
		}
		all = append(all, change{name, kind})
	}
	known := make(map[string]bool)
	for _, st := range before {
		known[st.inode] = true
	}
	for _, name := range slices.SortedFunc(maps.Keys(after), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")),
			strings.Compare(a, b))
	}) {
		now := after[name]
		was, had := before[name]
		switch {
		case !had || was.inode != now.inode:
			all = append(all, change{name, created})
			if !now.dir && now.size != "0" && !known[now.inode] {
				all = append(all, change{name, wrote})
			}
			continue
		case !now.dir && (was.modified != now.modified || was.size != now.size):
			all = append(all, change{name, wrote})
		}
		if was.mode != now.mode {
			all = append(all, change{name, chmodded})
		}
	}
	return all
}
