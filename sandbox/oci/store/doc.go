// Package store keeps images as unpacked layers, which the overlay file systems of several
// containers share.
//
// A store is a directory that only its user may enter, because its layers have files with setuid
// bits and device nodes:
//
//	layers/NAME/fs    the files of a layer, with whiteouts as overlayfs has them
//	layers/NAME/size  what they occupy, in bytes
//	names/…           a file for each name of an image
//	holds/…           a file for each user of an image
//	tmp/…             what calls are making at this moment, and what interrupted calls left
//	lock              locked for a moment by each change; see flock(2)
//
// Several processes may use one store at the same time. It works on Linux only.
package store
