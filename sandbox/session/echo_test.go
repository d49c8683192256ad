package session

import "testing"

func TestEchoOutput(t *testing.T) {
	bash := "\x1b[7337~\x15 {x&&:;}\n"
	for _, tt := range []struct{ name, typed, echo, want string }{
		{"bash", bash, " {x&&:;}\r\n\x1b[?2004l\r", "\x1b[?2004l"},
		{"nothing", bash, "", ""},
		{"wrapped", bash, " {x&&\r \r:;}\r\n", ""},
		{"redrawn", bash, "\x1b[3D\x1b[K {x&&:;}\r\n", ""},
		{"a line before", bash, "job\r\n {x&&:;}\r\n", "job\r\n"},
		{"a line between", bash, " {x&job\r\n&:;}\r\n", "job\r\n"},
		{"bell", bash, "\a {x&&:;}\r\n", ""},
		{"canonical", "\x05\x15. /f\n", "^E\b \b\b \b. /f\r\n", ""},
		{"canonical, with a line", "\x05\x15. /f\n", "^E\b \b\b \bjob\r\n. /f\r\n", "job\r\n"},
		{"cut off", bash, " {x&\x1b[", ""},
	} {
		e := &echo{typed: []byte(tt.typed), bytes: []byte(tt.echo)}
		got := string(e.output())
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
