package lifecycle

import (
	"errors"
	"os"
	"slices"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mayMount returns an error unless owner may mount directories of this machine: only the admin,
// with whose rights the daemon runs.
func (o *Options) mayMount(owner string) error {
	if owner != o.Owner {
		return &wire.Error{Code: wire.CodeDenied,
			Message: "mount: only the admin may mount directories of the daemon's machine",
			Hint:    "copy the files instead: sandboxd cp, scp, sftp or rsync"}
	}
	return nil
}

// planDirs checks the directories of a spec and replaces their paths by those without symbolic
// links. The backend checks them again when it mounts them.
func (o *Options) planDirs(owner string, spec *NewSpec) error {
	if len(spec.Mounts) == 0 && spec.Dir == "" {
		return nil
	}
	if err := o.mayMount(owner); err != nil {
		return err
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	for i := range spec.Mounts {
		dir, err := o.Dirs.Check(spec.Mounts[i].Path)
		if err != nil {
			return dirError(err)
		}
		spec.Mounts[i].Path = dir.Path
		if target := spec.Mounts[i].Target; target != "" {
			if err := hostdir.CheckTarget(target); err != nil {
				return dirError(err)
			}
		}
	}
	if spec.Dir != "" {
		dir, err := o.Dirs.Check(spec.Dir)
		if err != nil {
			return dirError(err)
		}
		spec.Dir = dir.Path
		if !slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool {
			return m.Inside() == dir.Path
		}) {
			spec.Mounts = slices.Insert(spec.Mounts, 0, sandbox.Mount{Path: dir.Path})
		}
	}
	return nil
}

// OpenDir opens a directory of this machine that owner may mount, for reading, and returns its path
// without symbolic links. The caller closes it.
func (o *Options) OpenDir(owner string, path string) (*os.Root, string, error) {
	if err := o.mayMount(owner); err != nil {
		return nil, "", err
	}
	root, dir, err := o.Dirs.Open(path)
	if err != nil {
		return nil, "", dirError(err)
	}
	return root, dir.Path, nil
}

// dirError converts an error of hostdir for the client.
func dirError(err error) error {
	e, ok := errors.AsType[*hostdir.Error](err)
	if !ok {
		return err
	}
	code := wire.CodeUsage
	if e.Denied {
		code = wire.CodeDenied
	}
	return &wire.Error{Code: code, Message: oneLine(e.Error(), 600), Hint: e.Hint}
}
