package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// filesGrowth is how much more memory the daemon may need while a file goes through it, in MiB.
const filesGrowth = 50

// transfer is a file that went through the daemon.
type transfer struct {
	Server string  `json:"server"`
	Way    string  `json:"way"`
	Rate   float64 `json:"mib_per_s"`
	// Its most resident memory while it went, beyond what it had before.
	Growth float64 `json:"daemon_mib"`
	Whole  bool    `json:"checksum_equal"`
}

// moveFiles sends a large file in and out by each server for files, and measures what the daemon
// keeps of it in memory.
func moveFiles(ctx context.Context, w *world, o options) (any, error) {
	local, back := filepath.Join(w.dir, "up"), filepath.Join(w.dir, "down")
	sum, err := writeRandom(local, int64(o.mib)<<20)
	if err != nil {
		return nil, err
	}
	server, err := w.httpServer(ctx)
	if err != nil {
		return nil, err
	}
	var rows []transfer
	fmt.Printf(
		"| %d MiB | MiB/s | daemon's memory, MiB more | checksum |\n| --- | --- | --- | --- |\n",
		o.mib)
	for _, step := range []struct {
		server, way string
		move        func() error
	}{
		{"HTTP", "in", func() error { return server.up(ctx, local, "/tmp/http") }},
		{"HTTP", "out", func() error { return server.down(ctx, "/tmp/http", back) }},
		{"sftp", "in", func() error { return w.sftp(ctx, "put "+local+" /tmp/sftp") }},
		{"sftp", "out", func() error { return w.sftp(ctx, "get /tmp/sftp "+back) }},
	} {
		before, err := w.resetPeak()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := step.move(); err != nil {
			return rows, fmt.Errorf("%s %s: %w", step.server, step.way, err)
		}
		took := time.Since(began)
		peak, err := w.memory("VmHWM")
		if err != nil {
			return nil, err
		}
		got := ""
		if step.way == "in" {
			got, err = w.sumInside(ctx, "/tmp/"+strings.ToLower(step.server))
		} else {
			got, err = sumOf(back)
		}
		if err != nil {
			return rows, err
		}
		row := transfer{step.server, step.way, float64(o.mib) / took.Seconds(), peak - before,
			got == sum}
		rows = append(rows, row)
		fmt.Printf("| %s %s | %.0f | %.0f | %s |\n", row.Server, row.Way, row.Rate, row.Growth,
			map[bool]string{true: "equal", false: "**other**"}[row.Whole])
	}
	for _, row := range rows {
		if !row.Whole || row.Growth >= filesGrowth {
			return rows,
				fmt.Errorf(
					"%s %s: checksum equal: %v; the daemon's memory grew by %.0f MiB, less than "+
						"%d are wanted", row.Server, row.Way, row.Whole, row.Growth, filesGrowth)
		}
	}
	return rows, nil
}

// writeRandom makes a file of n bytes that nothing can compress, and returns its checksum.
func writeRandom(path string, n int64) (string, error) {
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.Reader, n)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

func (w *world) sumInside(ctx context.Context, path string) (string, error) {
	out, err := w.daemon.Line(ctx, "exec", box, "--", "sha256sum", path).Output()
	sum, _, _ := strings.Cut(string(out), " ")
	return sum, err
}

// sftp has OpenSSH's own program do one thing.
func (w *world) sftp(ctx context.Context, line string) error {
	host, port, err := net.SplitHostPort(w.daemon.SSH)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sftp", "-q", "-b", "-", "-F", "none", "-P", port, "-i",
		w.daemon.Identity, "-o", "IdentitiesOnly=yes",
		"-o", "UserKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=no", "-o",
		"LogLevel=ERROR", box+"@"+host)
	cmd.Stdin = strings.NewReader(line + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// memory is a line of the daemon's /proc/PID/status, in MiB.
func (w *world) memory(name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.daemon.Pid()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("the kernel does not tell %s", name)
}

// resetPeak has the kernel count the daemon's most memory from now on (proc(5), clear_refs), and
// returns what it has now.
func (w *world) resetPeak() (float64, error) {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", w.daemon.Pid()), []byte("5"),
		0); err != nil {
		return 0, err
	}
	return w.memory("VmRSS")
}

// httpServer is the server for files by HTTP: E2B's, on the sandbox.
type httpServer struct{ url, access string }

func (w *world) httpServer(ctx context.Context) (*httpServer, error) {
	token, err := os.ReadFile(w.daemon.TokenFile)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.daemon.HTTP+"/e2b/sandboxes/"+box+
		"/connect", strings.NewReader("{}"))
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-API-Key", strings.TrimSpace(string(token)))
	r.Header.Set("Content-Type", "application/json")
	var out bytes.Buffer
	if err := fetch(r, &out); err != nil {
		return nil, err
	}
	var made struct {
		Access string `json:"envdAccessToken"`
	}
	err = json.Unmarshal(out.Bytes(), &made)
	return &httpServer{w.daemon.HTTP + "/e2b/files?path=", made.Access}, err
}

func (d *httpServer) up(ctx context.Context, from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.do(ctx, http.MethodPost, to, f, io.Discard)
}

func (d *httpServer) down(ctx context.Context, from, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(d.do(ctx, http.MethodGet, from, nil, f), f.Close())
}

func (d *httpServer) do(ctx context.Context, method, path string, in io.Reader,
	out io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, method, d.url+path, in)
	if err != nil {
		return err
	}
	r.Header.Set("E2b-Sandbox-Id", box)
	r.Header.Set("X-Access-Token", d.access)
	r.Header.Set("Content-Type", "application/octet-stream")
	return fetch(r, out)
}

// fetch has a request answered, and is an error where the answer is one.
func fetch(r *http.Request, out io.Writer) error {
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode >= http.StatusBadRequest {
		said, _ := io.ReadAll(io.LimitReader(a.Body, 1000))
		return fmt.Errorf("%s: %s", a.Status, said)
	}
	_, err = io.Copy(out, a.Body)
	return err
}
