package screen

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// answer sends the answer to a query. No answer contains output of a program. So no program can
// type into its own shell.
func (s *Screen) answer(text string) {
	if s.reply != nil {
		s.reply([]byte(text))
	}
}

// query answers the control sequences that are queries, and ignores unknown ones.
func (s *Screen) query(final byte) {
	ps := &s.parser
	n := s.parser.param(0, 0)
	switch string([]byte{ps.private, ps.inter, final}) {
	case "\x00\x00n", "?\x00n":
		s.statusReport(ps.private, n)
	case "\x00\x00c": // DA1: a VT220 with color
		if n == 0 {
			s.answer("\x1b[?62;22c")
		}
	case ">\x00c": // DA2
		if n == 0 {
			s.answer("\x1b[>1;277;0c")
		}
	case "=\x00c": // DA3
		if n == 0 {
			s.answer("\x1bP!|00000000\x1b\\")
		}
	case ">\x00q": // XTVERSION
		if n == 0 {
			s.answer("\x1bP>|sandboxd\x1b\\")
		}
	case "\x00$p":
		s.answer(fmt.Sprintf("\x1b[%d;%d$y", n, s.modeState(false, n)))
	case "?$p":
		s.answer(fmt.Sprintf("\x1b[?%d;%d$y", n, s.modeState(true, n)))
	case "\x00\x00t": // the size in characters, but never the title
		if n == 18 {
			s.answer(fmt.Sprintf("\x1b[8;%d;%dt", s.rows, s.cols))
		}
	}
}

func (s *Screen) statusReport(private byte, n int) {
	switch {
	case n == 5 && private == 0:
		s.answer("\x1b[0n")
	case n == 6:
		mark := ""
		if private != 0 {
			mark = "?"
		}
		s.answer(fmt.Sprintf("\x1b[%s%d;%dR", mark, s.y+1, min(s.x, s.cols-1)+1))
	}
}

// maxTitle limits titles and the text of notices, in bytes.
const maxTitle = 256

// NoticeKind is a way in which a program calls for attention.
type NoticeKind string

// The kinds of notices.
const (
	NoticeBell     NoticeKind = "bell"
	NoticeText     NoticeKind = "text"     // OSC 9, 99 or 777
	NoticeProgress NoticeKind = "progress" // OSC 9;4
	NoticeTitle    NoticeKind = "title"
)

// Notice is a bell, message, progress or title of a program. Text is printable UTF-8 of at most 256
// bytes.
type Notice struct {
	Kind  NoticeKind
	Text  string
	Count uint64 // number of the screen's notices, including this one
}

func (s *Screen) notify(kind NoticeKind, said string) {
	s.notice = Notice{Kind: kind, Text: said, Count: s.notice.Count + 1}
	if kind == NoticeBell || kind == NoticeText {
		s.call = s.notice
	}
}

// notifies reports whether an OSC 99 with this metadata shows a notification. Others ask whether
// the terminal supports them, close one, or add a picture or buttons (kitty's desktop
// notifications).
func notifies(about []byte) bool {
	for pair := range bytes.SplitSeq(about, []byte(":")) {
		if payload, ok := bytes.CutPrefix(pair, []byte("p=")); ok {
			return string(payload) == "title" || string(payload) == "body"
		}
	}
	return true
}

// osc executes an operating system command.
func (s *Screen) osc(p []byte) {
	code, rest, _ := bytes.Cut(p, []byte(";"))
	n, err := strconv.Atoi(string(code))
	if err != nil {
		return
	}
	switch n {
	case 0, 2:
		s.title = plain(rest)
		s.notify(NoticeTitle, s.title)
	case 9:
		if progress, ok := bytes.CutPrefix(rest, []byte("4;")); ok {
			s.notify(NoticeProgress, plain(progress))
			return
		}
		s.notify(NoticeText, plain(rest))
	case 99:
		about, said, _ := bytes.Cut(rest, []byte(";"))
		if notifies(about) {
			s.notify(NoticeText, plain(said))
		}
	case 777:
		if said, ok := bytes.CutPrefix(rest, []byte("notify;")); ok {
			s.notify(NoticeText, plain(said))
		}
	case 10, 12: // foreground and cursor color
		if string(rest) == "?" {
			s.answer("\x1b]" + strconv.Itoa(n) + ";rgb:d0d0/d0d0/d0d0\x1b\\")
		}
	case 11:
		if string(rest) == "?" {
			s.answer("\x1b]11;rgb:0000/0000/0000\x1b\\")
		}
	case 7501:
		s.report(rest)
	}
}

// dcs answers DECRQSS and XTGETTCAP, and ignores all others.
func (s *Screen) dcs(p []byte) {
	if bytes.HasPrefix(p, []byte("+q")) {
		s.answer("\x1bP0+r\x1b\\") // no capabilities except those of TERM
		return
	}
	what, ok := bytes.CutPrefix(p, []byte("$q"))
	if !ok {
		return
	}
	switch string(what) {
	case "m":
		s.answer("\x1bP1$r" + string(s.pen.appendParams([]byte("0;"), Style{})) + "m\x1b\\")
	case "r":
		s.answer(fmt.Sprintf("\x1bP1$r%d;%dr\x1b\\", s.g.top+1, s.g.bottom+1))
	case " q":
		s.answer(fmt.Sprintf("\x1bP1$r%d q\x1b\\", s.cursor))
	default:
		s.answer("\x1bP0$r\x1b\\")
	}
}

// plain turns text from a program into a title: printable UTF-8 of limited length. It shows
// characters that change the direction of text as their codes.
func plain(p []byte) string {
	var b strings.Builder
	for _, r := range text.Mark(string(p)) {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > maxTitle {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
