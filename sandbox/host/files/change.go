package files

import (
	"fmt"
	"strconv"

	"github.com/pkg/sftp"
)

// Filecmd carries out requests that change names and attributes.
func (m *machine) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return m.setstat(r)
	case "Rename": // as of SFTP 3: it replaces nothing
		return m.do(
			`! { [ -e "$2" ] || [ -L "$2" ]; } || { echo "File exists" >&2; exit 1; }; mv -- "$1" "$2"`, r.Filepath, r.Target)
	case "Rmdir":
		return m.do(`rmdir -- "$1"`, r.Filepath)
	case "Remove":
		return m.do(
			`[ ! -d "$1" ] || [ -L "$1" ] || { echo "Is a directory" >&2; exit 1; }; ls -d -- "$1" >/dev/null && rm -f -- "$1"`, r.Filepath)
	case "Mkdir":
		return m.do(`mkdir -- "$1"`, r.Filepath)
	case "Link":
		return m.do(`ln -- "$1" "$2"`, r.Filepath, r.Target)
	case "Symlink":
		return m.do(`ln -s -- "$1" "$2"`, r.Filepath, r.Target)
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename replaces an existing file of the new name, as rename(2) does.
func (m *machine) PosixRename(r *sftp.Request) error {
	return m.do(`if [ -d "$2" ] && [ ! -L "$2" ]; then rmdir -- "$2" || exit; fi
if [ -L "$2" ]; then rm -f -- "$2"; fi; mv -f -- "$1" "$2"`, r.Filepath, r.Target)
}

// setstat sets the attributes of the request: size, mode, owner, times, in this order.
func (m *machine) setstat(r *sftp.Request) error {
	flags, a := r.AttrFlags(), r.Attributes()
	script, args := "", []string{r.Filepath}
	add := func(text string, values ...string) {
		for _, v := range values {
			args = append(args, v)
			text += ` "$` + strconv.Itoa(len(args)) + `"`
		}
		script += text + ` -- "$1" && `
	}
	if flags.Size {

		// Not truncate: not all systems have it.
		args = append(args, strconv.FormatUint(a.Size, 10))
		script += fmt.Sprintf(`dd if=/dev/null of="$1" bs=1 seek="$%d" 2>/dev/null && `, len(args))
	}
	if flags.UidGid {
		add("chown", fmt.Sprintf("%d:%d", a.UID, a.GID))
	}
	if flags.Permissions {
		add("chmod", strconv.FormatUint(uint64(a.Mode&0o7777), 8))
	}
	if flags.Acmodtime {
		for what, t := range map[string]uint32{"a": a.Atime, "m": a.Mtime} {
			args = append(args, strconv.FormatUint(uint64(t), 10))
			n := len(args)
			script += fmt.Sprintf(
				`{ touch -c -%[1]s -d "@$%[2]d" -- "$1" 2>/dev/null || touch -c -%[1]s -t "$(date -r "$%[2]d" +%%Y%%m%%d%%H%%M.%%S)" -- "$1"; } && `, what, n)
		}
	}
	script += ":"
	m.mu.Lock()
	if u := m.uploads[r.Filepath]; u != nil { // its bytes, which come later, would change the time
		u.later = append(u.later, func() error { return m.do(script, args...) })
		m.mu.Unlock()
		return nil
	}
	m.mu.Unlock()
	return m.do(script, args...)
}
