package sshd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Clients other than OpenSSH, with the algorithms that they choose.

func TestDropbear(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	mustRun(t, w, "dropbearconvert", "openssh", "dropbear", w.key("alice"), w.file("dropbear_key"))
	args := []string{"-y", "-y", "-i", w.file("dropbear_key"), "-p", w.port, "demo@127.0.0.1"}
	got := outcome(t, w.command(need(t, "dbclient"),
		append(args, "cat; echo wrong >&2; exit 7")...), "x\n")
	if got.exit != 7 || got.stdout != "x\n" || !strings.Contains(got.stderr, "wrong\n") {
		t.Errorf("got %+v", got)
	}
}

func TestPutty(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	want := randomFile(t, w.file("up"), 1<<20)
	// plink cannot read OpenSSH's key format.
	mustRun(t, w, "puttygen", w.key("alice"), "-O", "private", "-o", w.file("key.ppk"))
	print := strings.Fields(mustRun(t, w, "ssh-keygen", "-l", "-f", w.hostKeyFile()))[1]
	args := []string{"-batch", "-hostkey", print, "-i", w.file("key.ppk"), "-P", w.port}
	got := outcome(t, w.command(need(t, "plink"), append(args, "demo@127.0.0.1", "cat; exit 7")...),
		"x\n")
	if got.exit != 7 || got.stdout != "x\n" {
		t.Errorf("plink: got %+v", got)
	}
	mustRun(t, w, "pscp", append(args, "-q", w.file("up"), "demo@127.0.0.1:pscp")...)
	mustRun(t, w, "pscp", append(args, "-q", "demo@127.0.0.1:pscp", w.file("down"))...)
	sameFile(t, w.file("down"), want)
	got = outcome(t, w.command(need(t, "psftp"),
		append(args, "-b", "/dev/stdin", "demo@127.0.0.1")...), "get pscp down2\n")
	if got.exit != 0 {
		t.Fatalf("psftp: got %+v", got)
	}
	sameFile(t, w.file("down2"), want)
}

// hostKeyFile returns a file with the gateway's public key.
func (w *world) hostKeyFile() string {
	w.t.Helper()
	path := w.file("host.pub")
	if err := os.WriteFile(path, []byte(keyLine("", w.host.PublicKey())), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func TestCurl(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	want := randomFile(t, w.file("up"), 1<<20)
	opts := []string{"-sS", "--user", "demo:", "--key", w.key("alice"), "--pubkey",
		w.key("alice") + ".pub"}
	// curl reads known hosts from the home of its user.
	if err := os.Mkdir(w.file(".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile(w.file("known_hosts"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.file(".ssh/known_hosts"), known, 0o600); err != nil {
		t.Fatal(err)
	}
	remote := filepath.Join(shortDir(t), "file")
	mustRun(t, w, "curl", append(opts, "-T", w.file("up"), "sftp://127.0.0.1:"+w.port+remote)...)
	sameFile(t, remote, want)
	mustRun(t, w, "curl", append(opts, "-o", w.file("sftp"), "sftp://127.0.0.1:"+w.port+remote)...)
	sameFile(t, w.file("sftp"), want)
	mustRun(t, w, "curl", append(opts, "-o", w.file("scp"), "scp://127.0.0.1:"+w.port+remote)...)
	sameFile(t, w.file("scp"), want)
}

const paramikoExec = `
import paramiko, sys
c = paramiko.SSHClient()
c.load_host_keys(sys.argv[3])
c.connect("127.0.0.1", port=int(sys.argv[1]), username="demo", key_filename=sys.argv[2], allow_agent=False, look_for_keys=False)
i, o, e = c.exec_command("cat; echo wrong >&2; exit 7")
i.write("x\n"); i.channel.shutdown_write()
assert o.read() == b"x\n"
assert e.read() == b"wrong\n"
assert o.channel.recv_exit_status() == 7
i, o, e = c.exec_command("test -t 1 && exit 9", get_pty=True)
assert o.channel.recv_exit_status() == 9
s = c.open_sftp()
with s.open("paramiko", "wb") as f: f.write(b"a\0b" * 100000)
with s.open("paramiko", "rb") as f: assert f.read() == b"a\0b" * 100000
c.close()
print("ok")
`

// python is Debian's, which has the packages of scripts/setup.
const python = "/usr/bin/python3"

func TestParamiko(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	if got := mustRun(t, w, python, "-c", paramikoExec, w.port, w.key("alice"),
		w.file("known_hosts")); got != "ok\n" {
		t.Errorf("got %q", got)
	}
}

func TestLftp(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	want := randomFile(t, w.file("up"), 1<<20)
	connect := `set sftp:connect-program "ssh -a -x ` + strings.Join(w.sshOptions("alice"), " ") +
		`"; open -u demo, sftp://127.0.0.1:` + w.port
	mustRun(t, w, "lftp", "-c", connect+"; put up -o lftp; get lftp -o down")
	sameFile(t, w.file("down"), want)
}
