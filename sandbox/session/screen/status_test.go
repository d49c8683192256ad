package screen

import "testing"

func TestStatus(t *testing.T) {
	tests := []struct {
		in    string
		want  Status
		count uint64
	}{
		{"", "", 0},
		{"\x1b]7501;state=idle:app=codex\x1b\\", StatusIdle, 1},
		{"\x1b]7501;state=idle\a\x1b]7501;app=x:state=working:progress=5:msg=SGVsbG8=\a", StatusWorking, 2},
		{"\x1b]7501;state=blocked:app=x:kind=permission\a", StatusBlocked, 1},
		{"\x1b]7501;state=done\a\x1b]7501;state=done\a", StatusDone, 2},
		{"\x1b]7501;state=error\a\x1b]7501;state=clear\a", "", 2},
		{"\x1b]7501;state=working\a\x1b]7501;state=blocked:id=a/b\a\x1b]7501;id=a:state=clear\a", StatusWorking, 1},
		{"\x1b]7501;state=working\a\x1b]7501;state=dreaming\a\x1b]7501;state\a\x1b]7501;\a\x1b]7501\a", StatusWorking, 1},
		{"\x1b]7501;state=working\a\x1b]7501;?\a", StatusWorking, 1},
		{"\x1b]7501;state=working\a\x1bc", "", 2},
	}
	for _, tt := range tests {
		s := draw(t, tt.in)
		if got, count := s.Status(); got != tt.want || count != tt.count {
			t.Errorf("%q: %q, %d; want %q, %d", tt.in, got, count, tt.want, tt.count)
		}
	}
}

func TestStatusQuery(t *testing.T) {
	for _, in := range []string{"\x1b]7501;?\a", "\x1b]7501;?:more=1\x1b\\"} {
		var got string
		s := New(Options{Reply: func(p []byte) { got += string(p) }})
		if _, err := s.Write([]byte(in)); err != nil {
			t.Fatal(err)
		}
		if want := "\x1b]7501;?\x1b\\"; got != want {
			t.Errorf("%q: answer %q, want %q", in, got, want)
		}
	}
}
