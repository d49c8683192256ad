package main

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadBuild(t *testing.T) {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	checkout := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"},
		}}
	for _, tt := range []struct {
		name                  string
		version, commit, date string // by the linker
		info                  *debug.BuildInfo
		want                  buildFacts
	}{
		{"make build", "1.2.3", "def", "2026-02-03T04:05:06Z", checkout,
			buildFacts{Version: "1.2.3", Commit: "def", Date: "2026-02-03T04:05:06Z"}},
		{"go build in a checkout", "", "", "", checkout,
			buildFacts{Version: "(devel)", Commit: "abc-dirty", Date: "2026-01-02T03:04:05Z"}},
		{"go install of a release", "", "", "",
			&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}},
			buildFacts{Version: "1.2.3", Commit: unknown, Date: unknown}},
		{"nothing recorded", "", "", "", nil,
			buildFacts{Version: unknown, Commit: unknown, Date: unknown}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			defer func(v, c, d string) { version, commit, date = v, c, d }(version, commit, date)
			version, commit, date = tt.version, tt.commit, tt.date
			tt.want.Go, tt.want.Platform = runtime.Version(), platform
			got := readBuild(tt.info, tt.info != nil)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPrintVersion(t *testing.T) {
	for daemon, want := range map[*endpoint]string{nil: "none answers",
		{Version: "1.2.3", Commit: "abc"}: "1.2.3", {Version: "0.0.9"}: "0.0.9, commit unknown",
		{Version: "1.2.3", Commit: "def"}: "1.2.3, commit def"} {
		var out strings.Builder
		printVersion(&out, buildFacts{"1.2.3", "abc", "2026-01-02T03:04:05Z", "go1.99",
			"linux/amd64"}, daemon)
		want = `sandboxd 1.2.3 linux/amd64
  commit   abc
  date     2026-01-02T03:04:05Z
  go       go1.99
  daemon   ` + want + "\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
}
