package hostdir

import "path/filepath"

// CheckTarget looks at the path inside a sandbox at which a directory is to be mounted. It need not
// exist. A directory that hides what the sandbox's programs need is not allowed, nor one that the
// guest writes to: / and System. Errors are *Error.
func CheckTarget(path string) error {
	bad := func(why, hint string) error {
		return &Error{Path: path, Why: why, Hint: hint}
	}
	if why := grammar(path); why != "" {
		return bad(why, "name an absolute path inside the sandbox")
	}
	if filepath.Clean(path) != path {
		return bad("is not a plain path", "write "+filepath.Clean(path))
	}
	const hint = "mount it elsewhere in the sandbox, such as below /srv"
	for _, never := range System {
		switch {
		case never == path:
			return bad("cannot be mounted over in a sandbox", hint)
		case within(path, never):
			return bad("lies in "+never+", which cannot be mounted over in a sandbox", hint)
		case within(never, path):
			return bad("holds "+never+", which cannot be mounted over in a sandbox", hint)
		}
	}
	return nil
}
