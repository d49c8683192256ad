//go:build !linux

package docker

import (
	"errors"
	"time"
)

// The engine's containers run on another machine, whose kernel cannot be asked.

func systemCalls() ([]byte, error) { return nil, errors.ErrUnsupported }

func kernelRelease() string { return "" }

func sinceBoot() (time.Duration, error) { return 0, errors.ErrUnsupported }

func freeIn(string) (int64, error) { return 0, errors.ErrUnsupported }
