//go:build !linux

package record

import (
	"errors"
	"os"
)

func punch(*os.File, int64) error { return errors.ErrUnsupported }
