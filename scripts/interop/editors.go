package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

// traces are what editors send, replayed with the programs that they send it with.
var traces = []client{
	{"VS Code: connect",
		"`ssh -v -T -D port sandbox bash`, a script on standard input that starts a server, its " +
			"port read from the output, then SOCKS " +
			"to 127.0.0.1 where the shell runs", vscodeConnect},
	{"VS Code: second window",
		"the same with the first still open, and the server of the first found again",
		vscodeSecond},
	{"VS Code: local server",
		"one connection: direct-tcpip to a unix socket and to TCP by `-L`, as with `useExecServer`",
		vscodeLocal},
	{"Zed: connect",
		"a master connection, `uname`, an upload by sftp into a folder, `gunzip` and `mv`, then " +
			"a proxy that speaks a binary protocol on " +
			"standard input and output", zed},
	{"Zed: terminal", "`ssh -t` in a terminal through the master, with exact exit codes",
		zedTerminal},
	{"JetBrains: connect",
		"one connection of a library: a command for each question, upload by sftp, chmod, a " +
			"backend, direct-tcpip to it, exact exit codes " +
			"with and without a terminal", func(l *lab) error { return l.python(jetbrainsScript) }},
	{"JetBrains: Gateway by ssh", "`ssh -T` for each step, a pipe kept open that ends the backend",
		jetbrainsSSH},
}

func editors(ctx context.Context, r *report) error {
	return inLab(ctx, r, "editors", traces)
}

// vscodeScript is the shape of the script that Remote - SSH sends to bash: it must not read ahead
// of the shell, it prints marks with an id around its answers, and what it starts stays when it has
// ended.
const vscodeScript = `
set -f
echo "ID: running"
unset SERVER
mkdir -p "$HOME/.vscode-server/bin"
umask 0077
COMMIT=abc
LOG="$HOME/.vscode-server/.$COMMIT.log"
PIDFILE="$HOME/.vscode-server/.$COMMIT.pid"
if [ -f "$PIDFILE" ] && kill -0 "$(cat "$PIDFILE")" 2>/dev/null; then
	found=1
else
	found=0
	cat >"$HOME/.vscode-server/bin/server.py" <<'EOS'
import socket, threading
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(64)
print("Extension host agent listening on %d" % s.getsockname()[1], flush=True)
def serve(c):
    while True:
        b = c.recv(65536)
        if not b: break
        c.sendall(b)
    c.close()
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
EOS
	nohup python3 "$HOME/.vscode-server/bin/server.py" >"$LOG" 2>&1 </dev/null &
	echo $! >"$PIDFILE"
fi
for i in $(seq 100); do
	PORT=$(sed -n 's/.*listening on //p' "$LOG")
	[ -n "$PORT" ] && break
	sleep 0.1
done
echo "ID: start"
echo "found==$found=="
echo "listeningOn==$PORT=="
echo "osReleaseId==$(. /etc/os-release; echo $ID)=="
echo "arch==$(uname -m)=="
echo "ID: end"
`

// vscodeWindow is one window: a shell that was given the script and stays open.
type vscodeWindow struct {
	socks, port, found string
	close              func() error
}

func (l *lab) vscodeOpen() (*vscodeWindow, error) {
	socks, err := freePort()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	c := l.command(ctx, l.ssh("-v", "-T", "-D", socks, "-o", "ConnectTimeout=15", "demo@sbx",
		"bash")...)
	in, err := c.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	began := time.Now()
	if err := c.Start(); err != nil {
		cancel()
		return nil, err
	}
	w := &vscodeWindow{socks: socks}
	w.close = func() error {
		defer cancel()
		_, err := io.WriteString(in, "exit 42\n")
		in.Close()
		rest, readErr := io.ReadAll(out)
		_ = c.Wait() // read from its state
		if code := c.ProcessState.ExitCode(); code != 42 || len(rest) > 0 {
			err = errors.Join(err, fmt.Errorf("the shell ends with %d, want 42, after %q", code,
				rest))
		}
		return errors.Join(err, readErr)
	}
	if _, err := io.WriteString(in, vscodeScript); err != nil {
		return nil, errors.Join(err, w.close())
	}
	var lines []string
	for s := bufio.NewScanner(out); s.Scan(); {
		lines = append(lines, s.Text())
		if s.Text() == "ID: end" {
			break
		}
	}
	if took := time.Since(began); took > 15*time.Second {
		return nil, errors.Join(fmt.Errorf("it took %s; VS Code gives up after 15 s", took),
			w.close())
	}
	value := func(name string) string {
		_, after, _ := strings.Cut(strings.Join(lines, "\n"), name+"==")
		v, _, _ := strings.Cut(after, "==")
		return v
	}
	w.port, w.found = value("listeningOn"), value("found")
	if len(lines) == 0 || lines[0] != "ID: running" || w.port == "" ||
		value("osReleaseId") != "debian" {
		return nil, errors.Join(fmt.Errorf("the script says %q", lines), w.close())
	}
	return w, nil
}

// echo sends data to the server by SOCKS 5 and wants it back.
func (w *vscodeWindow) echo(l *lab) error {
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(
		l.ctx, "tcp", "127.0.0.1:"+w.socks)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	var port int
	if _, err := fmt.Sscan(w.port, &port); err != nil {
		return err
	}
	if _, err := c.Write([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, byte(port >> 8),
		byte(port)}); err != nil {
		return err
	}
	var answer [12]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer[1] != 0 || answer[3] != 0 {
		return fmt.Errorf("SOCKS answers % x", answer)
	}
	go func() { // ends with c
		_, _ = c.Write(l.bytes)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	back, err := io.ReadAll(c)
	if err == nil && string(back) != string(l.bytes) {
		err = fmt.Errorf("%d bytes came back of %d", len(back), len(l.bytes))
	}
	return err
}

func vscodeConnect(l *lab) error {
	w, err := l.vscodeOpen()
	if err != nil {
		return err
	}
	return errors.Join(w.echo(l), w.echo(l), w.close())
}

func vscodeSecond(l *lab) error {
	first, err := l.vscodeOpen()
	if err != nil {
		return err
	}
	second, err := l.vscodeOpen()
	if err != nil {
		return errors.Join(err, first.close())
	}
	if second.found != "1" || second.port != first.port {
		err = fmt.Errorf("the second window finds %q on port %s, the first has %s", second.found,
			second.port, first.port)
	}
	return errors.Join(err, second.echo(l), first.echo(l), first.close(), second.echo(l),
		second.close())
}

func vscodeLocal(l *lab) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	// The shell and both forwards on one connection; standard input ends it.
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	c := l.command(ctx, l.ssh("-T", "-o", "ExitOnForwardFailure=yes", "-L",
		port+":127.0.0.1:"+l.web, "-L", l.file("code.sock")+":/tmp/web/sock", "demo@sbx", "sh")...)
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	err = all(
		func() error { return l.fetch("--unix-socket", l.file("code.sock"), "http://unix/up") },
		func() error { return l.fetch("http://127.0.0.1:" + port + "/up") })
	_, writeErr := io.WriteString(in, "exit 3\n")
	in.Close()
	_ = c.Wait() // read from its state
	if code := c.ProcessState.ExitCode(); code != 3 {
		err = errors.Join(err, fmt.Errorf("the shell ends with %d, want 3", code))
	}
	return errors.Join(err, writeErr)
}

// zedMaster opens the connection that the rest goes over, as Zed does: no command, and a word on
// standard output when it is there.
func (l *lab) zedMaster() (over func(args ...string) []string, end func(), err error) {
	sock := l.file("zed.sock")
	stop, err := l.background(l.ssh("-N", "-o", "ControlPersist=no", "-o", "ControlMaster=yes",
		"-o", "ControlPath="+sock, "demo@sbx")...)
	if err != nil {
		return nil, nil, err
	}
	over = func(args ...string) []string {
		return l.ssh(append([]string{"-o", "ControlMaster=no", "-o", "ControlPath=" + sock},
			args...)...)
	}
	err = eventually(l.ctx, func() error { return l.must(over("-O", "check", "demo@sbx")...) })
	return over, stop, err
}

// zedServer echoes messages that begin with their length, four bytes little-endian, as Zed's remote
// server reads them.
const zedServer = `#!/usr/bin/env python3
import struct, sys
while True:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4: sys.exit(5)
    body = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
    sys.stdout.buffer.write(head + body)
    sys.stdout.buffer.flush()
    print("log line", file=sys.stderr, flush=True)
`

func zed(l *lab) error {
	over, end, err := l.zedMaster()
	if err != nil {
		return err
	}
	defer end()
	packed := l.file("server.gz")
	o := l.run(zedServer, "gzip", "-c")
	if err := errors.Join(o.want(outcome{stdout: o.stdout}),
		os.WriteFile(packed, []byte(o.stdout), 0o600)); err != nil {
		return err
	}
	sock := l.file("zed.sock")
	message := "\x03\x00\x00\x00a\x00b" + "\x00\x00\x50\x00" +
		strings.Repeat("\xff\x00\r\n", 0x500000/4)
	return all(
		func() error {
			return l.run("", over("demo@sbx", "sh -c 'uname -s; uname -m'")...).want(
				outcome{stdout: "Linux\nx86_64\n"})
		},
		func() error {
			return l.run("", over("demo@sbx", "mkdir", "-p", ".zed_server")...).want(outcome{})
		},
		func() error {
			o := l.run("put "+packed+" .zed_server/server.gz\n", "sftp", "-F", l.config, "-o",
				"ControlMaster=no", "-o", "ControlPath="+sock, "-b", "-", "demo@sbx")
			return o.want(outcome{stdout: o.stdout})
		},
		func() error {
			return l.run("", over("demo@sbx",
				"sh -c 'gunzip -f .zed_server/server.gz && chmod 700 .zed_server/server && mv "+
					".zed_server/server .zed_server/run'")...).want(outcome{})
		},
		func() error {
			return l.run(message, over("-T", "demo@sbx", "env RUST_LOG=info .zed_server/run")...).
				want(outcome{stdout: message, stderr: "log line\nlog line\n", exit: 5})
		})
}

func zedTerminal(l *lab) error {
	over, end, err := l.zedMaster()
	if err != nil {
		return err
	}
	defer end()
	for _, code := range []int{0, 1, 42, 255} {
		// In a terminal of its own, as the editor's: ssh takes the modes from there.
		line := shellLine(over("-t", "demo@sbx",
			fmt.Sprintf("cd /tmp && exec env TERM=xterm-256color sh -c 'pwd; exit %d'", code)))
		o := l.inTerminal(line)
		// The master writes into a terminal that its client may have given back already, and then
		// CR comes twice.
		o.stdout = strings.ReplaceAll(o.stdout, "\r", "")
		if err := o.want(outcome{stdout: "/tmp\n", exit: code}); err != nil {
			return err
		}
	}
	return nil
}

// inTerminal runs a command line in a terminal of its own in which nobody types.
func (l *lab) inTerminal(line string) outcome {
	// Open until the end: script types an end of its input into the terminal.
	nobody, keyboard, err := os.Pipe()
	if err != nil {
		return outcome{err: err}
	}
	defer keyboard.Close()
	defer nobody.Close()
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	c := l.command(ctx, "script", "-qec", line, "/dev/null")
	c.Stdin = nobody
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	return outcome{stdout: string(out), exit: c.ProcessState.ExitCode(), err: err}
}

// shellLine quotes words for a shell.
func shellLine(words []string) string {
	var line strings.Builder
	for _, w := range words {
		line.WriteString("'" + strings.ReplaceAll(w, "'", `'\''`) + "' ")
	}
	return line.String()
}

//go:embed jetbrains.py
var jetbrainsScript string

func jetbrainsSSH(l *lab) error {
	step := func(want outcome, stdin string, command ...string) func() error {
		return func() error {
			return l.run(stdin, l.ssh(append([]string{"-T", "demo@sbx"}, command...)...)...).want(
				want)
		}
	}
	return all(
		step(outcome{stdout: "Linux x86_64\n"}, "", "uname", "-sm"),
		step(outcome{stdout: "/root\n"}, "", "printenv", "HOME"),
		step(outcome{}, string(l.bytes),
			"mkdir -p .cache/JetBrains && cat >.cache/JetBrains/backend.tar.gz"),
		func() error { return l.arrived(".cache/JetBrains/backend.tar.gz") },
		// The backend lives as long as its standard input.
		step(outcome{stdout: "Join link: tcp://127.0.0.1\nended\n", exit: 17}, "anything\n",
			"sh", "-c", "'echo Join link: tcp://127.0.0.1; cat >/dev/null; echo ended; exit 17'"),
		step(outcome{stderr: "sh: 1: nothing: not found\n", exit: 127}, "", "sh", "-c", "nothing"))
}
