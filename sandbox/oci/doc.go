// Package oci is the Backend that makes sandboxes from containers without a container engine: an
// OCI runtime of the distribution, runc or crun, starts them, and the kernel's overlay file system
// joins the layers of their images with what they write. Package store keeps the images.
//
// Nothing runs beside a container: the daemon starts the runtime, which ends when the container
// runs, and then sees the container's first process, our guest, itself. It needs root, or the
// namespace of an ordinary user that Enter makes.
//
// One pure function, bundle, decides what a container may do, but for the filter of system calls,
// which is Docker's; golden files record its results. It is the same as what package docker asks of
// an engine.
package oci

// Name is the Instance.Backend of instances of this package.
const Name = "oci"
