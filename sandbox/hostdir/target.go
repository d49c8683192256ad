package hostdir

import "path/filepath"

// CheckTarget checks the path inside a sandbox at which a directory is to be mounted. It need not
// exist. / and System are not allowed: there the directory would hide files that programs need, or
// the guest would write to it. Errors are *Error.
func CheckTarget(path string) error {
	bad := func(why, hint string) error {
		return &Error{Path: path, Why: why, Hint: hint}
	}
	if why := grammar(path); why != "" {
		return bad(why, "use an absolute path inside the sandbox")
	}
	if filepath.Clean(path) != path {
		return bad("is not a clean path", "use "+filepath.Clean(path))
	}
	const hint = "mount it elsewhere in the sandbox, such as below /srv"
	for _, never := range System {
		switch {
		case never == path:
			return bad("cannot be mounted over in a sandbox", hint)
		case within(path, never):
			return bad("is in "+never+", which cannot be mounted over in a sandbox", hint)
		case within(never, path):
			return bad("contains "+never+", which cannot be mounted over in a sandbox", hint)
		}
	}
	return nil
}
