package screen

import "unicode/utf8"

// Color is the color of a cell: the terminal's default (the zero value), one of 256, or 24-bit.
type Color uint32

const (
	colorIndexed Color = 1 << 24
	colorRGB     Color = 2 << 24
)

// Indexed returns color i of the palette of 256: 0 to 7 are the basic colors, 8 to 15 their bright
// forms.
func Indexed(i uint8) Color { return colorIndexed | Color(i) }

// RGB returns a 24-bit color.
func RGB(r, g, b uint8) Color {
	return colorRGB | Color(r)<<16 | Color(g)<<8 | Color(b)
}

// Default reports whether c is the terminal's default color.
func (c Color) Default() bool { return c == 0 }

// Index returns the palette index of c. ok is false for a default or 24-bit color.
func (c Color) Index() (i uint8, ok bool) { return uint8(c), c&^0xff == colorIndexed }

// RGB returns the components of c. ok is false unless c is a 24-bit color.
func (c Color) RGB() (r, g, b uint8, ok bool) {
	return uint8(c >> 16), uint8(c >> 8), uint8(c), c&^0xffffff == colorRGB
}

// Attr is a set of character attributes.
type Attr uint8

// The attributes of SGR, as bits.
const (
	Bold Attr = 1 << iota
	Faint
	Italic
	Blink
	Inverse
	Conceal
	Strike
	Overline
)

// Underline is the form of an underline, with the numbers of SGR 4:n.
type Underline uint8

// The forms of underlining.
const (
	NoUnderline Underline = iota
	SingleUnderline
	DoubleUnderline
	CurlyUnderline
	DottedUnderline
	DashedUnderline
)

// Style is the appearance of a cell. It is comparable. The zero value is the terminal's default.
type Style struct {
	Fg, Bg         Color
	UnderlineColor Color
	Attr           Attr
	Underline      Underline
}

// Cell is one column of one row.
//
// Text is one grapheme cluster of valid UTF-8 without control characters. It is a space if the cell
// is empty, and "" in the second column of a wide cluster. Width is 1 for a normal cluster, and 2
// and 0 for the two columns of a wide cluster.
type Cell struct {
	Text  string
	Style Style
	Width uint8
}

// Blank reports whether the cell shows nothing and has the default style.
func (c Cell) Blank() bool { return c.Text == " " && c.Style == Style{} }

// cell is the stored form of a Cell. It has eight bytes, so that a screen of 200 by 50 takes at
// most 80 KB.
type cell struct {
	ch   uint32 // a rune, or clusterBit and an index into interner.clusters
	meta uint32 // style index << 2 | width
}

const clusterBit = 1 << 31

var blank = cell{ch: ' ', meta: 1}

func (c cell) width() int    { return int(c.meta & 3) }
func (c cell) style() uint32 { return c.meta >> 2 }

// continuation returns the second column of a wide cluster, with the style of meta.
func continuation(meta uint32) cell { return cell{meta: meta &^ 3} }

// interner numbers styles, and clusters of more than one rune. collect drops those that no cell
// uses. So its size depends on the screen, and not on all output so far.
type interner struct {
	styles    []Style // 0 is the default style
	styleIDs  map[Style]uint32
	clusters  []string
	clusterID map[string]uint32
	limit     int // collect if there are more entries

	recent [16]struct { // the last styles used: a program uses few at a time
		style Style
		id    uint32
	}
	buf []byte
}

// minInterned is the number of entries below which collect is not worth its cost.
const minInterned = 1024

func newInterner() interner {
	return interner{styles: []Style{{}}, limit: minInterned}
}

func (in *interner) full() bool { return len(in.styles)+len(in.clusters) > in.limit }

func (in *interner) style(st Style) uint32 {
	if st == (Style{}) {
		return 0
	}
	slot := &in.recent[(st.Fg*7+st.Bg*3+st.UnderlineColor+Color(st.Attr)+Color(st.Underline))%16]
	if slot.style == st {
		return slot.id
	}
	slot.style = st
	if id, ok := in.styleIDs[st]; ok {
		slot.id = id
		return id
	}
	if in.styleIDs == nil {
		in.styleIDs = make(map[Style]uint32)
	}
	id := uint32(len(in.styles))
	in.styles = append(in.styles, st)
	in.styleIDs[st] = id
	slot.id = id
	return id
}

func (in *interner) cluster(b []byte) uint32 {
	if id, ok := in.clusterID[string(b)]; ok {
		return id | clusterBit
	}
	text := string(b)
	if in.clusterID == nil {
		in.clusterID = make(map[string]uint32)
	}
	id := uint32(len(in.clusters))
	in.clusters = append(in.clusters, text)
	in.clusterID[text] = id
	return id | clusterBit
}

// appendText appends the text of a cell, which is empty for a continuation.
func (in *interner) appendText(dst []byte, c cell) []byte {
	switch {
	case c.ch&clusterBit != 0:
		return append(dst, in.clusters[c.ch&^clusterBit]...)
	case c.ch == 0:
		return dst
	}
	return utf8.AppendRune(dst, rune(c.ch))
}

// text returns the text of a cell, "" for a continuation.
func (in *interner) text(c cell) string {
	switch {
	case c.ch&clusterBit != 0:
		return in.clusters[c.ch&^clusterBit]
	case c.ch == 0:
		return ""
	case c.ch < 0x80:
		return ascii[c.ch : c.ch+1]
	default:
		return string(rune(c.ch))
	}
}

func (in *interner) cell(c cell) Cell {
	return Cell{Text: in.text(c), Style: in.styles[c.style()], Width: uint8(c.width())}
}

// ascii holds every ASCII character at its own index, so that a cell's text is a slice without an
// allocation.
const ascii = "\x00\x01\x02\x03\x04\x05\x06\a\b\t\n\v\f\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f" +
	" !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~\x7f"

// move enters a cell of the old interner into this one.
func (in *interner) move(old *interner, c cell) cell {
	if c.ch&clusterBit != 0 {
		c.ch = in.cluster([]byte(old.clusters[c.ch&^clusterBit]))
	}
	if id := c.style(); id != 0 {
		c.meta = in.style(old.styles[id])<<2 | c.meta&3
	}
	return c
}
