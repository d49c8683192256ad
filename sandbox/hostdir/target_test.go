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
		"/srv/":            "is not a plain path",
		"//srv":            "is not a plain path",
		"/srv/a:b":         "has a colon",
		"/srv/\x1b":        "has a control character",
		"/":                "holds /",
		"/etc":             "cannot be mounted over",
		"/etc/app":         "lies in /etc",
		"/usr/local":       "lies in /usr",
		"/var":             "holds /var",
		"/var/run/x":       "lies in /var/run",
		"/dev/shm":         "lies in /dev",
		"/.sandboxd/x":     "lies in /.sandboxd",
		"/proc/self/fd/10": "lies in /proc",
	} {
		err := CheckTarget(path)
		fine := err == nil
		if fine != (want == "") || !fine && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", path, err, want)
		}
	}
}
