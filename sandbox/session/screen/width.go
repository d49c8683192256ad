package screen

//go:generate go run generate.go

type runeRange struct{ first, last rune }

func in(table []runeRange, r rune) bool {
	lo, hi := 0, len(table)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch {
		case r < table[mid].first:
			hi = mid
		case r > table[mid].last:
			lo = mid + 1
		default:
			return true
		}
	}
	return false
}

// runeWidth returns the number of columns of a printable rune: 0, 1 or 2.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case r >= 0x4e00 && r <= 0x9fff, r >= 0xac00 && r <= 0xd7a3: // most of the wide runes
		return 2
	case in(zeroRunes, r):
		return 0
	case in(wideRunes, r):
		return 2
	}
	return 1
}

const (
	zwnj               = 0x200c
	zwj                = 0x200d
	lineSeparator      = 0x2028
	paragraphSeparator = 0x2029
)

// invisible reports whether r is a zero-width rune that no terminal shows: directions, invisible
// operators, annotation marks. They are dropped, so that a person never sees text in another order
// than the program printed.
func invisible(r rune) bool {
	switch {
	case r == zwnj, r == zwj:
		return false
	case r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f:
		return true
	case r == 0x61c, r == 0x180e, r == 0xfeff, r >= 0xfff9 && r <= 0xfffb:
		return true
	case r >= 0xe0000 && r < 0xe0020, r >= 0xe0080 && r < 0xe0100, r > 0xe01ef && r <= 0xe0fff:
		return true
	case r >= 0x1d173 && r <= 0x1d17a, r >= 0x1bca0 && r <= 0x1bca3, r >= 0x13430 && r <= 0x1345f:
		return true
	}
	return false
}
