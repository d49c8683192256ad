package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// What may stand behind the gateway.
const (
	container = "container"
	host      = "host"
)

// machine is a host for a sandbox: OpenSSH's server as Debian configures it, on the loopback, with
// keys of its own and a home of its own in the place of the account's.
type machine struct {
	URI      string // ssh://…, for sandboxd add
	Identity string // file of the key that may log in
	Accept   string // fingerprint of the host's key

	cmd *exec.Cmd
}

// As Debian has it, without PAM: that would keep records of logins on the machine. MaxSessions is
// sshd's default.
const machineConfig = `Port %s
ListenAddress 127.0.0.1
HostKey /mnt/host
AuthorizedKeysFile /mnt/id.pub
StrictModes no
PidFile none
UsePAM no
PermitRootLogin prohibit-password
MaxStartups 200
X11Forwarding yes
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
`

// startMachine starts one below dir, which it has for its /mnt. A private one also has processes,
// /tmp and /run of its own, and all that was started there ends with it; else a client and what it
// starts there see the same files and processes.
func startMachine(ctx context.Context, dir string, private bool) (_ *machine, err error) {
	if os.Geteuid() != 0 {
		return nil,
			errNotHere{"needs root, to put a home of the machine's own in the place of the " +
				"account's"}
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "home")
	if err := errors.Join(os.MkdirAll(home, 0o700), os.WriteFile(filepath.Join(dir, "sshd_config"),
		fmt.Appendf(nil, machineConfig, port), 0o600)); err != nil {
		return nil, err
	}
	for _, name := range []string{"id", "host"} {
		if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, name)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	out, err := exec.CommandContext(ctx, "ssh-keygen", "-l", "-f",
		filepath.Join(dir, "host.pub")).Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 2 {
		return nil, fmt.Errorf("ssh-keygen -l: %w: %s", err, out)
	}
	log := filepath.Join(dir, "log")
	argv := []string{"unshare", "--mount", "--propagation", "private"}
	setup := `mount --bind "$0" /mnt && mount --bind /mnt/home ~root && mkdir -p /run/sshd && `
	if private {
		argv = append(argv, "--pid", "--fork", "--kill-child", "--mount-proc")
		setup += `mount -t tmpfs -o mode=1777 tmpfs /tmp && mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/sshd && `
	}
	argv = append(argv, "sh", "-c", setup+`exec /usr/sbin/sshd -D -f /mnt/sshd_config -E /mnt/log`,
		dir)
	m := &machine{URI: "ssh://root@127.0.0.1:" + port, Identity: filepath.Join(dir, "id"),
		Accept: fields[1]}
	m.cmd = exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...)
	m.cmd.Dir = "/"
	errs, err := os.Create(log + ".start")
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	m.cmd.Stderr = errs
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	err = eventually(ctx, func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		m.end()
		first, _ := os.ReadFile(log + ".start") // for the message only
		second, _ := os.ReadFile(log)
		return nil, fmt.Errorf("the host does not start: %w\n%s%s", err, first, second)
	}
	return m, nil
}

// end stops it. Processes of a machine that is not private stay.
func (m *machine) end() {
	// Unshare obeys no other signal while a machine of its own processes runs.
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait() // by the signal
}
