package machine

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
)

// maxLinks bounds the symbolic links of one path, as path_resolution(7) does.
const maxLinks = 40

// ErrLed is the error of a container with a mount that a link in the sandbox's files leads
// elsewhere.
var ErrLed = errors.New("a link in the sandbox's files leads a mount to another place")

// Readlink returns the content of the symbolic link at an absolute path in a container's files,
// whose directories are no links. It is "" if there is no link.
type Readlink func(path string) (string, error)

// CheckMounts returns an error if a link in a container's files leads one of its mounts to a place
// where that must not be: the runtime follows links, and root in the sandbox or the image can leave
// them. It must be called while nothing runs in the container.
//
// Only a mount of a user may be led elsewhere, to where a user may mount.
func CheckMounts(mounts []sandbox.Mount, readlink Readlink) error {
	for _, m := range mounts {
		err := mayLead(m.Inside(), readlink, func(led string) bool {
			return hostdir.CheckTarget(led) == nil
		})
		if err != nil {
			return err
		}
	}
	for _, own := range []string{"/dev", "/proc", "/sys", GuestRun, GuestTrust} {
		if err := mayLead(own, readlink, func(string) bool { return false }); err != nil {
			return err
		}
	}
	return nil
}

// CheckNames is CheckMounts for files of /etc that are mounted one by one. In many images they are
// links.
func CheckNames(files []string, readlink Readlink) error {
	for _, file := range files {
		err := mayLead(file, readlink, func(led string) bool { return !withinOwn(led) })
		if err != nil {
			return err
		}
	}
	return nil
}

// withinOwn reports whether a path is in a mount that each container has.
func withinOwn(led string) bool {
	return slices.ContainsFunc([]string{"/.sandboxd", "/dev", "/proc", "/sys"},
		func(dir string) bool { return Within(led, dir) })
}

// CheckOpened returns an error if a link leads a file that the runtime opens in the container into
// a mount, where anything may be, such as a device that never ends.
func CheckOpened(file string, mounts []sandbox.Mount, readlink Readlink) error {
	led, err := Follow(file, readlink)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	hint := "rm the sandbox; nothing else removes the link"
	in := withinOwn(led)
	for _, m := range mounts {
		if Within(led, m.Inside()) {
			in, hint = true, "fork the sandbox without mounts, or rm it"
		}
	}
	if !in {
		return nil
	}
	return sandbox.Hint(fmt.Errorf("a link leads %s to %q, which the runtime must not open", file,
		led), hint)
}

func mayLead(target string, readlink Readlink, allowed func(led string) bool) error {
	led, err := Follow(target, readlink)
	if err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if led != target && !allowed(led) {
		return sandbox.Hint(fmt.Errorf("%w: %s to %q", ErrLed, target, led),
			"remove the link, fork the sandbox without mounts, or rm it")
	}
	return nil
}

// Follow returns where an absolute path leads in a container's files, whether something is there or
// not: a path without links.
func Follow(target string, readlink Readlink) (string, error) {
	at, links := "/", 0
	rest := strings.Split(target, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		to, err := readlink(next)
		if err != nil {
			return "", err
		}
		if to == "" {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", errors.New("too many symbolic links")
		}
		if path.IsAbs(to) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(to, "/"), rest)
	}
	return at, nil
}
