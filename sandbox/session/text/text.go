// Package text turns what a program printed on a terminal into what a person would read: progress
// lines that were redrawn collapse to their last form, escape sequences go, backspaces are applied,
// invalid UTF-8 is replaced, what turns the direction of text is written out, and of what is too
// long the head and the tail are kept.
//
// It is for results and for logs that people and language models read. It knows no size and no
// wrapping, and shows nothing of the alternate screen: for what a terminal shows there is the
// screen model, for exact bytes the log.
package text

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Render returns p as text of at most limit bytes, and whether something was left out. A negative
// limit is none. The line that says how much was left out comes on top of the limit.
func Render(p []byte, limit int) (string, bool) {
	w := NewWriter(limit)
	_, _ = w.Write(p) // in memory: it takes everything
	return w.String(), w.Truncated()
}

// Cut shortens s to its head and tail, together at most limit bytes, with a line between them that
// says how many were left out.
func Cut(s string, limit int) (string, bool) {
	if limit < 0 || len(s) <= limit {
		return s, false
	}
	k := newKeeper(limit)
	k.add([]byte(s))
	return k.String(), true
}

// keeper keeps the head and the tail of what is added to it.
type keeper struct {
	limit int // negative: everything
	head  []byte
	tail  []byte // a ring once it is full
	at    int    // where the ring's oldest byte is
	total int
}

func newKeeper(limit int) *keeper { return &keeper{limit: limit} }

func (k *keeper) headLimit() int { return (k.limit + 1) / 2 }

func (k *keeper) add(s []byte) {
	k.total += len(s)
	if k.limit < 0 {
		k.head = append(k.head, s...)
		return
	}
	if room := k.headLimit() - len(k.head); room > 0 {
		n := min(room, len(s))
		k.head = append(k.head, s[:n]...)
		s = s[n:]
	}
	tail := k.limit - k.headLimit()
	if over := len(s) - tail; over > 0 {
		s = s[over:]
	}
	if room := tail - len(k.tail); room > 0 {
		n := min(room, len(s))
		k.tail = append(k.tail, s[:n]...)
		s = s[n:]
	}
	for len(s) > 0 {
		n := copy(k.tail[k.at:], s)
		k.at = (k.at + n) % len(k.tail)
		s = s[n:]
	}
}

func (k *keeper) truncated() bool { return k.total > len(k.head)+len(k.tail) }

// String joins head and tail, cut between two lines where that costs at most a quarter of each,
// else between two characters.
func (k *keeper) String() string {
	if !k.truncated() {
		return string(k.head) + string(k.tail[k.at:]) + string(k.tail[:k.at])
	}
	head, tail := k.head, append(append([]byte(nil), k.tail[k.at:]...), k.tail[:k.at]...)
	if i := strings.LastIndexByte(string(head), '\n'); i >= len(head)*3/4 {
		head = head[:i]
	}
	for cut := 0; cut < utf8.UTFMax && len(head) > 0; cut++ { // a character that was cut in two
		if r, n := utf8.DecodeLastRune(head); r != utf8.RuneError || n != 1 {
			break
		}
		head = head[:len(head)-1]
	}
	if i := strings.IndexByte(string(tail), '\n'); i >= 0 && i < len(tail)/4 {
		tail = tail[i+1:]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n[… %d bytes left out …]\n%s", head, k.total-len(head)-len(tail), tail)
}
