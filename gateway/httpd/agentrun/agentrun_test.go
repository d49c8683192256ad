package agentrun

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// Imports of modules that may be missing need a check by Python; others do not.
func TestMayImport(t *testing.T) {
	for code, want := range map[string]bool{
		"print(1)":                             false,
		"important = 1":                        false,
		"import math":                          false,
		"import os, sys\nfrom re import match": false,
		"  import json  # why\r\n":             false,
		"from os.path import join, split":      false,
		"import xml.etree.ElementTree":         false,
		"import numpy":                         true,
		"import math, numpy":                   true,
		"import numpy as np":                   true,
		"from numpy import *":                  true,
		"from . import x":                      true,
		"import math; import numpy":            true,
		"if x: import numpy":                   true,
		"import \\\n numpy":                    true,
		"from os import (\n path)":             true,
		"__import__('numpy')":                  false, // as in AgentRun
		"s = '''\nimport numpy\n'''":           true,
		"import math\nimport\tnumpy":           true,
	} {
		if got := mayImport(code); got != want {
			t.Errorf("%q: %v", code, got)
		}
	}
}

// The whitelist accepts package names and module names, normalised as pip does.
func TestAllowed(t *testing.T) {
	o := Options{DependenciesWhitelist: []string{"Scikit_Learn", "PIL"}}
	for _, c := range []struct {
		names []string
		want  bool
	}{{[]string{"sklearn", "scikit-learn"}, true}, {[]string{"PIL", "pillow"}, true},
		{[]string{"numpy"}, false}, {[]string{"pil-low"}, false}} {
		if got := o.allowed(c.names...); got != c.want {
			t.Errorf("%v: %v", c.names, got)
		}
	}
	if (&Options{}).allowed("six") {
		t.Error("an empty list allows something")
	}
	for _, name := range []string{"", "-r", "a b", "x;y", "--index-url=x", "a\n", "git+https://x",
		"../x", strings.Repeat("x", 101), "x-"} {
		if IsPackage(name) {
			t.Errorf("%q is taken for a package", name)
		}
	}
}

func TestCheck(t *testing.T) {
	if o := Defaults(); o.Check() != nil {
		t.Errorf("the defaults: %v", o.Check())
	}
	for want, edit := range map[string]func(*Options){
		"memswap_limit":       func(o *Options) { o.MemswapLimit = o.MemoryLimit - 1 },
		"cpu_quota":           func(o *Options) { o.CPUQuota = 1 },
		"timeout":             func(o *Options) { o.Timeout = 2 * time.Hour },
		"memory":              func(o *Options) { o.MemoryLimit = 1 << 20 },
		"whitelist":           func(o *Options) { o.DependenciesWhitelist, o.CachedDependencies = nil, []string{"six"} },
		"cached_dependencies": func(o *Options) { o.CachedDependencies = []string{"-r/etc/passwd"} },
		"parallel":            func(o *Options) { o.Parallel = 0 },
	} {
		o := Defaults()
		edit(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Of long output, the beginning and the end are kept, and a line says how much was dropped.
func TestOutput(t *testing.T) {
	for _, piece := range []int{1, 3, 1000} {
		o := &output{head: 4, tail: 4}
		text := "abcd" + strings.Repeat("x", 100) + "wxyz"
		for at := 0; at < len(text); at += piece {
			o.Write([]byte(text[at:min(len(text), at+piece)]))
		}
		if got := o.String(); got != "abcd\n[output truncated: 100 bytes dropped]\nwxyz" ||
			!o.cut() {
			t.Errorf("pieces of %d: %q", piece, got)
		}
	}
	o := &output{head: 4, tail: 4}
	o.Write([]byte("abcdwxyz"))
	if got := o.String(); got != "abcdwxyz" || o.cut() {
		t.Errorf("what fits: %q", got)
	}
	o = &output{head: 100}
	o.Write([]byte("\xff\xc3"))
	if got := o.String(); got != "\uFFFD" {
		t.Errorf("no UTF-8: %q", got)
	}
}

// Artifacts are available to the caller only, by name, until they expire or exceed the limit.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "artifacts")
	if err := os.MkdirAll(filepath.Join(dir, "left"), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := newFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if _, err := os.Stat(filepath.Join(dir, "left")); err == nil {
		t.Error("what a former daemon left is still there")
	}
	now := time.Now()
	add := func(id string, size int64) {
		if err := f.root.Mkdir(id, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := f.root.WriteFile(filepath.Join(id, "0"), []byte(id), 0o600); err != nil {
			t.Fatal(err)
		}
		f.keep(&kept{id: id, owner: "alice", names: []string{"../x"}, size: size,
			until: now.Add(keepFiles)}, nil)
	}
	has := func(owner, id, name string) bool {
		file, err := f.open(owner, id, name)
		if err == nil {
			file.Close()
		}
		return err == nil
	}
	add("one", 1)
	if !has("alice", "one", "../x") || has("bob", "one", "../x") || has("alice", "one", "0") ||
		has("alice", "one", "x") || has("alice", ".", "one/0") || has("alice", "two", "../x") {
		t.Error("the file is not had by its name, or by another")
	}
	add("two", maxKept)
	if has("alice", "one", "../x") || !has("alice", "two", "../x") {
		t.Error("the oldest did not go when there was no room")
	}
	f.trim(now.Add(keepFiles + 1))
	if has("alice", "two", "../x") {
		t.Error("an expired file is still available")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// At the limit, the oldest files of the heaviest principal are deleted first.
func TestFilesOfOthersStay(t *testing.T) {
	f, err := newFiles(t.TempDir() + "/artifacts")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	until := time.Now().Add(time.Hour)
	f.keep(&kept{id: "b0", owner: "bob", names: []string{"x"}, size: 1 << 20, until: until}, nil)
	for i := range 12 {
		f.keep(&kept{id: "a" + strconv.Itoa(i), owner: "alice", names: []string{"x"},
			size: maxCallBytes, until: until}, nil)
	}
	var left []string
	for _, k := range f.kept {
		left = append(left, k.id)
	}
	if got, want := strings.Join(left, " "), "b0 a5 a6 a7 a8 a9 a10 a11"; got != want ||
		f.size > maxKept {
		t.Errorf("%s are left, with %d bytes; want %s", got, f.size, want)
	}
}

// The exit code is the one that the shell reports at the end of the code: the shell may be killed
// after that, with processes that hold the output open.
func TestExitCode(t *testing.T) {
	killed := error(&connect.ExitError{Status: 137, Signal: "KILL"})
	for _, tt := range []struct {
		said string // on standard error
		err  error  // of the command
		code int
		ok   bool
	}{
		{"files\nend 0\n", nil, 0, true},
		{"end 0\n", killed, 0, true},
		{"files\nend 3\n", killed, 3, true},
		{"end 137\n", &connect.ExitError{Status: 137}, 137, true},
		{"", killed, 137, true}, // at the memory limit, with the shell
		{"end 1", killed, 137, true},
		{"none\n", &connect.ExitError{Status: 1}, 1, true},
		{"", errors.New("the channel failed"), 0, false},
	} {
		m := &marks{end: make(chan struct{})}
		for i := range len(tt.said) { // it arrives in any parts
			_, _ = m.Write([]byte{tt.said[i]})
		}
		if code, ok := m.exit(tt.err); code != tt.code || ok != tt.ok {
			t.Errorf("%q, %v: got %d, %v; want %d, %v", tt.said, tt.err, code, ok, tt.code, tt.ok)
		}
	}
}
