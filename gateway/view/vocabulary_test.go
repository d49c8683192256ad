package view

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// vocabulary is every control sequence that a person's terminal may get, according to the package's
// documentation.
var vocabulary = map[string]*regexp.Regexp{
	"CR":           regexp.MustCompile(`^\r`),
	"LF":           regexp.MustCompile(`^\n`),
	"CSI n H":      regexp.MustCompile(`^\x1b\[(\d+)?H`),
	"CSI n ; n H":  regexp.MustCompile(`^\x1b\[\d+;\d+H`),
	"CSI n C":      regexp.MustCompile(`^\x1b\[\d*C`),
	"CSI n SP q":   regexp.MustCompile(`^\x1b\[[0-6] q`),
	"CSI ? 25 h":   regexp.MustCompile(`^\x1b\[\?25h`),
	"CSI ? 25 l":   regexp.MustCompile(`^\x1b\[\?25l`),
	"CSI ... m":    regexp.MustCompile(`^\x1b\[[\d;:]*m`),
	"CSI K":        regexp.MustCompile(`^\x1b\[K`),
	"CSI 2 X":      regexp.MustCompile(`^\x1b\[2X`),
	"CSI r":        regexp.MustCompile(`^\x1b\[r`),
	"CSI n ; n r":  regexp.MustCompile(`^\x1b\[\d+;\d+r`),
	"CSI n L":      regexp.MustCompile(`^\x1b\[\d*L`),
	"CSI n M":      regexp.MustCompile(`^\x1b\[\d*M`),
	"CSI ? 7 h":    regexp.MustCompile(`^\x1b\[\?7h`),
	"CSI ? 7 l":    regexp.MustCompile(`^\x1b\[\?7l`),
	"CSI ? 1049 h": regexp.MustCompile(`^\x1b\[\?1049h`),
	"CSI ? 1049 l": regexp.MustCompile(`^\x1b\[\?1049l`),
	"CSI ? 2004 h": regexp.MustCompile(`^\x1b\[\?2004h`),
	"CSI ? 2004 l": regexp.MustCompile(`^\x1b\[\?2004l`),
	"CSI ? n h":    regexp.MustCompile(`^\x1b\[\?(1|9|1000|1002|1003|1004|1005|1006|1015)h`),
	"CSI ? n l":    regexp.MustCompile(`^\x1b\[\?(1|9|1000|1002|1003|1004|1005|1006|1015)l`),
	"ESC =":        regexp.MustCompile(`^\x1b=`),
	"ESC >":        regexp.MustCompile(`^\x1b>`),
}

// The tests use the list of the package's documentation, and every sequence in it is used.
func TestVocabulary(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for line := range strings.Lines(string(doc)) {
		if words, ok := strings.CutPrefix(line, "//\t"); ok {
			forms, _, _ := strings.Cut(words, "   ")
			forms = strings.NewReplacer(" CSI", "\nCSI", " ESC", "\nESC", " LF", "\nLF").Replace(
				forms)
			for form := range strings.SplitSeq(forms, "\n") {
				listed[strings.TrimSpace(form)] = true
			}
		}
	}
	for form := range vocabulary {
		if !listed[form] {
			t.Errorf("%s is not in the package's documentation", form)
		}
	}
	for form := range listed {
		if vocabulary[form] == nil {
			t.Errorf("%s is in the package's documentation, and no test allows it", form)
		}
	}
	var all []byte
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := screen.New(screen.Options{Cols: 30, Rows: 8, Scrollback: 100})
		v := NewRenderer(20+r.IntN(20), 5+r.IntN(8))
		all = append(all, v.Enter()...)
		for step := range 10 {
			s.Write([]byte(stream(r, 20, 30, 8) + strings.Repeat("\n", r.IntN(3))))
			all = append(all, v.Draw(Frame{Screen: s, Driver: step%2 == 0})...)
		}
		all = append(all, v.Leave()...)
	}
	used, err := sequences(all)
	if err != nil {
		t.Fatal(err)
	}
	for form := range vocabulary {
		if used[form] == 0 {
			t.Errorf("%s is on the list and never used", form)
		}
	}
	t.Logf("%d bytes: %v", len(all), used)
}

// sequences counts the sequences in p, and returns the first part of it that must never reach a
// person's terminal.
func sequences(p []byte) (map[string]int, error) {
	used := make(map[string]int)
next:
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == utf8.RuneError && size == 1 {
			return used, fmt.Errorf("invalid UTF-8 %q", p[:1])
		}
		if printable(r) {
			p = p[size:]
			continue
		}
		end := 1
		for p[0] == 0x1b && end < len(p) &&
			(p[end] == '[' || p[end] >= 0x20 && p[end] < 0x40 && p[1] == '[') {
			end++
		}
		if p[0] == 0x1b {
			end = min(end+1, len(p))
		}
		for form, v := range vocabulary {
			if last := form[len(form)-1]; p[0] == 0x1b && last != p[end-1] {
				continue
			}
			if len(v.Find(p[:end])) == end {
				used[form]++
				p = p[end:]
				continue next
			}
		}
		return used, fmt.Errorf("not on the list: %q", p[:min(len(p), 20)])
	}
	return used, nil
}

// allowed returns the first part of p that must never reach a person's terminal.
func allowed(p []byte) error {
	_, err := sequences(p)
	return err
}

// printable reports whether a character may be shown: no controls, and only those invisible
// characters that hold a cluster together.
func printable(r rune) bool {
	switch {
	case unicode.IsControl(r):
		return false
	case strings.ContainsRune("\u200c\u200d", r), r >= 0xe0020 && r <= 0xe007f, r >= 0xe0100 &&
		r <= 0xe01ef, r == 0xad:
		return true
	}
	return !unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}
