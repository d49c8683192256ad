package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
)

func TestLineOffset(t *testing.T) {
	long := strings.Repeat("x", logBlock)
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"", 5, ""},
		{"a\nb\nc\n", 0, ""},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"\n\n\n", 2, "\n\n"},
		{"a\n" + long + "\nb\n", 2, long + "\nb\n"},
		{"a\n" + long + "\n" + long + "\n", 3, "a\n" + long + "\n" + long + "\n"},
	} {
		at, err := lineOffset(strings.NewReader(tt.text), int64(len(tt.text)), tt.n)
		if err != nil || tt.text[at:] != tt.want {
			t.Errorf("last %d lines of %.20q: got offset %d, %v, want %.20q",
				tt.n, tt.text, at, err, tt.want)
		}
	}
}

// lockedBuffer is a buffer for one writer and one reader.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestCopyLogFollows goes on in the new file after a rotation, and from the start after a
// truncation.
func TestCopyLogFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.log")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	add("one\ntwo\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out lockedBuffer
	ended := make(chan error, 1)
	go func() { ended <- copyLog(ctx, &out, path, 1, true) }()
	want := ""
	await := func(more string) {
		t.Helper()
		want += more
		for began := time.Now(); out.String() != want; {
			time.Sleep(time.Millisecond) //nolint:forbidigo // the file is polled
			if time.Since(began) > time.Minute {
				t.Fatalf("got %q, want %q", out.String(), want)
			}
		}
	}
	await("two\n")
	add("three\n")
	await("three\n")
	add("four\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add("five\n")
	await("four\nfive\n")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	add("six\n")
	await("six\n")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLogFileRotates runs this test again as the process whose output is the log.
func TestLogFileRotates(t *testing.T) {
	if dir := os.Getenv("TEST_LOG_DIR"); dir != "" {
		writeLog(dir)
		return
	}
	dir := t.TempDir()
	runWithLog(t, dir)
	current, err := os.ReadFile(logFilePath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(current), "line 4\nraw 4\nline 5\nraw 5\n") {
		t.Errorf("the current file ends with %.100q", current[max(0, len(current)-100):])
	}
	rotated, err := filepath.Glob(dir + "/daemon-*.log")
	if err != nil || len(rotated) != 1 {
		t.Fatalf("rotated files: %q, %v, want 1", rotated, err)
	}
	old, err := os.ReadFile(rotated[0])
	if err != nil || !bytes.Contains(old, []byte("line 2\nraw 2\n")) {
		t.Errorf("%s lacks the lines before the rotation: %v", rotated[0], err)
	}
}

// writeLog writes to the log and, between, to standard error. The third line fills the file.
func writeLog(dir string) {
	l := testLogFile(dir)
	for i := range 6 {
		pad := ""
		if i == 3 {
			pad = strings.Repeat("x", 1<<20-30) + "\n"
		}
		if _, err := fmt.Fprintf(l, "%sline %d\n", pad, i); err != nil {
			panic(err)
		}
		fmt.Fprintf(os.Stderr, "raw %d\n", i)
	}
	os.Exit(0)
}

func testLogFile(dir string) logFile {
	c := &config.Loaded{}
	c.State, c.Log = config.Path(dir), config.Log{MaxSize: 1 << 20, MaxFiles: 2}
	return newLogFile(c)
}

// runWithLog runs the calling test in a process of its own, with the log as its output.
func runWithLog(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(logFilePath(dir), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "TEST_LOG_DIR="+dir)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}
