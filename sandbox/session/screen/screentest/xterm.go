package screentest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Xterm is a terminal of xterm.js, with the character widths of Unicode 11, in a node process. See
// testdata/xterm/oracle.js of package screen for its requests.
type Xterm struct {
	t   testing.TB
	in  *bufio.Writer
	out *bufio.Reader
}

// Shown is the state of the terminal, as oracle.js returns it.
type Shown struct {
	Cols, Rows, X, Y, Top, Bottom int
	Lines                         []struct {
		Text         []string
		Style, Width []int
	}
	Wrapped                                            []bool
	Styles                                             [][5]uint32
	Alternate, Visible, AppCursor, AppKeypad, AutoWrap bool
	Paste, Focus, Insert, Origin, Synchronized         bool
	Mouse, Encoding, Replies                           string
}

// StartXterm starts the process, which ends with the test. If it is not installed, the test is
// skipped, or fails if no test may be skipped.
func StartXterm(t testing.TB) *Xterm {
	t.Helper()
	dir := filepath.Join(root(t), "sandbox/session/screen/testdata/xterm")
	_, err := os.Stat(filepath.Join(dir, "node_modules/@xterm/headless"))
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err != nil {
		missing(t, "xterm.js", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "node",
		filepath.Join(dir, "oracle.js"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // ends the process
		if err := cmd.Wait(); err != nil {
			t.Errorf("oracle.js: %v", err)
		}
	})
	return &Xterm{t: t, in: bufio.NewWriterSize(in, 64<<10), out: bufio.NewReaderSize(out, 64<<10)}
}

// Order sends a request without an answer: n for a new terminal, r for another size, w for output.
func (x *Xterm) Order(op byte, cols, rows int, data string) {
	x.t.Helper()
	head := []byte{op}
	head = binary.BigEndian.AppendUint16(head, uint16(cols))
	head = binary.BigEndian.AppendUint16(head, uint16(rows))
	head = binary.BigEndian.AppendUint32(head, uint32(len(data)))
	_, _ = x.in.Write(head)
	if _, err := io.WriteString(x.in, data); err != nil {
		x.t.Fatalf("oracle.js: %v", err)
	}
}

// Ask sends a request and decodes its answer into v.
func (x *Xterm) Ask(op byte, data string, v any) {
	x.t.Helper()
	x.Order(op, 0, 0, data)
	if err := x.in.Flush(); err != nil {
		x.t.Fatalf("oracle.js: %v", err)
	}
	line, err := x.out.ReadBytes('\n')
	if err != nil {
		x.t.Fatalf("oracle.js: %v", err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		x.t.Fatalf("oracle.js: %v in %q", err, line)
	}
}

// Show returns the current state of the terminal.
func (x *Xterm) Show() (v Shown) {
	x.t.Helper()
	x.Ask('s', "", &v)
	return v
}
