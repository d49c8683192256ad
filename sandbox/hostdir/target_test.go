package hostdir

import (
	"strings"
	"testing"
)

func TestCheckTarget(t *testing.T) {
	for path, want := range map[string]string{
		"/srv/app":         "",
		"/work":            "",
		"/home/app/x":      "",
		"/etcetera":        "",
		"":                 "has no name",
		"app":              "is not absolute",
		"/srv/../etc":      "has .. in it",
		"/srv/":            "is not a clean path",
		"//srv":            "is not a clean path",
		"/srv/a:b":         "has a colon",
		"/srv/\x1b":        "has a control character",
		"/":                "contains /",
		"/etc":             "cannot be mounted over",
		"/etc/app":         "is in /etc",
		"/usr/local":       "is in /usr",
		"/var":             "contains /var",
		"/var/run/x":       "is in /var/run",
		"/dev/shm":         "is in /dev",
		"/.sandboxd/x":     "is in /.sandboxd",
		"/proc/self/fd/10": "is in /proc",
	} {
		err := CheckTarget(path)
		fine := err == nil
		if fine != (want == "") || !fine && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", path, err, want)
		}
	}
}
