package lifecycle

import (
	"errors"
	"os"
	"slices"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mayMount says whether owner may give directories of this machine to sandboxes: they are the daemon's
// own user's, whose rights it has.
func (o *Options) mayMount(owner string) error {
	if owner != o.Owner {
		return &wire.Error{Code: wire.CodeDenied, Message: "directories of the daemon's machine are for the daemon's own user",
			Hint: "copy the files in: sandboxd cp, scp, sftp or rsync"}
	}
	return nil
}

// planDirs checks the directories of a spec, and puts their paths as they are without links in it.
// The backend looks at them again when it mounts them.
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
	}
	if spec.Dir != "" {
		dir, err := o.Dirs.Check(spec.Dir)
		if err != nil {
			return dirError(err)
		}
		spec.Dir = dir.Path
		if !slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool { return m.Path == dir.Path }) {
			spec.Mounts = slices.Insert(spec.Mounts, 0, sandbox.Mount{Path: dir.Path})
		}
	}
	return nil
}

// OpenDir opens a directory of this machine that owner may mount, to read in it, and returns its path
// without links. The caller closes it.
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
