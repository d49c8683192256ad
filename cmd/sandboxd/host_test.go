package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// sshdCmd starts Debian's sshd on the loopback address until the story ends, with keys and a home
// directory below DIR. A second call with the same DIR starts it again on its port. It sets
// $HOSTURI to its address, $FINGERPRINT to its host key, and $SSHD_PID to its process.
//
//	        sshd DIR [LINE OF sshd_config]…
//		sshd DIR [LINE OF sshd_config]…
func sshdCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: sshd DIR [LINE]…")
	}
	dir := ts.MkAbs(args[0])
	port := ts.Getenv("SSHD_PORT")
	if _, err := os.Stat(dir); err != nil {
		ts.Check(os.MkdirAll(dir+"/home", 0o700))
		for _, key := range []string{"hostkey", "id"} {
			ts.Check(ts.Exec("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f",
				dir+"/"+key))
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		_, port, _ = net.SplitHostPort(l.Addr().String())
		l.Close()
	}
	who, err := user.Current()
	ts.Check(err)
	config := append(args[1:len(args):len(args)], "Port "+port, "ListenAddress 127.0.0.1",
		"HostKey "+dir+"/hostkey", "AuthorizedKeysFile "+dir+"/id.pub",
		"StrictModes no", "PidFile none", "UsePAM no", "SetEnv HOME="+dir+"/home", "PrintMotd no",
		"PrintLastLog no", "Subsystem sftp internal-sftp")
	ts.Check(os.WriteFile(dir+"/sshd_config", []byte(strings.Join(config, "\n")+"\n"), 0o600))
	_ = os.MkdirAll("/run/sshd", 0o755) // required as root
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-f", dir+"/sshd_config", "-E", dir+"/log")
	if err := cmd.Start(); err != nil {
		ts.Fatalf("openssh-server is not here: scripts/setup test installs it: %v", err)
	}
	ts.Defer(func() {
		_ = cmd.Process.Kill() // a story may have done so
		_ = cmd.Wait()
	})
	for began := time.Now(); ; {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			conn.Close()
			break
		}
		if time.Since(began) > time.Minute {
			ts.Fatalf("sshd does not answer: %s", ts.ReadFile(dir+"/log"))
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // another program's doing
	}
	out, err := exec.Command("ssh-keygen", "-lf", dir+"/hostkey.pub").Output()
	ts.Check(err)
	ts.Setenv("FINGERPRINT", strings.Fields(string(out))[1])
	ts.Setenv("HOSTURI", "ssh://"+who.Username+"@127.0.0.1:"+port)
	ts.Setenv("SSHD_PORT", port)
	ts.Setenv("SSHD_PID", fmt.Sprint(cmd.Process.Pid))
}
