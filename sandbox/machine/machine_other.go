//go:build !linux

package machine

import "errors"

// CapTerminals needs Linux.
func CapTerminals(int) error { return errors.ErrUnsupported }

// SetHostname needs Linux.
func SetHostname(int, string, string) error { return errors.ErrUnsupported }
