package keyboard

import "github.com/sandboxd/sandboxd/sandbox/wire"

// Size is the size of a terminal in cells. The zero value is unknown.
type Size struct{ Cols, Rows int }

// SizeFor returns the terminal's size for p, who has just become its driver. It is the size that p
// gave. For an agent without one, it is the size from before people drove, else that of the
// session's start. It is zero if the size stays as it is.
func (k *Keyboard) SizeFor(p *Party, now, start Size) Size {
	size := p.Size
	if p.Kind == wire.Person {
		if k.before == (Size{}) {
			k.before = now
		}
		return size
	}
	if size == (Size{}) {
		size = start
		if k.before != (Size{}) {
			size = k.before
		}
	}
	k.before = Size{}
	return size
}

// RestoreSize returns the size from before people drove, once the keyboard is free again. It is
// zero if the size stays as it is.
func (k *Keyboard) RestoreSize() Size {
	if k.why != free {
		return Size{}
	}
	size := k.before
	k.before = Size{}
	return size
}

// Sizes reports whether the window of p determines the size of the terminal. Either p holds the
// keyboard, or it is free and p is the only party that may drive, as alone says.
func (k *Keyboard) Sizes(p *Party, alone bool) bool {
	return p.Rights != wire.RightWatch && (k.Holds(p) || k.why == free && alone)
}
