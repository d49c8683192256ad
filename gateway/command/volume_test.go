package command

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestParseStorage(t *testing.T) {
	for text, want := range map[string]sandbox.Volume{
		"10g":           {Size: 10 << 30},
		"512m:/home/a":  {Size: 512 << 20, Path: "/home/a"},
		"10g:":          {},
		"./10g:/data":   {},
		"/srv/10g:/srv": {},
		"0:/data":       {},
		"-1g":           {},
		"data:/data":    {},
		"":              {},
	} {
		got, ok := ParseStorage(text)
		if ok != (want.Size > 0) || ok && got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
}

func TestTwoStorages(t *testing.T) {
	f := newFlags{volumes: []string{"1g", "2g:/data"}}
	if _, err := f.read(nil); err == nil {
		t.Error("no error")
	}
	f.volumes = []string{"1g:/data", "/srv:/srv"}
	spec, err := f.read(nil)
	if err != nil || spec.Volume.Path != "/data" || len(spec.Mounts) != 1 {
		t.Errorf("%+v, %v", spec, err)
	}
}
