package screen

import "strings"

// charset is a 7-bit character set for G0 to G3. Its value is the final byte of the sequence that
// selects it.
type charset byte

const (
	charsetASCII charset = 0
	charsetLines charset = '0' // DEC special graphics
)

// lineDrawing has the DEC special graphics for '`' to '~'.
var lineDrawing = [...]rune{
	'◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼', '⎺', '⎻', '─', '⎼',
	'⎽', '├', '┤', '┴', '┬',
	'│', '≤', '≥', 'π', '≠', '£', '·',
}

// nationalASCII lists the characters that national sets replace, in the order of national's
// results.
const nationalASCII = "#@[\\]^_`{|}~"

// national returns the replacements for nationalASCII in a national set of the DEC terminals. It
// returns "" for a set without replacements.
func (c charset) national() string {
	switch c {
	case 'A': // British
		return "£@[\\]^_`{|}~"
	case '4': // Dutch
		return "£¾i½|^_`¨f¼´"
	case 'C', '5': // Finnish
		return "#@ÄÖÅÜ_éäöåü"
	case 'R': // French
		return "£à°ç§^_`éùè¨"
	case 'Q': // French Canadian
		return "#àâçêî_ôéùèû"
	case 'K': // German
		return "#§ÄÖÜ^_`äöüß"
	case 'Y': // Italian
		return "£§°çé^_ùàòèì"
	case 'E', '6': // Norwegian and Danish
		return "#ÄÆØÅÜ_äæøåü"
	case 'Z': // Spanish
		return "£§¡Ñ¿^_`°ñç~"
	case 'H', '7': // Swedish
		return "#ÉÄÖÅÜ_éäöåü"
	case '=': // Swiss
		return "ùàéçêîèôäöüû"
	}
	return ""
}

// translate maps an ASCII character to the character set.
func (c charset) translate(r rune) rune {
	if c == charsetASCII {
		return r
	}
	if c == charsetLines {
		if r >= '`' && r <= '~' {
			return lineDrawing[r-'`']
		}
		return r
	}
	i := strings.IndexByte(nationalASCII, byte(r))
	for _, replacement := range c.national() {
		if i == 0 {
			return replacement
		}
		i--
	}
	return r
}
