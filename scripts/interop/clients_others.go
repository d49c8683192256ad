package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
)

// others are the clients that are not OpenSSH's.
var others = []client{
	{"plink", "command, exit code, `-L`; a terminal", plink},
	{"pscp", "by sftp and by scp", pscp},
	{"psftp", "", psftp},
	{"curl sftp://", "up and down", func(l *lab) error { return curl(l, "sftp") }},
	{"curl scp://", "up and down", func(l *lab) error { return curl(l, "scp") }},
	{"lftp", "a file, and a folder mirrored there and back", lftp},
	{"dbclient", "command, exit code, `-L`", dbclient},
	{"paramiko",
		"streams, exit codes with and without a terminal, sftp, direct-tcpip, a forward back, " +
			"keepalive", func(l *lab) error { return l.python(paramikoScript) }},
	{"asyncssh", "the same, and 20 commands at once on one connection; " +
		"on a host 8, because OpenSSH rejects more than 10 (`MaxSessions`), " +
		"and no signal, which it does not pass on for root",
		func(l *lab) error { return l.python(asyncsshScript) }},
	{"ansible", "ping, shell, copy, fetch; with and without pipelining", ansible},
}

// putty makes what PuTTY's programs need: the key in their form, and the fingerprint of the host.
func (l *lab) putty() ([]string, error) {
	key := l.file("key.ppk")
	if err := l.must("puttygen", l.at.Identity, "-O", "private", "-o", key); err != nil {
		return nil, err
	}
	o := l.run("", "ssh-keygen", "-l", "-f", l.at.KnownHosts)
	fields := strings.Fields(o.stdout)
	if len(fields) < 2 {
		return nil, fmt.Errorf("ssh-keygen -l says %s", brief(o.stdout))
	}
	return []string{"-batch", "-hostkey", fields[1], "-i", key, "-P", l.port}, nil
}

func plink(l *lab) error {
	args, err := l.putty()
	if err != nil {
		return err
	}
	cmd := append([]string{"plink"}, args...)
	data := string(l.bytes)
	if err := l.run(data, append(cmd, "demo@127.0.0.1", "tee /dev/stderr; exit 7")...).want(
		outcome{stdout: data, stderr: data, exit: 7}); err != nil {
		return err
	}
	o := l.run("", append(cmd, "-t", "demo@127.0.0.1", `test -t 0 && printf 'a\n'; exit 9`)...)
	if err := o.want(outcome{stdout: "a\r\n", exit: 9}); err != nil {
		return err
	}
	return l.forwards(cmd)
}

// forwards checks -L of a client's command line.
func (l *lab) forwards(cmd []string) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	stop, err := l.background(append(cmd, "-N", "-L", port+":127.0.0.1:"+l.web,
		"demo@127.0.0.1")...)
	if err != nil {
		return err
	}
	defer stop()
	return l.fetch("http://127.0.0.1:" + port + "/up")
}

func pscp(l *lab) error {
	args, err := l.putty()
	if err != nil {
		return err
	}
	for _, protocol := range []string{"-sftp", "-scp"} {
		cmd := append(append([]string{"pscp"}, args...), "-q", protocol)
		name := "pscp" + protocol
		if err := all(
			func() error { return l.must(append(cmd, l.up, "demo@127.0.0.1:"+name)...) },
			func() error { return l.arrived(name) },
			func() error { return l.must(append(cmd, "demo@127.0.0.1:"+name, l.file(name))...) },
			func() error { return l.same(name) }); err != nil {
			return fmt.Errorf("%s: %w", protocol, err)
		}
	}
	return nil
}

func psftp(l *lab) error {
	args, err := l.putty()
	if err != nil {
		return err
	}
	batch := l.file("psftp.batch")
	text := fmt.Sprintf("mkdir p\nput %s p/x\nmv p/x p/y\nget p/y %s\n", l.up, l.file("psftp"))
	return all(
		func() error { return os.WriteFile(batch, []byte(text), 0o600) },
		func() error {
			return l.must(append(append([]string{"psftp"}, args...), "-b", batch,
				"demo@127.0.0.1")...)
		},
		func() error { return l.same("psftp") },
		func() error { return l.arrived("p/y") })
}

func curl(l *lab, scheme string) error {
	// curl's hosts stand in its user's home.
	known, err := os.ReadFile(l.at.KnownHosts)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(l.file(".ssh"), 0o700),
		os.WriteFile(l.file(".ssh/known_hosts"), known, 0o600)); err != nil {
		return err
	}
	cmd := []string{"curl", "-sS", "--user", "demo:", "--key", l.at.Identity, "--pubkey",
		l.at.Identity + ".pub"}
	url := scheme + "://127.0.0.1:" + l.port + "/root/curl." + scheme
	return all(
		func() error { return l.must(append(cmd, "-T", l.up, url)...) },
		func() error { return l.arrived("curl." + scheme) },
		func() error { return l.must(append(cmd, "-o", l.file("curl."+scheme), url)...) },
		func() error { return l.same("curl." + scheme) })
}

func lftp(l *lab) error {
	connect := "set net:max-retries 1; set sftp:connect-program 'ssh -a -x -F " + l.config +
		"'; open sftp://demo:@sbx; "
	run := func(commands string) func() error {
		return func() error { return l.must("lftp", "-c", connect+commands) }
	}
	return all(
		func() error { return os.MkdirAll(l.file("lftp.d/a b"), 0o755) },
		func() error { return os.WriteFile(l.file("lftp.d/a b/c"), l.bytes, 0o600) },
		run("put "+l.up+" -o lftp && get lftp -o "+l.file("lftp")),
		func() error { return l.same("lftp") },
		run("mirror -R "+l.file("lftp.d")+" lftp.d && mirror lftp.d "+l.file("lftp.back")),
		func() error { return l.same("lftp.back/a b/c") })
}

func dbclient(l *lab) error {
	key := l.file("dropbear_key")
	if err := l.must("dropbearconvert", "openssh", "dropbear", l.at.Identity, key); err != nil {
		return err
	}
	cmd := []string{"dbclient", "-y", "-y", "-i", key, "-p", l.port}
	data := string(l.bytes)
	o := l.run(data, append(cmd, "demo@127.0.0.1", "cat; exit 7")...)
	o.stderr = "" // it says that it checks no host key
	if err := o.want(outcome{stdout: data, exit: 7}); err != nil {
		return err
	}
	return l.forwards(cmd)
}

//go:embed paramiko.py
var paramikoScript string

//go:embed asyncssh.py
var asyncsshScript string

// debianPython is the one that Debian's packages belong to, whatever else stands in PATH.
const debianPython = "/usr/bin/python3"

// python runs a script with what it needs to log in. It prints ok when all that it asserts held.
func (l *lab) python(script string) error {
	if err := l.serveThere(); err != nil {
		return err
	}
	atOnce := "20"
	if l.behind == host {
		atOnce = "8" // its own server refuses an eleventh (MaxSessions)
	}
	o := l.run("", debianPython, "-W", "ignore", "-c", script, l.port, l.at.Identity,
		l.at.KnownHosts, l.up, l.web, atOnce)
	return o.want(outcome{stdout: "ok\n"})
}

func ansible(l *lab) error {
	inventory := l.file("inventory")
	text := fmt.Sprintf(
		"sbx ansible_user=demo ansible_python_interpreter=/usr/bin/python3 "+
			"ansible_ssh_common_args='-F %s'\n", l.config)
	if err := os.WriteFile(inventory, []byte(text), 0o600); err != nil {
		return err
	}
	for _, pipelining := range []string{"False", "True"} {
		env := []string{"ANSIBLE_PIPELINING=" + pipelining, "ANSIBLE_NOCOLOR=1",
			"ANSIBLE_DEPRECATION_WARNINGS=0", "ANSIBLE_HOME=" + l.file("ansible"),
			"ANSIBLE_LOCAL_TEMP=" + l.file("ansible/tmp"), "PATH=/usr/bin:/bin"}
		module := func(want string, args ...string) func() error {
			return func() error {
				o := l.runWith(env, "", append([]string{"ansible", "-i", inventory, "all", "-m"},
					args...)...)
				if err := o.want(outcome{stdout: o.stdout, stderr: o.stderr}); err != nil {
					return err
				}
				if !strings.Contains(o.stdout, want) {
					return fmt.Errorf("%q says %s", args, brief(o.stdout))
				}
				return nil
			}
		}
		if err := all(
			module(`"ping": "pong"`, "ping"),
			module("rc=0 >>\none two", "shell", "-a", "echo one two"),
			module("CHANGED", "copy", "-a", "src="+l.up+" dest=/root/ansible"+pipelining),
			func() error { return l.arrived("ansible" + pipelining) },
			module("CHANGED", "fetch", "-a", "flat=yes src=/root/ansible"+pipelining+" dest="+
				l.file("ansible"+pipelining)),
			func() error { return l.same("ansible" + pipelining) }); err != nil {
			return fmt.Errorf("pipelining %s: %w", pipelining, err)
		}
	}
	return nil
}
