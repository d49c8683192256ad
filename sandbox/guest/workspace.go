//go:build linux

package guest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// work is the path at which programs find the first bound directory.
const work = "/work"

// checkMounts compares the mounted directories with those that the daemon checked: a link may have
// replaced one meanwhile. No process of the sandbox has run yet.
func checkMounts(mounts []wire.GuestMount) error {
	for _, m := range mounts {
		info, err := os.Stat(m.Path)
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); uint64(st.Dev) != m.Dev || st.Ino != m.Ino { //nolint:unconvert // 32 bits on other systems
			return errors.New("directory " + m.Path + " was replaced during the mount")
		}
	}
	return nil
}

// prepareImage makes what bound directories, volumes and sudo need: the link, an account for a user
// that the image lacks, and the owner of the volume. It skips steps that the image does not permit:
// they are a convenience, and the image may be read-only or empty.
func prepareImage(etc string, c wire.GuestConfig) error {
	if len(c.Mounts) > 0 {
		_ = os.Symlink(c.Mounts[0].Path, work) // an existing one stays
	}
	if c.Account != "" {
		if err := makeAccount(etc, c); err != nil {
			return err
		}
	}
	a, err := lookupAccount(etc, c.User)
	if err != nil {
		return nil //nolint:nilerr // code that needs the user reports that it is missing
	}
	// Root's home stays root's: its shells run what is there.
	if root, err := lookupAccount(etc, "0"); err == nil && a.UID != 0 && c.Volume != "" &&
		c.Volume != root.Home {
		giveVolume(c.Volume, a)
	}
	if !c.Sudo || a.UID == 0 {
		return nil
	}
	dir := filepath.Join(etc, "sudoers.d")
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return nil //nolint:nilerr // there is no sudo
	}
	// sudo removes the variables of a network proxy, those of wire.ProxyEnv. Its * matches at most
	// one _, so NODE_USE_ENV_PROXY is listed by itself.
	rule := fmt.Sprintf(
		"Defaults env_keep += \"*_proxy *_PROXY NODE_USE_ENV_PROXY\"\n#%d ALL=(ALL:ALL) "+
			"NOPASSWD: ALL\n", a.UID)
	return os.WriteFile(filepath.Join(dir, "sandboxd"), []byte(rule), 0o440)
}

// giveVolume gives the directory of a new volume, which is root's in most clusters, to the user of
// the sessions. One that has files, or another owner, stays as it is.
func giveVolume(path string, a Account) {
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return // the user finds the same
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		return
	}
	const some = 3 // more than what a new file system has
	names, err := dir.Readdirnames(some)
	if err != nil && !errors.Is(err, io.EOF) || len(names) > 1 ||
		len(names) == 1 && names[0] != "lost+found" {
		return
	}
	_ = dir.Chown(int(a.UID), int(a.GID)) // a network file system may refuse
}

// writeAuthorities replaces wire.AuthoritiesFile. Programs that read it meanwhile see the former
// file or the new one.
func writeAuthorities(text string) error {
	dir, err := os.OpenRoot(filepath.Dir(wire.AuthoritiesFile))
	if err != nil {
		return err
	}
	defer dir.Close()
	// Root of the sandbox may put anything here, such as a FIFO: only a file of its own is written.
	name := rand.Text()
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(name, filepath.Base(wire.AuthoritiesFile))
	}
	if err != nil {
		_ = dir.Remove(name) // it may have gone
	}
	return err
}

// makeAuthorities makes the directory of wire.AuthoritiesFile, and the file. What an image has
// there is removed.
func makeAuthorities(text string) error {
	dir := filepath.Dir(wire.AuthoritiesFile)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeAuthorities(text)
}

// makeAccount gives the uid and gid of c.User an entry and a home, unless the image has one for
// that uid.
func makeAccount(etc string, c wire.GuestConfig) error {
	a, err := lookupAccount(etc, c.User)
	if err != nil {
		return err
	}
	uid, gid := strconv.FormatUint(uint64(a.UID), 10), strconv.FormatUint(uint64(a.GID), 10)
	if a.Name != uid { // the account has a name
		return nil
	}
	name := c.Account
	if other, err := findEntry(filepath.Join(etc, "passwd"), 7,
		func(f []string) bool { return f[0] == name }); err != nil {
		return err
	} else if other != nil {
		name = "user" + uid
	}
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return err
	}
	home := "/home/" + name
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	shell := shellOf(Account{})
	if err := appendLine(filepath.Join(etc, "passwd"),
		strings.Join([]string{name, "*", uid, gid, "", home, shell}, ":")); err != nil {
		return err
	}
	group, err := findEntry(filepath.Join(etc, "group"), 3,
		func(f []string) bool { return f[0] == name || f[2] == gid })
	if err == nil && group == nil {
		err = appendLine(filepath.Join(etc, "group"), name+":x:"+gid+":")
	}
	if err != nil {
		return err
	}
	if err := own(home, a, c.Mounts); err != nil {
		return err
	}
	for _, m := range c.Mounts { // the engine made its parent directories, as root
		for dir := filepath.Dir(m.Path); strings.HasPrefix(dir, home+"/"); dir = filepath.Dir(dir) {
			if err := own(dir, a, c.Mounts); err != nil {
				return err
			}
		}
	}
	return nil
}

// own gives a directory to a, unless it belongs to the machine.
func own(dir string, a Account, mounts []wire.GuestMount) error {
	for _, m := range mounts {
		if dir == m.Path || strings.HasPrefix(dir, m.Path+"/") {
			return nil
		}
	}
	if real, err := filepath.EvalSymlinks(dir); err != nil || real != dir {
		return err // a link of the image leads elsewhere
	}
	return os.Lchown(dir, int(a.UID), int(a.GID))
}

// appendLine adds a line to a database of the image, which may be missing or lack its last newline.
func appendLine(path, line string) error {
	b, err := readSmall(path, maxDatabase)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}
