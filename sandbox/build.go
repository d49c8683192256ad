package sandbox

import (
	"context"
	"os"
)

// BuildSpec is what Imager.Build makes an image of.
type BuildSpec struct {
	Owner      string
	Dockerfile []byte
	Name       string // of the Dockerfile, in messages
	// Directory to copy from, without what .dockerignore names; the caller closes it.
	Context   *os.Root
	Args      []string // K=V for ARG instructions; not for secrets: the image's history shows them
	Target    string   // stage to build; empty means the last
	Limits    Limits   // of each step; Disk also bounds what all steps of a stage leave
	MinFree   int64    // bytes of disk to leave free, else the build fails; zero means none
	Isolation string   // of the sandbox that it is for: RUN steps get the same one, or Build fails
	// Network is the network of RUN steps: never more than a sandbox in that mode. Steps with
	// NetworkFiltered and NetworkAllowlist share the network of the instance that Carrier makes.
	Network Network
	// Carrier makes an instance from an image that is present; done ends its use. It is called at
	// most once, and only if a step has to run. Required for those two modes.
	Carrier func(ctx context.Context, image string) (inst Instance, done func() error, err error)

	// Progress receives steps and their output, a line at a time, safe to display. It may be nil.
	Progress func(line string)
}
