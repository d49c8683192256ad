package agent

import (
	"io"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Spec configures a new sandbox. The zero value of each field means the daemon's default.
type Spec struct {
	// Name is a DNS label, such as "web"; empty generates a name. With Reuse, Create returns the
	// caller's existing sandbox of that name whatever its configuration, and starts it if it is
	// stopped. Without Reuse, an existing name is an error with code exists.
	Name  string
	Reuse bool

	// Image is an image of the daemon's container engine, such as "sandboxd/python". Build builds
	// one from a Dockerfile instead; only the admin may set it.
	Image string
	Build *Build

	// Network is the network policy: none, filtered, allowlist or bridge. Allow adds destinations:
	// NAME, *.NAME, an address, a range, or * for all that filtered reaches, each with an optional
	// :PORT. Via is how the daemon must carry filtered and allowlist; empty means the best
	// available way.
	Network sandbox.Network
	Via     sandbox.Via
	Allow   []string

	// Limits limits memory, CPUs, disk and more. Limits.Swap must be 0.
	Limits sandbox.Limits

	// User is the account that sessions and commands run as: a name, UID or UID:GID. Sudo lets
	// setuid programs gain privileges.
	User string
	Sudo bool

	// Env adds environment variables, as NAME=VALUE, to every process.
	Env []string

	// Mounts are directories of the daemon's machine; only the admin may set them. Workdir is the
	// working directory of new sessions.
	Mounts  []sandbox.Mount
	Workdir string

	// Volume keeps the files of a directory while the sandbox is stopped, on a backend whose other
	// files end with the processes: Kubernetes. An empty Path means the backend's default. Other
	// backends refuse it.
	Volume sandbox.Volume

	// About has notes for users and models, which Describe returns. At most 4,096 bytes.
	About string

	// TTL stops the sandbox after it has been idle for so long; its files are kept. DeleteAfter
	// removes it after it has been stopped for so long. A negative value means never.
	TTL, DeleteAfter time.Duration

	// Isolation is the container runtime, such as "runc" or "runsc". EngineOptions are options of
	// the container engine, as NAME=VALUE, that the daemon allows.
	Isolation     string
	EngineOptions []string

	// Trust selects the certificate authorities that programs trust. Entrypoint says whether the
	// image's entrypoint runs.
	Trust      sandbox.Trust
	Entrypoint sandbox.Entrypoint

	// Progress receives text for a person while the image is pulled or built. It may be nil.
	Progress io.Writer
}

// Build names a Dockerfile on the daemon's machine.
type Build struct {
	Dockerfile string   // absolute path of the file or of its directory
	Context    string   // build context; empty means the directory of the file
	Target     string   // stage to build; empty means the last
	Args       []string // build arguments as NAME=VALUE; not for secrets
}

// words returns the daemon command that creates the sandbox.
func (s Spec) words() ([]string, error) {
	words := []string{"new", "--json"}
	flag := func(name, value string) {
		if value != "" {
			words = append(words, "--"+name+"="+value)
		}
	}
	set := func(name string, on bool) {
		if on {
			words = append(words, "--"+name)
		}
	}
	flags := func(name string, values []string) {
		for _, value := range values {
			words = append(words, "--"+name+"="+value)
		}
	}
	life := func(name string, d time.Duration) {
		switch {
		case d < 0:
			flag(name, "0")
		case d > 0:
			flag(name, d.String())
		}
	}
	set("if-missing", s.Reuse)
	set("progress", s.Progress != nil)
	flag("image", s.Image)
	if b := s.Build; b != nil {
		if b.Dockerfile == "" {
			return nil, &Error{
				Code:    CodeUsage,
				Message: "Spec.Build: Dockerfile is empty",
				Hint:    "set it to a path on the daemon's machine",
			}
		}
		flag("dockerfile", b.Dockerfile)
		flag("build-context", b.Context)
		flag("build-target", b.Target)
		flags("build-arg", b.Args)
	}
	network := string(s.Network)
	if s.Via != "" {
		network += "=" + string(s.Via)
	}
	flag("network", network)
	flags("allow", s.Allow)
	if s.Limits.Swap != 0 {
		return nil, &Error{
			Code:    CodeUsage,
			Message: "Spec.Limits: Swap must be 0",
			Hint:    "leave it 0",
		}
	}
	for _, limit := range sandbox.AllLimits {
		flag(limit.Name, limit.Text(s.Limits))
	}
	flag("user", s.User)
	set("sudo", s.Sudo)
	flags("env", s.Env)
	for _, m := range s.Mounts {
		name, dir := "mount", m.Path
		if m.Target != "" {
			name, dir = "volume", m.Path+":"+m.Target
		}
		if m.ReadOnly {
			dir += ":ro"
		}
		flag(name, dir)
	}
	if s.Volume.Size != 0 {
		text := sandbox.FormatSize(s.Volume.Size)
		if s.Volume.Path != "" {
			text += ":" + s.Volume.Path
		}
		flag("volume", text)
	}
	flag("workdir", s.Workdir)
	flag("about", s.About)
	life("ttl", s.TTL)
	life("delete-after", s.DeleteAfter)
	flag("isolation", s.Isolation)
	flags("docker-option", s.EngineOptions)
	flag("trust", string(s.Trust))
	set("no-entrypoint", s.Entrypoint == sandbox.EntrypointOff)
	if s.Name != "" {
		if _, err := wire.ParseSandbox(s.Name); err != nil {
			return nil, public(err)
		}
		words = append(words, "--", s.Name)
	}
	return words, nil
}
