package e2b

import (
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// account is a user of a sandbox.
type account struct {
	name     string
	uid, gid uint32
	home     string
	own      bool // the account that commands run as by default
}

// maxDatabase limits the size of a sandbox's list of users or groups. Its content is not trusted.
const maxDatabase = 1 << 20

// as returns the account called name; empty means the sandbox's own. Only root can act as another
// user.
func (lk *link) as(name string) (account, error) {
	if name == "" || name == lk.account.name {
		return lk.account, nil
	}
	var found account
	err := lk.eachRow("/etc/passwd", func(f []string) bool {
		if len(f) < 7 || f[0] != name {
			return false
		}
		uid, err := strconv.ParseUint(f[2], 10, 32)
		gid, gerr := strconv.ParseUint(f[3], 10, 32)
		found = account{name: name, uid: uint32(uid), gid: uint32(gid), home: f[5]}
		return err == nil && gerr == nil && strings.HasPrefix(f[5], "/")
	})
	switch {
	case err != nil || found.name == "" || found.home == "":
		return account{}, &apiError{401, "invalid username: " +
			strconv.QuoteToASCII(cutText(name, 64)) + " is not an account of this sandbox"}
	case lk.account.uid != 0:
		return account{}, &apiError{401, "invalid username: this sandbox runs as " +
			lk.account.name + ", which cannot act as " + strconv.QuoteToASCII(cutText(name, 64))}
	}
	return found, nil
}

// names maps user and group numbers to names.
type names struct{ users, groups map[uint32]string }

func (lk *link) names() names {
	read := func(file string) map[uint32]string {
		all := make(map[uint32]string)
		// Without the file, only numbers are shown.
		_ = lk.eachRow(file, func(f []string) bool {
			if len(f) > 2 {
				if id, err := strconv.ParseUint(f[2], 10, 32); err == nil && all[uint32(id)] == "" {
					all[uint32(id)] = cutText(f[0], 64)
				}
			}
			return false
		})
		return all
	}
	return names{read("/etc/passwd"), read("/etc/group")}
}

func nameOf(all map[uint32]string, id uint32) string {
	if name := all[id]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// eachRow calls f with the fields of each row until it returns true.
func (lk *link) eachRow(file string, f func(fields []string) bool) error {
	info, err := lk.files.Stat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &apiError{400, file + " is not a file"}
	}
	r, err := lk.files.Open(file)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxDatabase))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if f(strings.Split(strings.TrimSuffix(line, "\n"), ":")) {
			break
		}
	}
	return nil
}

// path resolves p for the account: relative paths begin in its home directory.
func (a account) path(p string) (string, error) {
	switch {
	case strings.ContainsRune(p, 0):
		return "", invalid("path: contains a NUL byte")
	case len(p) > 4096:
		return "", invalid("path: longer than 4096 bytes")
	case p == "~" || strings.HasPrefix(p, "~/"):
		p = a.home + p[1:]
	case !strings.HasPrefix(p, "/"):
		p = a.home + "/" + p
	}
	return path.Clean(p), nil
}

// give makes a the owner of p. Files created over SFTP belong to the connection's account.
func (a account) give(files *connect.Files, p string) error {
	if a.own {
		return nil
	}
	return files.Chown(p, int(a.uid), int(a.gid))
}

func cutText(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}
