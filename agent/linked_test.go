package agent

import (
	"net/url"
	"strings"
	"testing"
)

func TestLinkedPath(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"sandbox:/mnt/data/x.csv", "/mnt/data/x.csv"},
		{"sandbox:/mnt/data/my%20plot.png", "/mnt/data/my plot.png"},
		{"sandbox:/mnt/data/my plot.png", "/mnt/data/my plot.png"},
		{"sandbox:/gr%C3%BC%c3%9fe", "/grüße"},
		{"sandbox:///mnt/data/x", "/mnt/data/x"},
		{"sandbox://mnt/data/x", "/mnt/data/x"},
		{"sandbox:/", "/"},
		{"sandbox:/100%", "/100%"},
		{"sandbox:/100%25", "/100%"},
		{"sandbox:/50% of%2", "/50% of%2"},
		{"sandbox:/%%41%4", "/%A%4"},
		{"sandbox:/a%2Fb", "/a/b"},
		{"sandbox:/a?b#c", "/a?b#c"},
		{"sandbox:/mnt/../etc", "/mnt/../etc"},
		{"sandbox:/a%00", "/a\x00"}, // opening it is an error
	} {
		if got, ok := LinkedPath(tt.in); got != tt.want || !ok {
			t.Errorf("%q: %q, %v, want %q", tt.in, got, ok, tt.want)
		}
	}
	for _, s := range []string{"", "/mnt/data/x", "sandbox:", "sandbox:x", "Sandbox:/x",
		" sandbox:/x", "sandbox/x", "web:/x"} {
		if got, ok := LinkedPath(s); ok || got != "" {
			t.Errorf("%q: %q, %v, which is no link", s, got, ok)
		}
	}
}

// A path that is written as a link is returned unchanged. Other text is not a link.
func FuzzLinkedPath(f *testing.F) {
	f.Add("/mnt/data/my plot%.png")
	f.Add("sandbox:/%2f%")
	f.Fuzz(func(t *testing.T, s string) {
		path := "/" + strings.TrimLeft(s, "/")
		if got, ok := LinkedPath("sandbox:/" +
			strings.ReplaceAll(url.PathEscape(path[1:]), "%2F", "/")); got != path ||
			!ok {
			t.Errorf("%q: %q, %v", path, got, ok)
		}
		got, ok := LinkedPath(s)
		if ok != strings.HasPrefix(s, "sandbox:/") ||
			ok && (got == "" || got[0] != '/' || len(got) > len(s)) {
			t.Errorf("%q: %q, %v", s, got, ok)
		}
	})
}
