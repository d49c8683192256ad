package screen

import (
	"encoding/binary"
	"errors"
)

// snapshotVersion is the first byte of a snapshot. It changes with the format, and whenever the
// screen shows any output differently.
const snapshotVersion = 2

// Snapshot returns the state of the screen without the kept lines. A screen that Restore makes from
// it looks and behaves like this one.
func (s *Screen) Snapshot() []byte {
	c := &coder{b: []byte{snapshotVersion}, saving: true}
	s.code(c)
	return c.b
}

// Restore returns the screen of a snapshot. It keeps at most scrollback lines from then on, and
// answers no queries. It returns an error for a snapshot of another version, and for any other
// bytes.
func Restore(p []byte, scrollback int) (*Screen, error) {
	if len(p) == 0 || p[0] != snapshotVersion {
		return nil, errSnapshot
	}
	s := new(Screen)
	s.intern = newInterner()
	s.history.limit = min(max(scrollback, 0), MaxScrollback)
	c := &coder{b: p[1:]}
	s.code(c)
	if c.bad || len(c.b) > 0 || !s.sound() {
		return nil, errSnapshot
	}
	s.intern.limit = max(minInterned, 2*(len(s.intern.styles)+len(s.intern.clusters)))
	for i, st := range s.intern.styles[1:] {
		if s.intern.styleIDs == nil {
			s.intern.styleIDs = make(map[Style]uint32)
		}
		s.intern.styleIDs[st] = uint32(i + 1)
	}
	for i, text := range s.intern.clusters {
		if s.intern.clusterID == nil {
			s.intern.clusterID = make(map[string]uint32)
		}
		s.intern.clusterID[text] = uint32(i)
	}
	s.g = &s.primary
	if s.modes.AltScreen {
		s.g = &s.alternate
	}
	s.setPen(s.pen)
	for _, g := range []*grid{&s.primary, &s.alternate} {
		for _, r := range g.rows {
			s.generation++
			r.gen = s.generation
		}
	}
	return s, nil
}

var errSnapshot = errors.New("no snapshot of a screen, or one of another version")

// code writes the fields to c, or reads them from it, so that both use the same order.
func (s *Screen) code(c *coder) {
	code(c, &s.cols)
	code(c, &s.rows)
	list(c, &s.intern.styles, 1<<20, func(st *Style) { c.style(st) })
	list(c, &s.intern.clusters, 1<<20, func(p *string) { c.text(p) })
	for _, g := range []*grid{&s.primary, &s.alternate} {
		c.rows(&g.rows)
		code(c, &g.top)
		code(c, &g.bottom)
		for i := range g.tabs {
			code(c, &g.tabs[i])
		}
	}
	c.rows(&s.below)
	code(c, &s.history.total)
	code(c, &s.x)
	code(c, &s.y)
	c.style(&s.pen)
	c.charsets(&s.charsets, &s.gl)
	for i := range s.saved {
		v := &s.saved[i]
		code(c, &v.x)
		code(c, &v.y)
		c.style(&v.pen)
		c.charsets(&v.charsets, &v.gl)
	}
	m := &s.modes
	for _, on := range []*bool{&m.AltScreen, &m.AppCursor, &m.AppKeypad, &m.AutoWrap,
		&m.BracketedPaste, &m.CursorBlink, &m.CursorVisible,
		&m.FocusEvents, &m.Insert, &m.Origin, &m.Synchronized, &s.newline, &s.repeatable,
		&s.parser.full, &s.parser.dropped} {
		c.flag(on)
	}
	code(c, &m.Mouse)
	code(c, &m.MouseEncoding)
	code(c, &s.cursor)
	c.text(&s.title)
	for _, n := range []*Notice{&s.notice, &s.call} {
		c.text((*string)(&n.Kind))
		c.text(&n.Text)
		code(c, &n.Count)
	}
	c.text((*string)(&s.status))
	code(c, &s.statuses)
	code(c, &s.generation)
	p := &s.parser
	code(c, &p.state)
	for i := range p.utf8 {
		code(c, &p.utf8[i])
	}
	code(c, &p.utf8Len)
	code(c, &p.private)
	code(c, &p.inter)
	code(c, &p.nparams)
	for i := range p.params {
		code(c, &p.params[i])
		c.flag(&p.sub[i])
	}
	code(c, &p.kind)
	held := string(p.str)
	c.text(&held)
	p.str = []byte(held)
}

// sound reports whether the fields are consistent, because the bytes read may be anything.
func (s *Screen) sound() bool {
	cols, rows := clampSize(s.cols, s.rows)
	p := &s.parser
	ok := cols == s.cols && rows == s.rows && len(s.intern.styles) > 0 &&
		s.intern.styles[0] == Style{} &&
		len(s.primary.rows) == rows && (len(s.alternate.rows) == rows || s.alternate.rows == nil &&
		!s.modes.AltScreen) &&
		within(s.x, MaxCols+1) && within(s.y, rows) && s.gl < 4 && len(s.below) <= MaxRows &&
		p.state <= str && within(p.utf8Len, maxUTF8Held+1) && within(p.nparams, maxParams+1) &&
		len(p.str) <= maxString
	for _, n := range p.params {
		ok = ok && within(n, maxParam+1)
	}
	for _, v := range s.saved {
		ok = ok && within(v.x, MaxCols+1) && within(v.y, MaxRows+1) && v.gl < 4
	}
	for i, g := range []*grid{&s.primary, &s.alternate} {
		ok = ok && (i == 1 && g.rows == nil || within(g.top, rows) && within(g.bottom, rows) &&
			g.top <= g.bottom)
		for _, r := range g.rows {
			ok = ok && s.soundRow(r, cols)
		}
	}
	for _, r := range s.below {
		ok = ok && s.soundRow(r, MaxCols)
	}
	return ok
}

func within(n, limit int) bool { return n >= 0 && n < limit }

func (p *page) soundRow(r *row, cols int) bool {
	ok := len(r.cells) <= cols && p.soundCell(r.fill)
	for _, c := range r.cells {
		ok = ok && p.soundCell(c)
	}
	return ok
}

func (p *page) soundCell(c cell) bool {
	return int(c.style()) < len(p.intern.styles) &&
		(c.ch&clusterBit == 0 || int(c.ch&^clusterBit) < len(p.intern.clusters))
}

// coder writes or reads a snapshot. After an error in reading, it returns zeros, and bad is set.
type coder struct {
	b      []byte // written bytes, or bytes still to read
	saving bool
	bad    bool
}

func (c *coder) num(n uint64) uint64 {
	if c.saving {
		c.b = binary.AppendUvarint(c.b, n)
		return n
	}
	n, used := binary.Uvarint(c.b)
	if used <= 0 {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[used:]
	return n
}

// code writes or reads a number. It must not be negative.
func code[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, v *T) {
	n := c.num(uint64(*v))
	if *v = T(n); uint64(*v) != n {
		c.bad = true
	}
}

func (c *coder) flag(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	code(c, &n)
	*v = n == 1
}

func (c *coder) text(v *string) {
	n := c.num(uint64(len(*v)))
	switch {
	case c.saving:
		c.b = append(c.b, *v...)
	case n > uint64(len(c.b)):
		c.bad, c.b = true, nil
	default:
		*v, c.b = string(c.b[:n]), c.b[n:]
	}
}

// list writes or reads a slice of at most most elements.
func list[T any](c *coder, v *[]T, most uint64, f func(*T)) {
	n := c.num(uint64(len(*v)))
	if !c.saving {
		if n > most || n > uint64(len(c.b)) { // each element takes a byte
			c.bad, c.b = true, nil
			return
		}
		*v = make([]T, n)
		if n == 0 {
			*v = nil
		}
	}
	for i := range *v {
		f(&(*v)[i])
	}
}

func (c *coder) style(st *Style) {
	code(c, &st.Fg)
	code(c, &st.Bg)
	code(c, &st.UnderlineColor)
	code(c, &st.Attr)
	code(c, &st.Underline)
}

func (c *coder) charsets(sets *[4]charset, gl *uint8) {
	for i := range sets {
		code(c, &sets[i])
	}
	code(c, gl)
}

func (c *coder) rows(v *[]*row) {
	list(c, v, MaxRows, func(p **row) {
		if !c.saving {
			*p = &row{}
		}
		r := *p
		list(c, &r.cells, MaxCols, c.cell)
		c.cell(&r.fill)
		c.flag(&r.wrapped)
	})
}

func (c *coder) cell(v *cell) {
	code(c, &v.ch)
	code(c, &v.meta)
}
