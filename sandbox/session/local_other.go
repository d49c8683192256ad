//go:build !linux

package session

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
)

// Sessions on this system are those of remote machines: their terminals are elsewhere, and no shell
// is started here.

const continueSignal = syscall.Signal(0)

func canonical(*os.File) bool { return false }

func signals(*os.File) bool { return false }

func inputModes(*os.File) track.Modes { return track.Modes{} }

func unread(*os.File) bool { return false }

func masterReader(*os.File, *atomic.Bool) (read func([]byte) (int, error), ok bool) {
	return nil, false
}

func inheritedFile() (*commandFile, error) { return nil, errors.ErrUnsupported }

func readableBy(*os.File, int) error { return errors.ErrUnsupported }
