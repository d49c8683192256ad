package sandbox

import (
	"context"
	"fmt"
	"os"
)

// A Builder can make images of Dockerfiles.
type Builder interface {
	// Build makes the image that s describes and returns the reference by which a Spec of the same Owner, and of nobody else, names it.
	// One that was made of the same files, arguments and base images is found again. A step that fails is a *StepError within the error;
	// what runs of it when ctx ends is ended.
	Build(ctx context.Context, s BuildSpec) (image string, err error)
}

// BuildSpec is what an image is made of.
type BuildSpec struct {
	Owner      string
	Dockerfile []byte
	Name       string   // of the Dockerfile, in messages
	Context    *os.Root // directory of which its steps copy; what .dockerignore in it names is not read. Closed by the caller
	Args       []string // K=V, of its ARG instructions; they are no place for secrets: an image says what they were
	Target     string   // stage that is the image; empty is the last
	Limits     Limits   // of its steps; that of disk holds for each of them, and for what all of a stage leave
	MinFree    int64    // bytes of the backend's disk, below which the build is ended; 0 is none
	Isolation  string   // of the sandbox that it is for: RUN steps have it too, or the build is refused
	// Network is what the RUN steps reach. None reach more than a sandbox with it: those of NetworkFiltered and NetworkAllowlist
	// share the network of the instance that Carrier makes.
	Network Network
	// Carrier makes an instance of an image that is there, to be used until done is called. It is called at most once, and not where nothing
	// has to be made. Required for those two modes.
	Carrier func(ctx context.Context, image string) (inst Instance, done func() error, err error)

	Progress func(line string) // receives the steps and what they print, safe to show; may be nil
}

// A Preparer can keep the files of an instance that was set up, for other instances to begin with.
type Preparer interface {
	// Prepared returns the image that Prepare kept for the same owner, image and key, or nothing if there is none. spec.Image
	// is fetched first, as Boot does it.
	Prepared(ctx context.Context, spec Spec, key string) (image string, err error)
	// Prepare keeps the files of inst as they are now, and returns the image by which a Spec of the same Owner, and of nobody else,
	// names them.
	Prepare(ctx context.Context, inst Instance, owner, key string) (image string, err error)
	// Forget removes what Prepare, and Build, kept for owner and no instance is of, but the image keep: it is made again when it is asked
	// for. It returns how many images went.
	Forget(ctx context.Context, owner, keep string) (n int, err error)
}

// StepError is a step of a Dockerfile or of a set-up that failed.
type StepError struct {
	Step   string // where it is written, and how it begins
	Code   int    // its exit code; 0 when it did not run
	Output string // the last lines of what it printed, or why it did not run; safe to show
}

func (e *StepError) Error() string {
	said := e.Step
	if e.Code != 0 {
		said += fmt.Sprintf(": exit code %d", e.Code)
	}
	if e.Output != "" {
		said += ": " + e.Output
	}
	return said
}
