package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/userns"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// In an instance's directory:
const (
	bundleDir = "bundle" // what the runtime reads
	rootName  = "root"   // where its files are while it starts
	upperDir  = "upper"  // what it has written
	workDir   = "work"   // of the overlay
	namesDir  = "names"  // nameFiles
	logFile   = "log"    // what the guest printed
	pidFile   = "pid"    // its first process
)

// instances are the sandboxes of a daemon: their directories and their containers. It serializes
// changes of each.
type instances struct {
	guestconfig.Locks

	state   machine.State
	images  *store.Store
	runtime *runtimes
	sockets *guestsock.Set
	daemon  string // Options.DaemonID
	logs    *slog.Logger
}

func (l *instances) log(id string) *slog.Logger { return l.logs.With("sandbox", id) }

func (l *instances) in(id, name string) string { return filepath.Join(l.state.Dir(id), name) }

// makeFiles makes the directories of an instance's own files.
func (l *instances) makeFiles(id string) error {
	for name, mode := range map[string]os.FileMode{bundleDir: 0o700, rootName: 0o700,
		workDir: 0o700, upperDir: 0o755, namesDir: 0o755} {
		if err := os.Mkdir(l.in(id, name), mode); err != nil {
			return err
		}
		if err := os.Chmod(l.in(id, name), mode); err != nil { // whatever the umask is
			return err
		}
	}
	return nil
}

// writeNames writes the files that name the sandbox, this machine and its DNS server.
func (l *instances) writeNames(id, host string, spec sandbox.Spec) error {
	resolver := ""
	if spec.Network.Carried() && spec.Via != sandbox.ViaProxy {
		resolver = "nameserver " + netip.AddrFrom4(wire.TunDNS).String() + "\n"
	}
	for name, text := range map[string]string{
		"hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			// Programs that look up the host's own name, such as sudo, do not wait for an answer.
			"127.0.1.1\t" + host + "\n",
		"hostname":    host + "\n",
		"resolv.conf": resolver,
	} {
		path := filepath.Join(l.in(id, namesDir), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		// #nosec G302 -- for every user of the sandbox; the directory above is ours
		if err := os.Chmod(path, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mount joins the layers of an image with what the instance has written. The container keeps the
// mount when it has started; here it is undone then, so that a daemon that is killed, or a machine
// with many sandboxes, has none.
func (l *instances) mount(id string, layers []string) (unmount func(), err error) {
	l.unmount(id) // of a daemon that was killed
	root := l.in(id, rootName)
	lower := make([]string, 0, len(layers))
	for i := range layers { // the topmost first
		lower = append(lower, layers[len(layers)-1-i])
	}
	if strings.ContainsAny(root, ",:\\") {
		return nil, fmt.Errorf("overlay: the path %q has a comma, colon or backslash", root)
	}
	// What was written must make sense over copies of these layers, too: it refers to none of
	// their files.
	// In a user namespace, off is refused where the kernel follows redirects by default.
	data := "metacopy=off,redirect_dir=nofollow,"
	if userns.RunningInUserNS() {
		data += "userxattr,"
	}
	data += "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" +
		l.in(id, upperDir) + ",workdir=" + l.in(id, workDir)
	if len(data) >= os.Getpagesize() {
		return nil, fmt.Errorf("overlay: %w: the image has too many layers (%d)",
			sandbox.ErrUnsupported, len(layers))
	}
	switch err := unix.Mount("overlay", root, "overlay", 0, data); {
	case errors.Is(err, unix.EINVAL):
		return nil, sandbox.Hint(fmt.Errorf("overlay: %w", err),
			"move the state directory to a file system such as ext4 or xfs: overlays cannot write "+
				"to another overlay, or to NFS")
	case errors.Is(err, unix.EPERM):
		return nil, sandbox.Hint(fmt.Errorf("overlay: %w", err), "run the daemon as root")
	case err != nil:
		return nil, fmt.Errorf("overlay: %w", os.NewSyscallError("mount", err))
	}
	return func() { l.unmount(id) }, nil
}

// unmount undoes what mount did, also that of daemons that were killed.
func (l *instances) unmount(id string) {
	for {
		switch err := unix.Unmount(l.in(id, rootName), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist): // none is left
			return
		default:
			l.log(id).Warn("a mount is left behind", "path", l.in(id, rootName), "err", err)
			return
		}
	}
}

// accountFiles are opened by runtimes in the container, when everything is mounted.
var accountFiles = []string{"/etc/passwd", "/etc/group"}

// prepareFiles checks the mounted files of a container that does not run: no link in them may lead
// a mount to another place. The runtime itself opens files there, such as /dev/null, before
// anything can be checked. Where mounts go, it makes what is missing: crun follows a link to
// something missing as if the link were in the root directory. program is where the guest goes.
func (l *instances) prepareFiles(inst sandbox.Instance, program string) error {
	root, err := os.OpenRoot(l.in(inst.ID, rootName))
	if err != nil {
		return err
	}
	defer root.Close()
	readlink := func(path string) (string, error) {
		to, err := root.Readlink(strings.TrimPrefix(path, "/"))
		// Neither one that is missing nor one that is no link.
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) ||
			errors.Is(err, unix.ENOTDIR) {
			return "", nil
		}
		return to, err
	}
	if err := machine.CheckMounts(inst.Mounts, readlink); err != nil {
		return err
	}
	names := make([]string, 0, len(nameFiles))
	for _, name := range nameFiles {
		names = append(names, "/etc/"+name)
	}
	if err := machine.CheckNames(names, readlink); err != nil {
		return err
	}
	for _, file := range accountFiles {
		if err := machine.CheckOpened(file, inst.Mounts, readlink); err != nil {
			return err
		}
	}
	for _, path := range slices.Concat(names, accountFiles, []string{program}) {
		if err := l.dropSpecial(root, inst.ID, path, readlink); err != nil {
			return err
		}
	}
	for _, m := range inst.Mounts {
		if err := makeTarget(root, m.Inside(), true, readlink); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := makeTarget(root, name, false, readlink); err != nil {
			return err
		}
	}
	return nil
}

// dropSpecial removes what a path leads to if opening it could wait, such as a FIFO: the runtime
// would open it, and keep others from starting meanwhile.
func (l *instances) dropSpecial(root *os.Root, id, path string, readlink machine.Readlink) error {
	led, err := machine.Follow(path, readlink)
	if err != nil {
		return err
	}
	at := strings.TrimPrefix(led, "/")
	info, err := root.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) == 0 {
		return nil
	}
	l.log(id).Warn("a file that the runtime would open is removed", "path", led, "mode",
		info.Mode())
	return root.Remove(at)
}

// makeTarget makes the directory or the empty file to which a path leads, if nothing is there.
func makeTarget(root *os.Root, path string, dir bool, readlink machine.Readlink) error {
	led, err := machine.Follow(path, readlink)
	if err != nil {
		return err
	}
	at := strings.TrimPrefix(led, "/")
	if dir {
		return root.MkdirAll(at, 0o755)
	}
	if err := root.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// bundle reads the runtime's input for an instance. A missing one is fs.ErrNotExist.
func (l *instances) bundle(id string) (s specs.Spec, err error) {
	text, err := os.ReadFile(filepath.Join(l.in(id, bundleDir), "config.json"))
	if err != nil {
		return s, err
	}
	if err = json.Unmarshal(text, &s); err == nil && (s.Process == nil ||
		len(s.Process.Args) != 1 || s.Linux == nil || s.Annotations[refNote] == "" ||
		!slices.Contains(runtimeNames, s.Annotations[runtimeNote])) {
		err = errors.New("it is damaged")
	}
	if err != nil {
		return s, fmt.Errorf("bundle of %s: %w", id, err)
	}
	return s, nil
}

// container returns the container of an instance, which may not exist, and its runtime. If none was
// started it is fs.ErrNotExist.
func (l *instances) container(id string) (ref, runtime string, err error) {
	made, err := l.bundle(id)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return made.Annotations[refNote], made.Annotations[runtimeNote], err
	}
	l.log(id).Error("read bundle", "err", err)
	n, noted := l.state.ReadNote(id)
	if errors.Is(noted, fs.ErrNotExist) && readProcess(l.in(id, pidFile)) == (process{}) {
		return "", "", noted // its boot was not done
	}
	if noted != nil {
		return "", "", err
	}
	return n.Instance.Ref, n.Instance.Runtime, nil
}

// writeBundle writes the runtime's input for an instance: later calls read it to remove the
// container.
func (l *instances) writeBundle(id string, text []byte) error {
	return guestconfig.WriteFile(filepath.Join(l.in(id, bundleDir), "config.json"), text)
}

// confineAgain isolates an instance that does not run as a new one would be: an older daemon, or an
// older kernel, may have made it.
func (l *instances) confineAgain(id string) error {
	profile, err := l.runtime.confine()
	if err != nil {
		return err
	}
	made, err := l.bundle(id)
	if err != nil {
		return err
	}
	before, err := json.Marshal(made)
	if err != nil {
		return err
	}
	made.Process.ApparmorProfile = profile
	hide(made.Linux, throttles())
	if err := filterCalls(&made, made.Annotations[runtimeNote]); err != nil {
		return err
	}
	after, err := json.Marshal(made)
	if err != nil || bytes.Equal(before, after) {
		return err
	}
	return l.writeBundle(id, after)
}

// remove ends an instance and removes all that Boot made for it. The caller has locked it.
func (l *instances) remove(ctx context.Context, id string) error {
	l.sockets.Shut(id)
	if err := l.kill(ctx, id); err != nil {
		return err
	}
	l.sockets.Shut(id) // a dial may have opened them meanwhile
	l.unmount(id)
	for _, name := range []string{upperDir, workDir} {
		if err := store.RemoveAll(ctx, l.in(id, name)); err != nil {
			return err
		}
	}
	if err := l.images.Release(l.holder(id)); err != nil {
		return err
	}
	// The directory last: by it a later daemon finds what is left.
	if err := os.RemoveAll(l.state.Dir(id)); err != nil {
		return err
	}
	return nil
}

// collect removes the layers that no image and no instance needs any more.
func (l *instances) collect(ctx context.Context) {
	if err := l.images.Collect(ctx); err != nil && ctx.Err() == nil {
		l.logs.Warn("layers of removed images are left", "err", err)
	}
}
