//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Account is the user that runs the sessions and commands of a sandbox.
type Account struct {
	Name     string
	UID, GID uint32
	Groups   []uint32 // supplementary
	Home     string
	Shell    string // from the user database; may be empty or missing
}

// maxDatabase bounds how much of /etc/passwd and /etc/group is read: the sandbox controls these
// files.
const maxDatabase = 1 << 20

// lookupAccount resolves a user specification – "name", "uid", either with ":group" or ":gid" –
// with the user database in etc, by the rules of container images. A number needs no entry, a name
// does, and an explicit group replaces the supplementary ones. An empty spec is uid 0. Without an
// entry the home is "/".
func lookupAccount(etc, spec string) (Account, error) {
	user, group, hasGroup := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	a := Account{Home: "/"}
	id, err := strconv.ParseUint(user, 10, 31)
	numeric := err == nil
	entry, err := findEntry(filepath.Join(etc, "passwd"), 7, func(f []string) bool {
		return !numeric && f[0] == user || numeric && f[2] == strconv.FormatUint(id, 10)
	})
	switch {
	case err != nil:
		return Account{}, fmt.Errorf("user %q: %w", spec, err)
	case entry != nil:
		uid, uerr := strconv.ParseUint(entry[2], 10, 31)
		gid, gerr := strconv.ParseUint(entry[3], 10, 31)
		if err := errors.Join(uerr, gerr); err != nil {
			return Account{}, fmt.Errorf("user %q: damaged line in passwd: %w", spec, err)
		}
		a.Name, a.UID, a.GID, a.Shell = entry[0], uint32(uid), uint32(gid), entry[6]
		if filepath.IsAbs(entry[5]) {
			a.Home = entry[5]
		}
	case numeric:
		a.UID, a.Name = uint32(id), user
		if id == 0 {
			a.Name = "root"
		}
	default:
		return Account{}, fmt.Errorf("user %q is not in the sandbox's /etc/passwd", user)
	}
	if !hasGroup {
		a.Groups, err = groupsOf(filepath.Join(etc, "group"), a.Name)
		return a, err
	}
	gid, err := strconv.ParseUint(group, 10, 31)
	if err != nil {
		entry, err := findEntry(filepath.Join(etc, "group"), 3,
			func(f []string) bool { return f[0] == group })
		if err != nil {
			return Account{}, fmt.Errorf("group %q: %w", group, err)
		}
		if entry == nil {
			return Account{}, fmt.Errorf("group %q is not in the sandbox's /etc/group", group)
		}
		if gid, err = strconv.ParseUint(entry[2], 10, 31); err != nil {
			return Account{}, fmt.Errorf("group %q: damaged line in group: %w", group, err)
		}
	}
	a.GID = uint32(gid)
	return a, nil
}

// database caches the user database. Every command needs it.
type database struct{ last atomic.Pointer[reading] }

// reading is the result of a read, with the file's status at that time.
type reading struct {
	stat  unix.Stat_t
	fresh Account
}

// settled is how old a change of a file must be for the next one to have a different time: file
// systems record times in steps of up to 10 ms.
const settled = time.Second

// refresh is like Account.refresh at the time now, but does not read an unchanged database again.
func (d *database) refresh(a Account, etc string, now time.Time) Account {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(etc, "passwd"), &st) != nil {
		fresh, _ := a.refresh(etc) // on an error, a itself
		return fresh
	}
	if r := d.last.Load(); r != nil && r.stat.Dev == st.Dev && r.stat.Ino == st.Ino &&
		r.stat.Size == st.Size && r.stat.Mtim == st.Mtim && r.stat.Ctim == st.Ctim {
		return r.fresh
	}
	fresh, err := a.refresh(etc)
	if err == nil && now.Sub(time.Unix(st.Ctim.Unix())) > settled {
		d.last.Store(&reading{stat: st, fresh: fresh})
	}
	return fresh
}

// refresh returns a with the current shell and home from the user database: `usermod` works in a
// running sandbox. The numbers never change. Without an entry, or if the database cannot be read,
// it returns a.
func (a Account) refresh(etc string) (Account, error) {
	entry, err := findEntry(filepath.Join(etc, "passwd"), 7, func(f []string) bool {
		return f[0] == a.Name && f[2] == strconv.FormatUint(uint64(a.UID), 10)
	})
	if err != nil || entry == nil {
		return a, err
	}
	a.Shell = entry[6]
	if filepath.IsAbs(entry[5]) {
		a.Home = entry[5]
	}
	return a, nil
}

// groupsOf returns the groups that list name as a member, up to the kernel's limit.
func groupsOf(path, name string) ([]uint32, error) {
	var gids []uint32
	_, err := findEntry(path, 4, func(f []string) bool {
		if slices.Contains(strings.Split(f[3], ","), name) {
			if gid, err := strconv.ParseUint(f[2], 10, 31); err == nil && len(gids) < 1024 {
				gids = append(gids, uint32(gid))
			}
		}
		return false
	})
	return gids, err
}

// findEntry returns the first line of a colon-separated database that match accepts, nil if there
// is none. match gets only lines with the right number of fields. A missing file has no lines.
func findEntry(path string, fields int, match func([]string) bool) ([]string, error) {
	b, err := readSmall(path, maxDatabase)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		f := strings.Split(lines.Text(), ":")
		if len(f) >= fields && f[0] != "" && match(f) {
			return f, nil
		}
	}
	return nil, lines.Err()
}

// readSmall reads a regular file of at most limit bytes that the sandbox controls. A FIFO or device
// in its place is an error and does not block.
func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is over %d bytes", path, limit)
	}
	return b, nil
}
