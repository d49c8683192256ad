package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os/user"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/userns"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MaxMounts is the most directories of the machine that a sandbox may mount.
const MaxMounts = 16

// Bound is the result of checking a sandbox's Mounts.
type Bound struct {
	mounts  []wire.GuestMount
	account string   // user name of an account to create for their owner; empty: none
	Notes   []string // for describe
}

// Bind checks the directories of spec. It sets their paths, the user of sessions and the working
// directory.
func Bind(rules hostdir.Rules, spec *sandbox.Spec) (Bound, error) {
	var all Bound
	if len(spec.Mounts) > MaxMounts {
		return all, fmt.Errorf("%d mounts; at most %d are allowed", len(spec.Mounts), MaxMounts)
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	var owner *hostdir.Dir // of the first writable directory
	for i, m := range spec.Mounts {
		dir, err := checkDir(rules, m.Path)
		if err != nil {
			return all, err
		}
		if m.Path = dir.Path; m.Target == m.Path {
			m.Target = ""
		}
		if err := checkTarget(m, spec.Mounts[:i]); err != nil {
			return all, err
		}
		spec.Mounts[i] = m
		mounted := wire.GuestMount{Path: m.Inside(), Dev: dir.Dev, Ino: dir.Ino}
		if m.Target != "" {
			mounted.Source = m.Path
		}
		all.mounts = append(all.mounts, mounted)
		if !m.ReadOnly && owner == nil {
			owner = &dir
		}
	}
	if spec.Workdir == "" && len(spec.Mounts) > 0 {
		spec.Workdir = spec.Mounts[0].Inside()
	}
	if spec.Workdir != "" && (!path.IsAbs(spec.Workdir) ||
		path.Clean(spec.Workdir) != spec.Workdir) {
		return all, fmt.Errorf("workdir %q is not a clean absolute path", spec.Workdir)
	}
	if uid, ok := sudoer(spec); ok {
		all.account = accountName(uid)
	}
	if owner == nil {
		return all, nil
	}
	switch {
	case spec.User != "":
	case owner.UID == 0:
		spec.User = "0"
	case owner.UID == unmapped && userns.RunningInUserNS():
		return all, sandbox.Hint(fmt.Errorf("mount %s: it belongs to another user of this "+
			"machine, and the daemon is not root", owner.Path),
			"mount one of your own; or this one with :ro")
	default:
		spec.User, spec.Sudo, all.account = fmt.Sprintf("%d:%d", owner.UID, owner.GID), true,
			accountName(owner.UID)
		all.Notes = append(all.Notes, fmt.Sprintf("sessions run as uid %d, the owner of %s",
			owner.UID, owner.Path))
	}
	if spec.Sudo || spec.User == "0" || spec.User == "root" {
		all.Notes = append(all.Notes, "root in the sandbox can create files of any user in "+
			owner.Path+" on this machine, also setuid programs")
	}
	return all, nil
}

// unmapped is the user to whom files of users outside of a user namespace belong
// (user_namespaces(7)).
const unmapped = 65534

// checkTarget checks where m is mounted inside, given the mounts before it. If
// either has a Target, neither may be inside the other: the engine would make a directory in the
// outer one, as root.
func checkTarget(m sandbox.Mount, before []sandbox.Mount) error {
	inside := m.Inside()
	if m.Target != "" {
		if err := hostdir.CheckTarget(m.Target); err != nil {
			if e, ok := errors.AsType[*hostdir.Error](err); ok {
				return sandbox.Hint(fmt.Errorf("mount: %w", err), e.Hint)
			}
			return err
		}
	}
	for _, other := range before {
		switch at := other.Inside(); {
		case at == inside && m.Path == other.Path:
			return fmt.Errorf("mount %s is given twice", m.Path)
		case at == inside:
			return fmt.Errorf("mount %s: %s is already mounted at %s", m.Path, other.Path, at)
		case m.Target == "" && other.Target == "":
		case Within(at, inside), Within(inside, at):
			return fmt.Errorf("mount %s: %s and %s must not contain each other", m.Path, inside, at)
		}
	}
	return nil
}

// sudoer returns the numeric user of spec, if it is numeric and may use sudo(8), which requires an
// account.
func sudoer(spec *sandbox.Spec) (uint32, bool) {
	number, _, _ := strings.Cut(spec.User, ":")
	uid, err := strconv.ParseUint(number, 10, 32)
	return uint32(uid), err == nil && uid != 0 && spec.Sudo
}

// Paths returns the directories.
func (all Bound) Paths() (paths []string) {
	for _, m := range all.mounts {
		paths = append(paths, m.Path)
		if m.Source != "" {
			paths = append(paths, m.Source)
		}
	}
	return paths
}

// Configure adds the directories to the guest's configuration.
func (all Bound) Configure(g *wire.GuestConfig) { g.Mounts, g.Account = all.mounts, all.account }

// BindAgain checks the directories of a sandbox before it starts again: they may have been removed
// or replaced.
func BindAgain(rules hostdir.Rules, g *wire.GuestConfig) error {
	for i := range g.Mounts {
		m := &g.Mounts[i]
		source := cmp.Or(m.Source, m.Path)
		dir, err := checkDir(rules, source)
		if err != nil {
			return err
		}
		if dir.Path != source { // the container has the path from its creation
			return sandbox.Hint(fmt.Errorf("mount %s is now a link to %s", source, dir.Path),
				"restore the directory, or rm the sandbox")
		}
		m.Dev, m.Ino = dir.Dev, dir.Ino
	}
	return nil
}

// checkDir applies the rules, and adds their hint to its error.
func checkDir(rules hostdir.Rules, path string) (hostdir.Dir, error) {
	dir, err := rules.Check(path)
	if e, ok := errors.AsType[*hostdir.Error](err); ok {
		return dir, sandbox.Hint(fmt.Errorf("mount: %w", err), e.Hint)
	}
	return dir, err
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)

// accountName returns the name inside of the account for uid: the name on this machine, if that is
// a plain name.
func accountName(uid uint32) string {
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil &&
		plainName.MatchString(u.Username) && u.Username != "root" {
		return u.Username
	}
	return "user" + strconv.FormatUint(uint64(uid), 10)
}
