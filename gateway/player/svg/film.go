package svg

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// A cell, and the margin around the terminal, in units of the SVG.
const (
	cellWidth  = 9
	cellHeight = 19
	baseline   = 14
	margin     = 12
)

// The smallest picture, in columns and rows: the bar has to fit.
const (
	minCols = 60
	minRows = 5
)

// film holds the frames of an SVG. Each distinct row and each distinct frame is kept once.
type film struct {
	title      string
	cols, rows int // the part of the terminal that some frame uses

	styles  map[screen.Style]int
	sheet   []string // CSS by number of the style
	lines   map[string]int
	ordered []string // markup by number of the row
	frames  map[string]int
	strip   []frame
	cuts    []cut

	size    int // of all markup so far
	scratch []screen.Cell
}

// frame is one picture: numbers of rows, and the rest.
type frame struct {
	rows   []int // 0 is an empty row
	cursor screen.Cursor
	bar    bar
}

// cut says from when on a frame of the strip is shown.
type cut struct {
	at    time.Duration
	frame int
}

func newFilm(title string) *film {
	return &film{
		title:  title,
		styles: make(map[screen.Style]int),
		lines:  map[string]int{"": 0}, ordered: []string{""},
		frames: make(map[string]int),
		cols:   minCols, rows: minRows,
	}
}

// add appends what s and b show from at on.
func (f *film) add(at time.Duration, s *screen.Screen, b bar) error {
	_, rows := s.Size()
	fr := frame{rows: make([]int, rows), cursor: s.Cursor(), bar: b}
	for y := range rows {
		f.scratch = s.AppendLine(f.scratch[:0], y)
		if fr.rows[y] = f.row(f.scratch); fr.rows[y] > 0 {
			f.use(len(f.scratch), y+1)
		}
	}
	if fr.cursor.Visible {
		f.use(fr.cursor.X+1, fr.cursor.Y+1)
	}
	key := fmt.Sprint(fr)
	n, ok := f.frames[key]
	if !ok {
		n = len(f.strip)
		f.frames[key] = n
		f.strip = append(f.strip, fr)
		f.size += 40*rows + 400
	}
	f.cuts = append(f.cuts, cut{at, n})
	if len(f.cuts) > maxFrames || f.size > maxBytes {
		return ErrTooLong
	}
	return nil
}

// use makes the picture large enough for that many columns and rows.
func (f *film) use(cols, rows int) { f.cols, f.rows = max(f.cols, cols), max(f.rows, rows) }

// row returns the number of a row with these cells.
func (f *film) row(cells []screen.Cell) int {
	markup := f.markup(cells)
	n, ok := f.lines[markup]
	if !ok {
		n = len(f.ordered)
		f.lines[markup] = n
		f.ordered = append(f.ordered, markup)
		f.size += len(markup) + 32
	}
	return n
}

// markup draws a row: backgrounds first, then text in pieces of one style.
func (f *film) markup(cells []screen.Cell) string {
	var b strings.Builder
	for from := 0; from < len(cells); {
		to := from + 1
		_, bg := colors(cells[from].Style)
		for ; to < len(cells); to++ {
			if _, other := colors(cells[to].Style); other != bg {
				break
			}
		}
		if bg != "" {
			fmt.Fprintf(&b, `<rect x="%d" width="%d" height="%d" fill="%s"/>`,
				from*cellWidth, (to-from)*cellWidth, cellHeight, bg)
		}
		from = to
	}
	for from := 0; from < len(cells); {
		to := from + 1
		for to < len(cells) && joins(cells[from], cells[to]) {
			to++
		}
		f.piece(&b, from, cells[from:to])
		from = to
	}
	return b.String()
}

// joins reports whether two cells are drawn as one piece. Only ASCII is: other characters may come
// from another font, and each keeps its own place.
func joins(a, b screen.Cell) bool {
	return a.Style == b.Style && ascii(a) && ascii(b)
}

func ascii(c screen.Cell) bool { return len(c.Text) == 1 && c.Text[0] < utf8.RuneSelf }

// piece draws cells of one style, from column x on.
func (f *film) piece(b *strings.Builder, x int, cells []screen.Cell) {
	st := cells[0].Style
	var said strings.Builder
	for _, c := range cells {
		said.WriteString(c.Text)
	}
	line := said.String()
	if st.Attr&screen.Conceal != 0 {
		return // hidden on the terminal: hidden in the file, too
	}
	if !marks(st) {
		trimmed := strings.TrimLeft(line, " ")
		x += len(line) - len(trimmed)
		line = strings.TrimRight(trimmed, " ")
	}
	if line == "" {
		return
	}
	width, adjust := len(line), ""
	if !ascii(cells[0]) {
		width, adjust = int(cells[0].Width), ` lengthAdjust="spacingAndGlyphs"`
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" class="s%d" textLength="%d"%s>%s</text>`,
		x*cellWidth, baseline, f.style(st), width*cellWidth, adjust, escape(line))
}

// style returns the number of the class for a style.
func (f *film) style(st screen.Style) int {
	st.Bg, st.UnderlineColor = textBackground(st), 0
	n, ok := f.styles[st]
	if !ok {
		n = len(f.sheet)
		f.styles[st] = n
		f.sheet = append(f.sheet, css(st))
		f.size += len(f.sheet[n]) + 8
	}
	return n
}

// textBackground is the background as far as it changes how the text looks.
func textBackground(st screen.Style) screen.Color {
	if st.Attr&screen.Inverse != 0 {
		return st.Bg
	}
	return 0
}

// escape returns s as text of XML: no markup, and only characters that XML allows. What turns the
// direction of text is written out.
func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text.Mark(s))) // a Buffer takes everything
	return b.String()
}

// write writes the SVG; long is the length of one round of the animation.
func (f *film) write(w io.Writer, long time.Duration) error {
	width := f.cols*cellWidth + 2*margin
	terminal := f.rows*cellHeight + 2*margin
	height := terminal + cellHeight + 8
	var b bytes.Buffer
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" role="img" xml:space="preserve" `)
	fmt.Fprintf(&b, `width="%d" height="%d" viewBox="0 0 %d %d">`+"\n",
		width, height, width, height)
	title := "Recording of the session " + text.Line(f.title, maxName)
	fmt.Fprintf(&b, "<title>%s</title>\n", escape(title))
	f.writeSheet(&b, height, long)
	b.WriteString("<defs>\n")
	fmt.Fprintf(&b, `<rect id="k" width="%d" height="%d" fill="%s" opacity=".55"/>`+"\n",
		cellWidth, cellHeight, foreground)
	for n, markup := range f.ordered[1:] {
		fmt.Fprintf(&b, `<g id="r%d">%s</g>`+"\n", n+1, markup)
	}
	b.WriteString("</defs>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="%s"/>`+"\n",
		width, height, background)
	b.WriteString(`<g class="film">` + "\n")
	for n, fr := range f.strip {
		f.writeFrame(&b, fr, n*height, width, terminal)
	}
	b.WriteString("</g>\n</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

// writeSheet writes the style sheet with the animation, a step for each cut. Without animation the
// last frame is shown.
func (f *film) writeSheet(b *bytes.Buffer, height int, long time.Duration) {
	b.WriteString("<style>\n" +
		"text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas," +
		"'DejaVu Sans Mono',monospace;" +
		"font-size:15px;white-space:pre;direction:ltr;unicode-bidi:bidi-override}\n")
	for n, declarations := range f.sheet {
		fmt.Fprintf(b, ".s%d{%s}\n", n, declarations)
	}
	last := 0
	b.WriteString("@keyframes film{\n")
	for i, c := range f.cuts {
		percent := 100 * c.at.Seconds() / long.Seconds()
		if i == 0 {
			percent = 0
		}
		last = -c.frame * height
		fmt.Fprintf(b, "%.3f%%{transform:translateY(%dpx)}\n", percent, last)
	}
	fmt.Fprintf(b, "100%%{transform:translateY(%dpx)}}\n", last)
	fmt.Fprintf(b, ".film{animation:film %.2fs step-end infinite}\n", long.Seconds())
	b.WriteString("@media (prefers-reduced-motion:reduce){")
	fmt.Fprintf(b, ".film{animation:none;transform:translateY(%dpx)}}\n", last)
	b.WriteString("</style>\n")
}

// writeFrame draws one frame of the strip, from top on.
func (f *film) writeFrame(b *bytes.Buffer, fr frame, top, width, terminal int) {
	fmt.Fprintf(b, `<g transform="translate(0 %d)"><g transform="translate(%d %d)">`,
		top, margin, margin)
	for row, n := range fr.rows {
		if n > 0 {
			fmt.Fprintf(b, `<use href="#r%d" y="%d"/>`, n, row*cellHeight)
		}
	}
	if fr.cursor.Visible {
		fmt.Fprintf(b, `<use href="#k" x="%d" y="%d"/>`,
			fr.cursor.X*cellWidth, fr.cursor.Y*cellHeight)
	}
	b.WriteString("</g>")
	left, y := fr.bar.left(), terminal+4+baseline
	fmt.Fprintf(b, `<rect y="%d" width="%d" height="%d" fill="%s"/>`,
		terminal, width, cellHeight+8, barColor)
	fmt.Fprintf(b, `<text x="%d" y="%d" fill="%s">%s</text>`, margin, y, barText, escape(left))
	if right := fr.bar.right(f.cols - utf8.RuneCountInString(left) - 3); right != "" {
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="%s" text-anchor="end">%s</text>`,
			width-margin, y, waitColor, escape(right))
	}
	b.WriteString("</g>\n")
}
