package sandbox

import dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

// ImageConfig is what an image says of the programs that run in it. Fields that only other engines
// use are kept as they are.
type ImageConfig = dockerspec.DockerOCIImageConfig

// Image is an image that a backend has.
type Image struct {
	ID     string // identifies its content and configuration
	Arch   string // that it is for, in Go's spelling; empty: unknown
	Config ImageConfig
}

// Layer is what an image has more than the one below it, which its instance was booted from.
type Layer struct {
	// Key is what determines the layer, besides the image below: an equal one is found again.
	Key        string
	Config     *ImageConfig // nil is that of the image below
	Dockerfile bool         // it was made for a Dockerfile, not for a setup
}
