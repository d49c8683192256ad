package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// faultHost is an existing machine: a real sshd on the loopback address, with its own home
// directory.
type faultHost struct {
	t                     *testing.T
	dir, port, print, uri string
	cmd                   *exec.Cmd
}

func newFaultHost(t *testing.T) *faultHost {
	t.Helper()
	h := &faultHost{t: t, dir: filepath.Join(t.TempDir(), "host")}
	if err := os.MkdirAll(h.dir+"/home", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"hostkey", "id"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f",
			h.dir+"/"+key).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	out, err := exec.Command("ssh-keygen", "-lf", h.dir+"/hostkey.pub").Output()
	if err != nil {
		t.Fatal(err)
	}
	h.print = strings.Fields(string(out))[1]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, h.port, _ = net.SplitHostPort(l.Addr().String())
	l.Close()
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	h.uri = "ssh://" + who.Username + "@127.0.0.1:" + h.port
	config := []string{"Port " + h.port, "ListenAddress 127.0.0.1", "HostKey " + h.dir + "/hostkey",
		"AuthorizedKeysFile " + h.dir + "/id.pub", "StrictModes no", "PidFile none", "UsePAM no",
		"SetEnv HOME=" + h.dir + "/home", "PrintMotd no", "PrintLastLog no", "MaxStartups 100",
		"Subsystem sftp internal-sftp"}
	if err := os.WriteFile(h.dir+"/sshd_config", []byte(strings.Join(config, "\n")+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.MkdirAll("/run/sshd", 0o755) // required as root
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.down)
	return h
}

// up starts sshd and waits until it answers.
func (h *faultHost) up() error {
	h.cmd = exec.Command("/usr/sbin/sshd", "-D", "-f", h.dir+"/sshd_config", "-E", h.dir+"/log")
	if err := h.cmd.Start(); err != nil {
		return fmt.Errorf("openssh-server is not here: scripts/setup test installs it: %w", err)
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for range 1000 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
		if err == nil {
			return conn.Close()
		}
		<-look.C
	}
	return fmt.Errorf("sshd does not answer")
}

// down ends sshd and its connections.
func (h *faultHost) down() {
	_ = exec.Command("pkill", "-9", "-P", fmt.Sprint(h.cmd.Process.Pid)).Run() // there may be none
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// faults of the host; its link comes back after a second
func (h *faultHost) faults() []fault {
	cut := func(also func()) func(*faultRound) error {
		return func(*faultRound) error {
			h.down()
			also()
			away := time.NewTimer(time.Second)
			defer away.Stop()
			<-away.C
			return h.up()
		}
	}
	return []fault{
		{name: "host link cut", cause: cut(func() {}), survives: true},
		{name: "host rebooted", cause: cut(func() {
			// otherwise nothing is lost
			_ = exec.Command("pkill", "-9", "-f", "sandboxd-guest host "+h.dir+"/home").Run()
		}), restarts: true},
	}
}

// hosts plays rounds on a host that is added by SSH.
func (f *faultMatrix) hosts(h *faultHost, count int) {
	faults := h.faults()
	for i := range count {
		fault := faults[i%len(faults)]
		r := &faultRound{f: f, fault: fault, phase: phases[(i+i/len(faults))%len(phases)],
			sandbox: fmt.Sprintf("h%d", i)}
		dir := filepath.Join(f.m.dir, r.sandbox)
		r.file = filepath.Join(dir, "ran")
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			err = r.control("add " + r.sandbox + " " + h.uri + " --identity " + h.dir +
				"/id --accept " + h.print)
		}
		if err == nil {
			err = r.identify()
		}
		if err == nil {
			err = r.play(callers)
		}
		if err != nil {
			f.t.Errorf("%s, %s: %v", fault.name, r.phase, err)
		}
		if err := r.control("rm -f " + r.sandbox); err != nil {
			f.t.Errorf("%s: %v", fault.name, err)
		}
	}
}

// engine plays rounds on an engine that is killed and started again.
func (f *faultMatrix) engine(d *dockerd, count int) {
	killed := fault{name: "engine restarted", alone: true, cause: func(*faultRound) error {
		d.end(syscall.SIGKILL)
		d.start()
		return nil
	}}
	for i := range count {
		r := &faultRound{f: f, fault: killed, phase: phases[(i+1)%len(phases)],
			sandbox: fmt.Sprintf("e%d", i)}
		err := r.make()
		if err == nil {
			err = r.play(callers)
		}
		if err != nil {
			f.t.Errorf("%s, %s: %v", killed.name, r.phase, err)
		}
		if err := r.control("rm -f " + r.sandbox); err != nil {
			f.t.Errorf("%s: %v", killed.name, err)
		}
	}
}
