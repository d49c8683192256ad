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
// What else a backend can do is in the groups below: Finder, Lifecycle, Pauser, Imager, Meter and
// Networker. Callers ask for a group by type assertion. A backend implements a group whole or not
// at all; the error of a caller that needs a missing group wraps ErrUnsupported.
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

// A Finder knows its instances without the daemon's store: it lists and inspects what it made, and
// says what it would make now.
type Finder interface {
	// List returns every instance that carries this daemon's label, running or not.
	List(ctx context.Context) ([]Instance, error)
	// Inspect reports the state of an instance without asking its guest. ErrGone: there is no such
	// instance.
	Inspect(ctx context.Context, inst Instance) (Status, error)
	// Sweep removes what calls of an earlier daemon left and List does not show, such as images of
	// interrupted builds. Callers repeat it while the daemon is young: an engine completes late
	// what it was asked for. Sweep never touches what calls of this daemon are making. A backend
	// that leaves nothing of that kind returns nil.
	Sweep(ctx context.Context) error
	// Resolve returns the Instance.Digest that a sandbox made from image would have now. It
	// neither builds nor pulls: ErrNoImage if the image is not there.
	Resolve(ctx context.Context, image string) (digest string, err error)
	// Revision returns the Instance.Revision that an instance made to spec would have now. It is
	// empty if a spec and an image decide everything.
	Revision(ctx context.Context, spec Spec) (string, error)
}

// A Lifecycle ends all processes of an instance and starts it again with its files.
type Lifecycle interface {
	// Stop ends the instance's processes; its files stay. grace bounds the orderly part; zero
	// means 10 s. Stopping what is stopped is not an error.
	Stop(ctx context.Context, inst Instance, grace time.Duration) error
	// Start starts a stopped instance and returns when its guest has connected. Starting what runs
	// is not an error. The returned instance replaces inst.
	Start(ctx context.Context, inst Instance) (Instance, error)
}

// A Pauser freezes all processes of an instance in place and lets them continue. It is not part of
// Lifecycle because callers have to know before they promise a pause.
type Pauser interface {
	// Pause freezes what runs: it keeps its memory and uses no processor. Connections stay open
	// and are not answered. Pausing what is paused is not an error. ErrStopped: nothing runs.
	Pause(ctx context.Context, inst Instance) error
	// Resume lets a paused instance continue. Resuming any other is not an error.
	Resume(ctx context.Context, inst Instance) error
}

// An Imager makes images of instances and of Dockerfiles. An image that it made for an owner can be
// named by a Spec with that Owner and by no other; for others it does not exist.
type Imager interface {
	// Snapshot keeps the files of an instance, running or not, as the image name:tag of owner and
	// returns its reference. name and tag are DNS labels. The image holds files only: no process,
	// session, key or guest configuration. It stays until somebody removes it. Errors that callers
	// branch on: fs.ErrExist if there is one by that name; ErrUnsupported if some files cannot be
	// kept, such as those of volumes.
	Snapshot(ctx context.Context, inst Instance, owner, name, tag string) (image string, err error)
	// Fork keeps the files of inst as an image for the instance with the given ID, which need not
	// exist yet, and returns its reference, valid in that instance's Spec only. Destroy of that
	// instance removes the image, even if it was never booted. Errors as of Snapshot.
	Fork(ctx context.Context, inst Instance, id string) (image string, err error)
	// Weight returns the size in bytes of an image of the instance's files. Holes in files count.
	Weight(ctx context.Context, inst Instance) (int64, error)
	// Kept returns how many bytes the images take that Snapshot, Build and Prepare made for owner,
	// and Fork for the instances with these IDs. Layers of images below them do not count.
	Kept(ctx context.Context, owner string, ids []string) (int64, error)

	// Build makes the image that s describes and returns its reference. An image built of the same
	// files, arguments and base images is reused. The error of a failed step wraps a *StepError.
	// When ctx ends, the running step is ended.
	Build(ctx context.Context, s BuildSpec) (image string, err error)
	// Prepared returns the image that Prepare kept for the same owner, image and key, or "" if
	// there is none. spec.Image is pulled or built first, as Boot does it.
	Prepared(ctx context.Context, spec Spec, key string) (image string, err error)
	// Prepare keeps the current files of inst, which was set up, and returns the image. Errors as
	// of Snapshot.
	Prepare(ctx context.Context, inst Instance, owner, key string) (image string, err error)
	// Forget removes the images that Build and Prepare made for owner and no instance uses, except
	// keep. They are made again on demand. It returns how many it removed.
	Forget(ctx context.Context, owner, keep string) (n int, err error)
}

// A Meter measures what an instance uses without asking its guest, which is not trusted.
type Meter interface {
	// Usage reads the kernel's counters of a running instance. It is cheap enough for every
	// second. Errors that callers branch on: ErrGone, ErrStopped.
	Usage(ctx context.Context, inst Instance) (Usage, error)
	// Disk measures what the files of an instance occupy, running or not. It looks at each file,
	// and stops early when it has found more than limit, whose zero fields are no limit.
	Disk(ctx context.Context, inst Instance, limit DiskUsage) (DiskUsage, error)
	// Room returns how many bytes are free where instances keep their files. It is cheap.
	Room(ctx context.Context) (int64, error)
}

// A Networker hands the packets of its sandboxes to the daemon: of those with NetworkFiltered or
// NetworkAllowlist that are not ViaProxy. Boot of a backend without it refuses ViaTUN.
type Networker interface {
	// Tunnel waits for the instance's guest to hand over its network device, as package wire
	// describes it. Each call gets the same device; only one caller should hold it at a time.
	// Errors that callers branch on: ErrGone, ErrStopped; ErrUnsupported for an instance whose
	// network has no device.
	Tunnel(ctx context.Context, inst Instance) (Tunnel, error)
}

// Tunnel is a sandbox's network device. The caller closes both.
type Tunnel struct {
	Device *os.File // packets; not blocking
	Hold   net.Conn // ends when the guest has gone
}

// Peer is where an instance's SSH server answers, and how to log in to it.
type Peer struct {
	Conn     net.Conn
	User     string
	HostKeys []ssh.PublicKey // the only keys that the server may present; never empty without Known
	Auth     []ssh.AuthMethod

	// Known decides about a server's key where a list is not enough: known_hosts files have
	// certificate authorities and revoked keys. Nil leaves it to HostKeys. Algorithms are then the
	// kinds of keys to ask for; none means any.
	Known      func(key ssh.PublicKey) error
	Algorithms []string
}

// Status is the state of an instance as far as its backend knows without its guest.
type Status struct {
	Running   bool
	Paused    bool
	Halted    bool // its PID 1 was stopped by a signal (SIGSTOP), as far as can be seen
	ExitCode  int  // of PID 1, when not running
	OOMKilled bool // the kernel killed a process at the memory limit, as far as can be seen
	// EngineRestarted reports, for an instance that does not run, that a restart of the engine
	// ended it, as far as can be seen.
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

// MaxFiles is how many files a sandbox with a disk limit of so many bytes may have: empty files
// take room, too, which no count of blocks shows.
func MaxFiles(disk int64) int64 { return max(disk/(8<<10), 64<<10) }
