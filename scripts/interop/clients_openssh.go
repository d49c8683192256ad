package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// client is one check with a real program.
type client struct {
	name string
	note string
	run  func(*lab) error
}

// openssh is what OpenSSH's programs must be able to do.
var openssh = []client{
	{"ssh: command", "streams apart, byte for byte both ways; exit codes 0, 7, 127, 255; a signal",
		sshCommand},
	{"ssh -tt: terminal", "exact bytes and exit code", sshTerminal},
	{"ssh -T: shell", "commands on standard input", func(l *lab) error {
		return l.run("echo one\ncat <<E\ntwo\nE\nexit 3\n", l.ssh("-T", "demo@sbx")...).want(
			outcome{stdout: "one\ntwo\n", exit: 3})
	}},
	{"ssh -L", "TCP and unix socket", sshLocal},
	{"ssh -R", "TCP and unix socket", sshRemote},
	{"ssh -D", "SOCKS 4 and 5, by curl", sshDynamic},
	{"ssh -W", "", sshStdio},
	{"ssh -A", "an agent with one key", sshAgent},
	{"ssh -X", "`xset q` in the container on an Xvfb here", sshX11},
	{"ssh: ControlMaster", "exit codes, a forward added later, end", sshMaster},
	{"ssh -J",
		"through the sandbox to an SSH server in it; to a closed port: rejected with the reason",
		sshJump},
	{"ssh: RekeyLimit 1M", "32 MiB each way", sshRekey},
	{"ssh: sleep in the background", "`sleep 60 & echo hi` returns when the command ends",
		func(l *lab) error {
			began := time.Now()
			if err := l.run("", l.ssh("demo@sbx", "sleep 60 & echo hi")...).want(
				outcome{stdout: "hi\n"}); err != nil {
				return err
			}
			if took := time.Since(began); took > 30*time.Second {
				return fmt.Errorf("it took %s", took)
			}
			return nil
		}},
	{"scp", "by sftp, and `-O` by its own protocol; files and a folder", scp},
	{"sftp", "a batch: put, get, ls, rename, chmod, mkdir, rm", sftp},
	{"sshfs", "", sshfs},
	{"rsync", "a folder there and back, and again with nothing to send", rsync},
	{"git clone and push", "", git},
	{"docker -H ssh://",
		"docker's client at both ends; a fake engine in the sandbox answers ping and version",
		dockerSSH},
}

func sshCommand(l *lab) error {
	for _, code := range []int{0, 7, 127, 255} {
		err := l.run("in", l.ssh("demo@sbx", fmt.Sprintf("cat; printf err >&2; exit %d",
			code))...).want(outcome{stdout: "in", stderr: "err", exit: code})
		if err != nil {
			return err
		}
	}
	if err := l.run("", l.ssh("demo@sbx", "kill -9 $$")...).want(outcome{exit: 255}); err != nil {
		return fmt.Errorf("killed: %w", err)
	}
	data := string(l.bytes)
	return l.run(data, l.ssh("demo@sbx", "tee /dev/stderr")...).want(
		outcome{stdout: data, stderr: data})
}

func sshTerminal(l *lab) error {
	if err := l.run("", l.ssh("-tt", "demo@sbx",
		`test -t 0 -a -t 1 -a -t 2 && printf 'a\nb\n'; exit 9`)...).want(
		outcome{stdout: "a\r\nb\r\n", exit: 9}); err != nil {
		return err
	}
	return l.run("", l.ssh("-tt", "demo@sbx", `exit 130`)...).want(outcome{exit: 130})
}

// serveThere starts a web server in the sandbox that gives out the file up, on TCP port l.web of
// its loopback and on a unix socket.
func (l *lab) serveThere() error {
	if out, err := l.sh("cat /tmp/web/ready 2>/dev/null; true"); err != nil || out == "yes\n" {
		return err
	}
	const server = `
import http.server, os, socketserver, threading, socket
os.chdir("/tmp/web")
class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    def get_request(self):
        c, _ = super().get_request()
        return c, ("unix", 0)
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *a): pass
u = Unix("/tmp/web/sock", Quiet)
threading.Thread(target=u.serve_forever, daemon=True).start()
t = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Quiet)
open("/tmp/web/ready", "w").write("yes\n")
t.serve_forever()
`
	if err := l.run(string(l.bytes), l.ssh(
		"demo@sbx", "mkdir -p /tmp/web && cat >/tmp/web/up")...).want(outcome{}); err != nil {
		return err
	}
	if err := l.run(strings.ReplaceAll(server, "PORT", l.web),
		l.ssh(
			"demo@sbx",
			"cat >/tmp/web.py && (setsid python3 /tmp/web.py </dev/null >/dev/null 2>&1 &)")...).want(outcome{}); err != nil {
		return err
	}
	return eventually(l.ctx, func() error {
		out, err := l.sh("cat /tmp/web/ready")
		if err == nil && out != "yes\n" {
			err = fmt.Errorf("the server in the sandbox does not start")
		}
		return err
	})
}

// fetch gets the file up by curl and compares it.
func (l *lab) fetch(args ...string) error {
	os.Remove(l.file("fetched"))
	if err := eventually(l.ctx, func() error {
		return l.must(append([]string{"curl", "-sS", "--max-time", "60", "-o", l.file("fetched")},
			args...)...)
	}); err != nil {
		return err
	}
	return l.same("fetched")
}

func sshLocal(l *lab) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	stop, err := l.background(l.ssh("-N", "-o", "ExitOnForwardFailure=yes", "-L",
		port+":127.0.0.1:"+l.web, "-L", l.file("l.sock")+":/tmp/web/sock", "demo@sbx")...)
	if err != nil {
		return err
	}
	defer stop()
	return all(
		func() error { return l.fetch("http://127.0.0.1:" + port + "/up") },
		func() error { return l.fetch("--unix-socket", l.file("l.sock"), "http://unix/up") })
}

func sshRemote(l *lab) error {
	here, err := new(net.ListenConfig).Listen(l.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(l.dir)),
		ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(here) }() // until Close
	defer server.Close()
	o := l.run("", l.ssh("-o", "ExitOnForwardFailure=yes", "-R", l.back+":"+here.Addr().String(),
		"-R", "/tmp/r.sock:"+here.Addr().String(), "demo@sbx",
		"rm -f tcp unix; curl -sS -o tcp http://127.0.0.1:"+l.back+
			"/up && curl -sS -o unix --unix-socket /tmp/r.sock http://unix/up")...)
	return all(
		func() error { return o.want(outcome{}) },
		func() error { return l.arrived("tcp") },
		func() error { return l.arrived("unix") })
}

func sshDynamic(l *lab) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	stop, err := l.background(l.ssh("-N", "-D", port, "demo@sbx")...)
	if err != nil {
		return err
	}
	defer stop()
	for _, kind := range []string{"--socks4", "--socks4a", "--socks5", "--socks5-hostname"} {
		if err := l.fetch(kind, "127.0.0.1:"+port, "http://127.0.0.1:"+l.web+"/up"); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

func sshStdio(l *lab) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	o := l.run("GET /up HTTP/1.0\r\n\r\n", l.ssh("-W", "127.0.0.1:"+l.web, "demo@sbx")...)
	_, body, _ := strings.Cut(o.stdout, "\r\n\r\n")
	o.stdout = body
	return o.want(outcome{stdout: string(l.bytes)})
}

func sshAgent(l *lab) error {
	sock := l.file("agent.sock")
	stop, err := l.background("ssh-agent", "-D", "-a", sock)
	if err != nil {
		return err
	}
	defer stop()
	env := []string{"SSH_AUTH_SOCK=" + sock}
	add := func() error {
		o := l.runWith(env, "", "ssh-add", "-q", l.at.Identity)
		return o.want(outcome{stderr: o.stderr})
	}
	if err := eventually(l.ctx, add); err != nil {
		return err
	}
	here := l.runWith(env, "", "ssh-add", "-L")
	return all(
		func() error {
			return l.runWith(env, "", l.ssh("-A", "demo@sbx", "ssh-add -L")...).want(
				outcome{stdout: here.stdout})
		},
		func() error { // and without -A there is none
			return l.runWith(env, "", l.ssh("-a", "demo@sbx", `echo "$SSH_AUTH_SOCK"`)...).want(
				outcome{stdout: "\n"})
		})
}

// install installs packages in the sandbox, once. On a host they have to be there: scripts/setup
// installs them.
func (l *lab) install(packages string) error {
	if l.behind == host {
		return l.must(append([]string{"dpkg", "-s"}, strings.Fields(packages)...)...)
	}
	_, err := l.sh("dpkg -s " + packages +
		" >/dev/null 2>&1 || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get " +
		"install -y -qq --no-install-recommends " +
		packages + "; } >/tmp/apt.log 2>&1 || { tail -n 5 /tmp/apt.log >&2; exit 1; }")
	return err
}

func sshX11(l *lab) error {
	if err := l.install("xauth x11-xserver-utils"); err != nil {
		return err
	}
	// The server writes the number of the display that it found free.
	auth := l.file("Xauthority")
	if err := l.must("xauth", "-f", auth, "add", ":0", "MIT-MAGIC-COOKIE-1",
		strings.Repeat("5a", 16)); err != nil {
		return err
	}
	number, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer number.Close()
	c := l.command(l.ctx, "Xvfb", "-displayfd", "3", "-auth", auth, "-screen", "0", "640x480x24")
	c.ExtraFiles = []*os.File{theirs}
	if err := c.Start(); err != nil {
		theirs.Close()
		return err
	}
	theirs.Close()
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	var display int
	if _, err := fmt.Fscan(number, &display); err != nil {
		return fmt.Errorf("start Xvfb: %w", err)
	}
	name := fmt.Sprintf(":%d", display)
	if err := l.must("xauth", "-f", auth, "add", name, "MIT-MAGIC-COOKIE-1",
		strings.Repeat("5a", 16)); err != nil {
		return err
	}
	env := []string{"DISPLAY=" + name, "XAUTHORITY=" + auth}
	for _, flag := range []string{"-X", "-Y"} {
		o := l.runWith(env, "", l.ssh(flag, "demo@sbx", "xset q")...)
		if err := o.want(outcome{stdout: o.stdout, stderr: o.stderr}); err != nil {
			return err
		}
		if !strings.Contains(o.stdout, "Keyboard Control:") ||
			!strings.Contains(o.stdout, "Screen Saver:") {
			return fmt.Errorf("%s: xset says %s", flag, brief(o.stdout))
		}
	}
	return nil
}

func sshMaster(l *lab) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	sock := l.file("master")
	if err := l.must(l.ssh("-M", "-S", sock, "-f", "-N", "demo@sbx")...); err != nil {
		return err
	}
	defer l.run("", l.ssh("-S", sock, "-O", "exit", "demo@sbx")...)
	port, err := freePort()
	if err != nil {
		return err
	}
	over := func(args ...string) []string {
		return l.ssh(append([]string{"-S", sock, "-o", "ProxyCommand=false"}, args...)...)
	}
	for code := range 3 {
		if err := l.run("x", over("demo@sbx", fmt.Sprintf("cat; exit %d", code))...).want(
			outcome{stdout: "x", exit: code}); err != nil {
			return err
		}
	}
	return all(
		func() error {
			return l.must(over("-O", "forward", "-L", port+":127.0.0.1:"+l.web, "demo@sbx")...)
		},
		func() error { return l.fetch("http://127.0.0.1:" + port + "/up") },
		func() error {
			return l.must(over("-O", "cancel", "-L", port+":127.0.0.1:"+l.web, "demo@sbx")...)
		},
		func() error { return l.must(over("-O", "exit", "demo@sbx")...) })
}

func sshJump(l *lab) error {
	// Which is what -J runs.
	o := l.run("", l.ssh("-o", "LogLevel=INFO", "-W", "127.0.0.1:9", "demo@sbx")...)
	if o.exit != 255 || !strings.Contains(strings.ToLower(o.stderr), "connection refused") {
		return fmt.Errorf("to nobody: exit %d, %s", o.exit, brief(o.stderr))
	}
	if err := l.install("openssh-server"); err != nil {
		return err
	}
	pub, err := os.ReadFile(l.at.Identity + ".pub")
	if err != nil {
		return err
	}
	// "; true" keeps the shell: sshd takes a parent with PID 1 for a sign that it is a daemon
	// already, and stays.
	if err := l.run(string(pub), l.ssh("demo@sbx",
		"mkdir -p -m 700 ~/.ssh && cat >~/.ssh/authorized_keys && mkdir -p /run/sshd && chmod "+
			"755 /run/sshd && "+
			"/usr/sbin/sshd -p "+l.jump+
			" -o ListenAddress=127.0.0.1 -E /tmp/sshd.log; true")...).want(
		outcome{}); err != nil {
		return err
	}
	return l.run("in", "ssh", "-F", l.config, "-J", "demo@sbx", "-i", l.at.Identity, "-o",
		"StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "LogLevel=ERROR", "-p", l.jump, "root@127.0.0.1", "cat; exit 4").want(
		outcome{stdout: "in", exit: 4})
}

func sshRekey(l *lab) error {
	data := strings.Repeat(string(l.bytes), 32<<20/size+1)
	o := l.run(data, l.ssh("-v", "-o", "RekeyLimit=1M", "demo@sbx", "cat")...)
	n := strings.Count(o.stderr, "SSH2_MSG_NEWKEYS received")
	o.stderr = ""
	if err := o.want(outcome{stdout: data}); err != nil {
		return err
	}
	if n < 16 {
		return fmt.Errorf("keys were exchanged %d times, which is hardly each MiB of %d", n,
			2*len(data)>>20)
	}
	return nil
}

func scp(l *lab) error {
	for _, protocol := range []string{"-s", "-O"} {
		name := "scp" + protocol
		to := []string{"scp", "-F", l.config, "-q", "-p", protocol}
		err := all(
			func() error { return l.must(append(to, l.up, "demo@sbx:"+name)...) },
			func() error { return l.arrived(name) },
			func() error { return l.must(append(to, "demo@sbx:"+name, l.file(name))...) },
			func() error { return l.same(name) },
			func() error { return os.MkdirAll(l.file("tree/a b"), 0o755) },
			func() error { return os.WriteFile(l.file("tree/a b/c"), l.bytes, 0o600) },
			func() error {
				return l.must(append(to, "-r", l.file("tree"), "demo@sbx:"+name+".d")...)
			},
			func() error {
				return l.must(append(to, "-r", "demo@sbx:"+name+".d", l.file(name+".d"))...)
			},
			func() error { return l.same(name + ".d/a b/c") },
			func() error {
				o := l.run("", append(to, "demo@sbx:none", l.file("none"))...)
				if o.exit != 1 || !strings.Contains(o.stderr, "No such file") {
					return fmt.Errorf("a file that is not there: exit %d, %s", o.exit,
						brief(o.stderr))
				}
				return nil
			})
		if err != nil {
			return fmt.Errorf("%s: %w", protocol, err)
		}
	}
	return nil
}

func sftp(l *lab) error {
	batch := fmt.Sprintf(
		"mkdir d\nput %s d/x\nrename d/x d/y\nchmod 600 d/y\nls -l d\nget d/y %s\nrm d/y\nrmdir d\n", l.up, l.file("sftp"))
	o := l.run(batch, "sftp", "-F", l.config, "-b", "-", "demo@sbx")
	if err := o.want(outcome{stdout: o.stdout}); err != nil {
		return err
	}
	if !strings.Contains(o.stdout, "-rw-------") {
		return fmt.Errorf("ls -l says %s", brief(o.stdout))
	}
	return l.same("sftp")
}

func sshfs(l *lab) error {
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		return errNotHere{"this machine has no usable /dev/fuse: " + err.Error()}
	} else {
		f.Close()
	}
	at := l.file("mount")
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	if err := l.must("sshfs", "-F", l.config, "demo@sbx:/root", at); err != nil {
		return err
	}
	defer l.run("", "fusermount3", "-u", "-z", at)
	return all(
		func() error { return os.Mkdir(filepath.Join(at, "fs"), 0o755) },
		func() error { return l.must("cp", l.up, filepath.Join(at, "fs/x")) },
		func() error { return os.Rename(filepath.Join(at, "fs/x"), filepath.Join(at, "fs/y")) },
		func() error { return l.must("cp", filepath.Join(at, "fs/y"), l.file("sshfs")) },
		func() error { return l.same("sshfs") },
		func() error { return l.must("fusermount3", "-u", at) },
		func() error { return l.arrived("fs/y") })
}

func rsync(l *lab) error {
	from := l.file("rsync")
	if err := os.MkdirAll(filepath.Join(from, "deep/er"), 0o755); err != nil {
		return err
	}
	sync := []string{"rsync", "-a", "-e", "ssh -F " + l.config}
	return all(
		func() error { return os.WriteFile(filepath.Join(from, "deep/er/x"), l.bytes, 0o640) },
		func() error { return os.Symlink("x", filepath.Join(from, "deep/er/link")) },
		func() error { return l.must(append(sync, from+"/", "demo@sbx:rsync")...) },
		func() error { return l.arrived("rsync/deep/er/x") },
		func() error { return l.must(append(sync, "demo@sbx:rsync/", l.file("rsync.back"))...) },
		func() error { return l.must("diff", "-r", from, l.file("rsync.back")) },
		func() error {
			return l.run("", append(sync, "-i", "--checksum", from+"/", "demo@sbx:rsync")...).want(
				outcome{})
		})
}

func git(l *lab) error {
	env := []string{"GIT_SSH_COMMAND=ssh -F " + l.config, "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
	run := func(args ...string) func() error {
		return func() error {
			o := l.runWith(env, "", append([]string{"git"}, args...)...)
			return o.want(outcome{stdout: o.stdout, stderr: o.stderr})
		}
	}
	return all(
		func() error { _, err := l.sh("git init -q --bare -b main repo"); return err },
		run("clone", "-q", "demo@sbx:repo", "one"),
		func() error { return os.WriteFile(l.file("one/x"), l.bytes, 0o644) },
		run("-C", "one", "checkout", "-q", "-b", "main"), run("-C", "one", "add", "x"),
		run("-C", "one", "commit", "-q", "-m", "x"),
		run("-C", "one", "push", "-q", "origin", "main"),
		run("clone", "-q", "ssh://demo@sbx/root/repo", "two"),
		func() error { return l.same("two/x") })
}

func dockerSSH(l *lab) error {
	path, err := exec.LookPath("docker")
	if err != nil {
		return err
	}
	const engine = `
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_HEAD(self): self.answer(b"")
    def do_GET(self): self.answer(b'{"Version":"stand-in","ApiVersion":"1.41","MinAPIVersion":"1.12","Os":"linux","Arch":"amd64"}' if "version" in self.path else b"OK")
    def answer(self, body):
        self.send_response(200)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    def get_request(self):
        c, _ = super().get_request()
        return c, ("unix", 0)
Unix("/var/run/docker.sock", Handler).serve_forever()
`
	if l.behind == container { // a host has it already
		if err := l.must("scp", "-F", l.config, "-q", path,
			"demo@sbx:/usr/local/bin/docker"); err != nil {
			return err
		}
	}
	if err := l.run(engine, l.ssh("demo@sbx",
		"cat >/tmp/engine.py && (setsid python3 /tmp/engine.py </dev/null >/dev/null 2>&1 &)")...).want(outcome{}); err != nil {
		return err
	}
	// docker knows only the user's own configuration of ssh.
	if err := os.MkdirAll(l.file("bin"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(l.file("bin/ssh"),
		[]byte("#!/bin/sh\nexec /usr/bin/ssh -F "+l.config+" \"$@\"\n"), 0o700); err != nil {
		return err
	}
	env := []string{"PATH=" + l.file("bin") + ":" + os.Getenv("PATH")}
	return eventually(l.ctx, func() error {
		o := l.runWith(env, "", "docker", "-H", "ssh://demo@sbx", "version", "--format",
			"{{.Server.Version}}")
		return o.want(outcome{stdout: "stand-in\n"})
	})
}

// clients runs every client against the lab.
func clients(ctx context.Context, r *report) error {
	return inLab(ctx, r, "clients", slices.Concat(openssh, others, edges))
}

// inLab runs checks that need the daemon, if any was asked for.
func inLab(ctx context.Context, r *report, group string, list []client) error {
	for _, c := range list {
		if !r.wants(group, c.name) || ctx.Err() != nil {
			continue
		}
		l := labs[r.behind]
		if l == nil {
			var err error
			if l, err = newLab(ctx, r.behind); err != nil {
				return err
			}
			labs[r.behind] = l
		}
		r.check(group, c.name, c.note, func() error { return c.run(l) })
	}
	return nil
}
