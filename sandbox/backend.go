package sandbox

import (
	"context"
	"net"
	"os"
	"time"

	"golang.org/x/crypto/ssh"
)

// A Backend makes sandboxes. Its methods may be called concurrently, also for one instance.
//
// What else a backend can do is in the groups below: Finder, Reviser, Lifecycle, Pauser, Imager,
// Meter, Networker, Truster and Namer. Callers ask for a group by type assertion. A backend
// implements a group whole or not at all; the error of a caller that needs a missing group wraps
// ErrUnsupported.
type Backend interface {
	// Boot makes a sandbox to spec and returns when its guest has connected. It is atomic: on
	// error, and when ctx ends before it returns, nothing is left behind. Its error is a
	// *BootError. Slow steps, such as a pull, are reported through spec.Progress.
	Boot(ctx context.Context, spec Spec) (Instance, error)

	// Dial returns a connection to the instance's SSH server and what is needed to log in. ctx
	// bounds the dial, not the connection. The caller closes Peer.Conn. Errors that callers branch
	// on: ErrGone, ErrStopped.
	Dial(ctx context.Context, inst Instance) (Peer, error)

	// Destroy removes the instance and all that Boot made for it. Destroying what is already gone
	// is not an error. After an error it may be called again and continues where it stopped,
	// unless the error is a *LeftError: then the caller gives the instance up.
	Destroy(ctx context.Context, inst Instance) error
}

// A Finder knows its instances without the daemon's store: it lists and inspects what it made.
type Finder interface {
	// List returns every instance that carries this daemon's label, running or not.
	List(ctx context.Context) ([]Instance, error)
	// Inspect reports the state of an instance without asking its guest. It returns ErrGone if
	// there is no such instance.
	Inspect(ctx context.Context, inst Instance) (Status, error)
	// Sweep removes what an earlier daemon left behind and List does not show, such as images of
	// interrupted builds. Callers repeat it for a while after their start: an engine may complete
	// an earlier request late. Sweep never touches what calls of this daemon are making. A backend
	// that leaves nothing of that kind returns nil.
	Sweep(ctx context.Context) error
}

// A Reviser says what it would make now, so that a daemon can renew sandboxes that wait in a pool.
type Reviser interface {
	// Resolve returns the Instance.Digest that a sandbox made from image would have now. It neither
	// builds nor pulls, and returns ErrNoImage if the image is missing.
	Resolve(ctx context.Context, image string) (digest string, err error)
	// Revision returns the Instance.Revision that an instance made to spec would have now. It is
	// empty if spec and image determine the whole instance.
	Revision(ctx context.Context, spec Spec) (string, error)
}

// A Lifecycle ends all processes of an instance and starts it again with its files.
type Lifecycle interface {
	// CanStop reports whether an instance made to spec can be stopped. Stop of another returns
	// ErrUnsupported, because its files would be lost.
	CanStop(spec Spec) bool
	// Stop ends the instance's processes and keeps its files. grace bounds the orderly part; zero
	// means 10 s. Stopping a stopped instance is not an error.
	Stop(ctx context.Context, inst Instance, grace time.Duration) error
	// Start starts a stopped instance and returns when its guest has connected. Starting a running
	// instance is not an error. The returned instance replaces inst.
	Start(ctx context.Context, inst Instance) (Instance, error)
}

// A Pauser freezes all processes of an instance in place and lets them continue. It is not part of
// Lifecycle because callers must know in advance whether a backend can pause.
type Pauser interface {
	// Pause freezes the instance: it keeps its memory and uses no processor time. Connections stay
	// open and are not answered. Pausing a paused instance is not an error. It returns ErrStopped
	// if the instance does not run.
	Pause(ctx context.Context, inst Instance) error
	// Resume lets a paused instance continue. Resuming any other instance is not an error.
	Resume(ctx context.Context, inst Instance) error
}

// An Imager finds images, and makes images of instances. Only a Spec with the same Owner can name
// an image made for that owner; for other owners it does not exist.
type Imager interface {
	// Snapshot saves the files of an instance, running or not, as the image name:tag of owner and
	// returns its reference. name and tag are DNS labels. The image holds files only: no process,
	// session, key or guest configuration. It stays until it is removed explicitly. Errors that
	// callers branch on: fs.ErrExist if the image exists; ErrUnsupported if some files cannot be
	// saved, such as those of volumes.
	Snapshot(ctx context.Context, inst Instance, owner, name, tag string) (image string, err error)
	// Fork saves the files of inst as an image for the instance with the given ID, which need not
	// exist yet, and returns its reference, valid in that instance's Spec only. Destroy of that
	// instance removes the image, even if the instance was never booted. Errors as of Snapshot.
	Fork(ctx context.Context, inst Instance, id string) (image string, err error)
	// Weight returns the size in bytes of an image of the instance's files. Holes in files count if
	// the image does not keep them.
	Weight(ctx context.Context, inst Instance) (int64, error)
	// Kept returns the total size in bytes of the images that Snapshot and Prepare made for owner,
	// and Fork for the instances with these IDs. Their base images do not count.
	Kept(ctx context.Context, owner string, ids []string) (int64, error)

	// Arch returns the architecture of instances, in Go's form.
	Arch(ctx context.Context) (string, error)
	// Image returns the image of spec. Like Boot, it first pulls or builds a missing one.
	Image(ctx context.Context, spec Spec) (Image, error)
	// Prepared returns the image that Prepare saved for the same owner, image and key, or "" if
	// there is none. Like Boot, it first pulls or builds spec.Image.
	Prepared(ctx context.Context, spec Spec, l Layer) (image string, err error)
	// Prepare saves the current files of inst as a layer on its image, and returns the new image.
	// For a Dockerfile, files of volumes are left out. Errors as of Snapshot.
	Prepare(ctx context.Context, inst Instance, owner string, l Layer) (image string, err error)
	// Forget removes the images that Prepare made for owner and no instance uses, except those that
	// keep reports. They are made again on demand. It returns how many it removed.
	Forget(ctx context.Context, owner string, keep func(image string) bool) (n int, err error)
}

// A Meter measures what an instance uses without asking its guest, which is not trusted.
type Meter interface {
	// Usage reads the kernel's counters of a running instance. It is cheap enough for every
	// second. Errors that callers branch on: ErrGone, ErrStopped.
	Usage(ctx context.Context, inst Instance) (Usage, error)
	// Disk measures what the files of an instance occupy, running or not. It visits each file, and
	// stops early when it has found more than limit, whose zero fields mean no limit.
	Disk(ctx context.Context, inst Instance, limit DiskUsage) (DiskUsage, error)
	// Room returns how many bytes are free where instances keep their files. It is cheap. It
	// returns ErrUnsupported if nothing on this machine knows.
	Room(ctx context.Context) (int64, error)
}

// A Networker hands the packets of its sandboxes to the daemon, for sandboxes with NetworkFiltered
// or NetworkAllowlist that are not ViaProxy. Boot of a backend without this group rejects ViaTUN.
type Networker interface {
	// Tunnel waits for the instance's guest to hand over its network device, as package wire
	// describes it. Each call returns the same device; only one caller should hold it at a time.
	// Errors that callers branch on: ErrGone, ErrStopped; ErrUnsupported for an instance whose
	// network has no device.
	Tunnel(ctx context.Context, inst Instance) (Tunnel, error)
}

// A Truster changes the certificate authorities that programs of an instance trust. Boot of a
// backend without this group rejects Spec.Authorities.
type Truster interface {
	// Trust replaces the authorities that programs trust besides those of the host, in PEM.
	// Programs see them when they read the file that SSL_CERT_FILE names. It returns ErrUnsupported
	// for an instance with Spec.Trust TrustImage, for one that an earlier version made, and if the
	// host has no bundle.
	Trust(ctx context.Context, inst Instance, authorities []byte) error
}

// A Namer changes the host name of a running instance. It is used for an instance that was booted
// without a name; Boot gives one with a name that host name. Programs of an instance without this
// group see Instance.ID.
type Namer interface {
	// SetHostname sets the host name, a DNS label, until the instance stops. It is quick: a claim
	// waits for it. Errors that callers branch on: ErrStopped, ErrUnsupported.
	SetHostname(ctx context.Context, inst Instance, name string) error
}

// Tunnel is a sandbox's network device. The caller closes both fields.
type Tunnel struct {
	Device *os.File // packets; not blocking
	Hold   net.Conn // ends when the guest ends
}

// Peer is where an instance's SSH server answers, and how to log in to it.
type Peer struct {
	Conn     net.Conn
	User     string
	HostKeys []ssh.PublicKey // the only keys that the server may present; never empty without Known
	Auth     []ssh.AuthMethod

	// Known decides on a server's key where a list is not enough: known_hosts files have
	// certificate authorities and revoked keys. Nil means that HostKeys decides. Algorithms are
	// then the key types to ask for; none means any.
	Known      func(key ssh.PublicKey) error
	Algorithms []string
}

// Status is the state of an instance as far as its backend knows without its guest.
type Status struct {
	Running   bool
	Paused    bool
	Halted    bool // its PID 1 was stopped by a signal (SIGSTOP); false if unknown
	ExitCode  int  // of PID 1, when not running
	OOMKilled bool // the kernel killed a process at the memory limit; false if unknown
	// EngineRestarted reports, for a stopped instance, that a restart of the engine ended it. False
	// if unknown.
	EngineRestarted bool
	Notes           []string
}

// Usage is what an instance uses, and what it was denied since its start.
type Usage struct {
	Memory int64         // bytes
	PIDs   int64         // processes and threads
	CPU    time.Duration // processor time since its start

	OOMKills    int64 // processes killed at the memory limit
	PIDsRefused int64 // processes and threads not started at their limit
}

// DiskUsage is what the files of an instance occupy beyond its image: its own files, those of its
// volumes, and removed files that are still open.
type DiskUsage struct {
	Bytes int64 // of blocks: holes in files do not count
	Files int64 // of any kind
}

// MaxFiles is how many files a sandbox with a disk limit of this many bytes may have. Empty files
// use space, too, which a count of blocks does not show.
func MaxFiles(disk int64) int64 { return max(disk/(8<<10), 64<<10) }
