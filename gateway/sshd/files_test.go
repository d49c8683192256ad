package sshd

import (
	"strings"
	"testing"
)

// What answers an SFTP client without speaking SFTP is named, once; nothing is said of what does.
func TestGreeting(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pieces []string
		want   string
	}{
		{"SFTP", []string{"\x00\x00\x00\x05\x02\x00\x00\x00\x03", "\x00\x00\x00\x05\x65"}, ""},
		{"in pieces", []string{"\x00", "\x00\x00", "\x05\x02"}, ""},
		{"nothing", nil, ""},
		{"a forced command", []string{"sorry, no shell\n", "and more"}, "sorry, no shell"},
		{"in pieces", []string{"no", "pe, nothing"}, "nope, nothing"},
		{"another message", []string{"\x00\x00\x00\x05\x65\x00"}, "not SFTP"},
		{"too long", []string{"\x7f\x00\x00\x05\x02\x00"}, "not SFTP"},
	} {
		var said []string
		g := &greeting{say: func(line string) { said = append(said, line) }}
		for _, p := range tt.pieces {
			if n, err := g.Write([]byte(p)); n != len(p) || err != nil {
				t.Errorf("%s: Write = %d, %v", tt.name, n, err)
			}
		}
		if got := strings.Join(said, "|"); tt.want == "" && got != "" || !strings.Contains(got, tt.want) || len(said) > 1 {
			t.Errorf("%s: said %q, want %q", tt.name, got, tt.want)
		}
	}
}
