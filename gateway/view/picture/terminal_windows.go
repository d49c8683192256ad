package picture

import "os"

// Terminal is the terminal of the person who uses this program. A console of Windows is not asked
// what it can draw.
type Terminal struct {
	In, Out *os.File
	Env     func(string) string // os.Getenv
}

// Ask returns None.
func (Terminal) Ask(bool) (p Protocol, typed []byte) { return None, nil }

// Width returns 0: it is unknown.
func (Terminal) Width() int { return 0 }
