package screen

import "strconv"

// sgr executes SGR, which changes the pen.
func (s *Screen) sgr() {
	ps := &s.parser
	st := s.pen
	if ps.nparams == 0 {
		st = Style{}
	}
	for i := 0; i < ps.nparams; {
		end := i + 1 // end of the parameter with its sub-parameters
		for end < ps.nparams && ps.sub[end] {
			end++
		}
		switch n := ps.params[i]; n {
		case 38, 48, 58:
			c, next, ok := colorParam(ps.params[:ps.nparams], i, end)
			if ok {
				switch n {
				case 38:
					st.Fg = c
				case 48:
					st.Bg = c
				case 58:
					st.UnderlineColor = c
				}
			}
			end = next
		case 4:
			st.Underline = SingleUnderline
			if end > i+1 && ps.params[i+1] <= int(DashedUnderline) {
				st.Underline = Underline(ps.params[i+1])
			}
		default:
			st.set(n)
		}
		i = end
	}
	if st != s.pen {
		s.setPen(st)
	}
}

// colorParam parses the color that begins at params[i], in the colon form if end is greater than
// i+1. It returns the index of the next parameter. Missing components are 0. Of a component larger
// than a byte, the lowest byte counts.
func colorParam(params []int, i, end int) (c Color, next int, ok bool) {
	args := params[i+1 : end]
	next = end
	switch colons := len(args) > 0; {
	case !colons:
		args = params[end:]
		n := 5 // number of parameters to skip if it is no color
		if len(args) > 0 {
			switch args[0] {
			case 2:
				n = 4
			case 5:
				n = 2
			case 0:
				n = 6
			}
		}
		args = args[:min(n, len(args))]
		next += len(args)
	case args[0] == 2 && len(args) >= 5:
		args = append([]int{2}, args[2:5]...) // 38:2:color space:r:g:b
	}
	if len(args) == 0 {
		return 0, next, false
	}
	var v [4]int
	copy(v[:], args)
	switch v[0] {
	case 5:
		return Indexed(uint8(v[1])), next, true
	case 2:
		return RGB(uint8(v[1]), uint8(v[2]), uint8(v[3])), next, true
	}
	return 0, next, false
}

// set applies one SGR parameter other than a color with arguments or an underline.
func (st *Style) set(n int) {
	switch {
	case n >= 30 && n <= 37:
		st.Fg = Indexed(uint8(n - 30))
		return
	case n >= 40 && n <= 47:
		st.Bg = Indexed(uint8(n - 40))
		return
	case n >= 90 && n <= 97:
		st.Fg = Indexed(uint8(n - 90 + 8))
		return
	case n >= 100 && n <= 107:
		st.Bg = Indexed(uint8(n - 100 + 8))
		return
	}
	switch n {
	case 0:
		*st = Style{}
	case 1:
		st.Attr |= Bold
	case 2:
		st.Attr |= Faint
	case 3:
		st.Attr |= Italic
	case 5, 6:
		st.Attr |= Blink
	case 7:
		st.Attr |= Inverse
	case 8:
		st.Attr |= Conceal
	case 9:
		st.Attr |= Strike
	case 21:
		st.Underline = DoubleUnderline
	case 22:
		st.Attr &^= Bold | Faint
	case 23:
		st.Attr &^= Italic
	case 24:
		st.Underline = NoUnderline
	case 25:
		st.Attr &^= Blink
	case 27:
		st.Attr &^= Inverse
	case 28:
		st.Attr &^= Conceal
	case 29:
		st.Attr &^= Strike
	case 39:
		st.Fg = 0
	case 49:
		st.Bg = 0
	case 53:
		st.Attr |= Overline
	case 55:
		st.Attr &^= Overline
	case 59:
		st.UnderlineColor = 0
	}
}

// attrSGR lists the parameters that set the attributes, by bit.
var attrSGR = [8]string{"1", "2", "3", "5", "7", "8", "9", "53"}

// AppendSGR appends the shortest SGR sequence that changes a pen from style from to st. It appends
// nothing if they are equal.
func (st Style) AppendSGR(dst []byte, from Style) []byte {
	if st == from {
		return dst
	}
	dst = append(dst, "\x1b["...)
	if st == (Style{}) {
		return append(dst, 'm')
	}
	return append(st.appendParams(dst, from), 'm')
}

// appendParams appends the parameters of AppendSGR.
func (st Style) appendParams(dst []byte, from Style) []byte {
	start := len(dst)
	param := func(p string) {
		if len(dst) > start {
			dst = append(dst, ';')
		}
		dst = append(dst, p...)
	}
	// Resetting single attributes is longer than starting with 0, and 22 would reset two.
	if from.Attr&^st.Attr != 0 || from.Underline != 0 && st.Underline == 0 ||
		from.UnderlineColor != 0 && st.UnderlineColor == 0 {
		param("0")
		from = Style{}
	}
	for i, p := range attrSGR {
		if st.Attr&^from.Attr&(1<<i) != 0 {
			param(p)
		}
	}
	if st.Underline != from.Underline {
		switch st.Underline {
		case SingleUnderline:
			param("4")
		case DoubleUnderline:
			param("21")
		default:
			param("4:" + strconv.Itoa(int(st.Underline)))
		}
	}
	if st.Fg != from.Fg {
		param(st.Fg.params(30, 90))
	}
	if st.Bg != from.Bg {
		param(st.Bg.params(40, 100))
	}
	if st.UnderlineColor != from.UnderlineColor {
		param(st.UnderlineColor.params(50, 0))
	}
	return dst
}

// params returns the parameters that select c. base and bright are the codes of colors 0 and 8; a
// bright of 0 means that there is no such code.
func (c Color) params(base, bright int) string {
	if c == 0 {
		return strconv.Itoa(base + 9)
	}
	if r, g, b, ok := c.RGB(); ok {
		return strconv.Itoa(base+8) + ";2;" + strconv.Itoa(int(r)) + ";" + strconv.Itoa(int(g)) +
			";" + strconv.Itoa(int(b))
	}
	i, _ := c.Index()
	switch {
	case bright != 0 && i < 8:
		return strconv.Itoa(base + int(i))
	case bright != 0 && i < 16:
		return strconv.Itoa(bright + int(i) - 8)
	}
	return strconv.Itoa(base+8) + ";5;" + strconv.Itoa(int(i))
}
