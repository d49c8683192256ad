package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Prefixes of the names of images that a backend makes. Such images are never pulled, even if a
// public registry has those names. BuildPrefix and SetupPrefix are of images that can be made
// again.
const (
	SnapshotPrefix = "sandboxd-snapshot/"
	ForkPrefix     = "sandboxd-fork/"
	BuildPrefix    = "sandboxd-build/"
	SetupPrefix    = "sandboxd-setup/"
)

// Names are the names of the images that the backend of the daemon with this ID makes. A name
// identifies the owner even without the daemon's store.
type Names struct{ Daemon string }

// Snapshots returns the beginning of the names of an owner's snapshots.
func (n Names) Snapshots(owner string) string { return n.own(SnapshotPrefix, owner) + "/" }

// own is the repository of an owner's images of one kind.
func (n Names) own(prefix, owner string) string {
	sum := sha256.Sum256([]byte(n.Daemon + "\x00" + owner))
	return prefix + hex.EncodeToString(sum[:6])
}

// ForkImage returns the name of the image that Fork makes for the instance id.
func ForkImage(id string) string { return ForkPrefix + id + ":latest" }

// Made returns the name of the image that a layer makes of the image with an ID.
func (n Names) Made(owner, below string, l sandbox.Layer) string {
	prefix := SetupPrefix
	if l.Dockerfile {
		prefix = BuildPrefix
	}
	sum := sha256.New()
	for _, part := range []string{"1", below, l.Key} {
		fmt.Fprintf(sum, "%d\n%s", len(part), part)
	}
	return n.own(prefix, owner) + ":" + hex.EncodeToString(sum.Sum(nil)[:16])
}

// IsMade reports whether an image can be made again.
func IsMade(ref string) bool {
	return strings.HasPrefix(ref, BuildPrefix) || strings.HasPrefix(ref, SetupPrefix)
}

// MadeFor reports whether ref belongs to owner and can be made again.
func (n Names) MadeFor(owner, ref string) bool {
	return strings.HasPrefix(ref, n.own(BuildPrefix, owner)+":") ||
		strings.HasPrefix(ref, n.own(SetupPrefix, owner)+":")
}

// IsSnapshot reports whether an image was made from a sandbox's files.
func IsSnapshot(ref string) bool {
	return strings.HasPrefix(ref, SnapshotPrefix) || strings.HasPrefix(ref, ForkPrefix) ||
		IsMade(ref)
}

// MayBoot returns ErrNoImage for an image that was made for another owner. spec.Image is
// normalized.
func (n Names) MayBoot(spec sandbox.Spec) error {
	switch {
	case strings.HasPrefix(spec.Image, "sha256:"): // an ID would match images of any owner
		return fmt.Errorf("image %s: use a name, not an ID", spec.Image)
	case strings.HasPrefix(spec.Image, SnapshotPrefix) &&
		!strings.HasPrefix(spec.Image, n.Snapshots(spec.Owner)),
		strings.HasPrefix(spec.Image, ForkPrefix) && spec.Image != ForkImage(spec.ID),
		IsMade(spec.Image) && !n.MadeFor(spec.Owner, spec.Image):
		return fmt.Errorf("%w: %s", sandbox.ErrNoImage, spec.Image)
	}
	return nil
}

// ParseImage returns the name of an image in its usual form. Without a tag it means :latest, and an
// empty name is the default image.
func ParseImage(ref string) (string, error) {
	if ref == "" {
		return sandbox.DefaultImage, nil
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	return reference.FamiliarString(reference.TagNameOnly(named)), nil
}

// Revision identifies the inputs of an instance besides its image and spec: the guest program and
// the runtime, which may be the engine's default.
func Revision(guest, runtime string) string { return filepath.Base(guest) + " " + runtime }
