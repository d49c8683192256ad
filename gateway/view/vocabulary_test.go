package view

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// vocabulary is every control sequence that a person's terminal may get, by what it is for.
var vocabulary = []*regexp.Regexp{
	regexp.MustCompile(`^\x1b\[(\d+(;\d+)?)?H`), // cursor movement
	regexp.MustCompile(`^\x1b\[\d*C`),
	regexp.MustCompile(`^\r`),
	regexp.MustCompile(`^\x1b\[[0-6] q`), // its shape
	regexp.MustCompile(`^\x1b\[\?25[hl]`),
	regexp.MustCompile(`^\x1b\[[\d;:]*m`),                           // SGR
	regexp.MustCompile(`^\x1b\[K`),                                  // erasing
	regexp.MustCompile(`^\x1b\[2[JX]`),                              //
	regexp.MustCompile(`^\x1b\[(\d+;\d+)?r`),                        // scrolling in a region
	regexp.MustCompile(`^\x1b\[\d*[ST]`),                            //
	regexp.MustCompile(`^\x1b\[\?(1049|7)[hl]`),                     // entering and leaving
	regexp.MustCompile(`^\x1b\[\?(1|9|100[0234569]|1015|2004)[hl]`), // the driver's input modes
	regexp.MustCompile(`^\x1b[=>]`),                                 //
}

// allowed reports the first thing in p that must never reach a person's terminal.
func allowed(p []byte) error {
next:
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == utf8.RuneError && size == 1 {
			return fmt.Errorf("invalid UTF-8 %q", p[:1])
		}
		if printable(r) {
			p = p[size:]
			continue
		}
		for _, v := range vocabulary {
			if n := len(v.Find(p)); n > 0 {
				p = p[n:]
				continue next
			}
		}
		return fmt.Errorf("not on the list: %q", p[:min(len(p), 20)])
	}
	return nil
}

// printable is what may be shown: no controls, and of the invisible characters only those that hold a cluster together.
func printable(r rune) bool {
	switch {
	case unicode.IsControl(r):
		return false
	case strings.ContainsRune("\u200c\u200d", r), r >= 0xe0020 && r <= 0xe007f, r >= 0xe0100 && r <= 0xe01ef, r == 0xad:
		return true
	}
	return !unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
