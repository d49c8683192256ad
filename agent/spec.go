package agent

import (
	"io"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Spec is what a sandbox is made from. The zero value of each field means the daemon's default.
type Spec struct {
	// Name is a DNS label, such as "web"; empty generates one. With Reuse, Create returns the
	// caller's sandbox of that name instead of failing, however it was made, and starts it if it is
	// stopped. Without Reuse an existing name is an error with code exists.
	Name  string
	Reuse bool

	// Image is an image of the daemon's engine, such as "sandboxd/python". Build makes one from a
	// Dockerfile instead; it is for the daemon's own user.
	Image string
	Build *Build

	// Network is what the sandbox can connect to: none, filtered, allowlist or bridge. Allow opens
	// more, as NAME, *.NAME, address or range, each with or without :PORT. Via is how filtered and
	// allowlist have to be carried; empty means the best that there is.
	Network sandbox.Network
	Via     sandbox.Via
	Allow   []string

	// Limits bound its memory, processors, disk and more. Swap cannot be set this way.
	Limits sandbox.Limits

	// User is who works in it: a name, UID or UID:GID. Sudo lets setuid programs gain rights.
	User string
	Sudo bool

	// Env are NAME=VALUE for every process in it.
	Env []string

	// Mounts are directories of the daemon's machine, for the daemon's own user. Workdir is where
	// sessions begin.
	Mounts  []sandbox.Mount
	Workdir string

	// About are notes for users and models that Describe returns, at most 4,096 bytes.
	About string

	// TTL stops the sandbox when nobody has used it for so long; its files stay. DeleteAfter
	// removes it when it has been stopped for so long. Negative is never.
	TTL, DeleteAfter time.Duration

	// Isolation is the container runtime, such as "runc" or "runsc"; EngineOptions are NAME=VALUE
	// of the engine that the daemon allows.
	Isolation     string
	EngineOptions []string

	// Trust is whose certificate authorities programs trust; Entrypoint is whether the image's own
	// program runs.
	Trust      sandbox.Trust
	Entrypoint sandbox.Entrypoint

	// Progress receives lines for a person while the image is pulled or built. It may be nil.
	Progress io.Writer
}

// Build names a Dockerfile on the daemon's machine.
type Build struct {
	Dockerfile string   // the file, or the directory that it is in; absolute
	Context    string   // directory that its steps copy from; empty is the one that the file is in
	Target     string   // stage that is the image; empty is the last
	Args       []string // NAME=VALUE of its ARG instructions; not for secrets
}

// words is the command that makes a sandbox to spec.
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
			return nil, &Error{Code: CodeUsage, Message: "Build: no Dockerfile", Hint: "name a file on the daemon's machine"}
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
		return nil, &Error{Code: CodeUsage, Message: "Limits.Swap cannot be set", Hint: "leave it 0"}
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
