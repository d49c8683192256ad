package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// suite is where Debian's openssh-tests puts OpenSSH's regression suite.
const suite = "/usr/lib/openssh/regress"

// regressLimit is the longest that one script may take; rekey takes two minutes.
const regressLimit = 5 * time.Minute

// edit is a change to a script without which it would test what only sshd has. why stands in the
// table.
type edit struct {
	old, new string // old must be there: an edit that no longer fits is an error
	why      string
}

// script is one of the suite that applies.
type script struct {
	name  string
	edits []edit
	with  map[string][]edit // more, by what is behind
}

// puttyUser names the sandbox in PuTTY's session, which would else be that of the machine's own
// user.
var puttyUser = edit{`if test "x$REGRESS_INTEROP_PUTTY"`, `echo "UserName=$USER" >>$OBJ/.putty/sessions/localhost_proxy
if test "x$REGRESS_INTEROP_PUTTY"`, "the session names the sandbox"}

// applies are the scripts that a server must pass which is not sshd itself.
var applies = []script{
	{name: "connect"},
	{name: "proxy-connect", edits: []edit{{`${USER}:style@`, `${USER}@`, "no login styles"}},
		with: map[string][]edit{
			container: {{`!= "UNKNOWN 65535 UNKNOWN 65535"`, `!= "127.0.0.1 0 127.0.0.1 22"`,
				"`SSH_CONNECTION` in a sandbox does not show the client's address"}},
			host: {{`"$SSH_CONNECTION" != "UNKNOWN 65535 UNKNOWN 65535"`,
				`"${SSH_CONNECTION#127.0.0.1 * 127.0.0.1 }" = "$SSH_CONNECTION"`,
				"`SSH_CONNECTION` on a host has the gateway's address, not the client's"}}}},
	{name: "connect-privsep"},
	{name: "connect-uri"},
	{name: "proto-version"},
	{name: "proto-mismatch"},
	{name: "exit-status"},
	{name: "exit-status-signal"},
	{name: "transfer"},
	{name: "rekey", edits: []edit{
		{"for s in 16 1k 128k 256k; do\n\tverbose \"server rekeylimit",
			"for s in ; do\n\tverbose \"server rekeylimit",
			"the server's rekey limit is not configurable"},
		{"for s in 5 10; do\n\tverbose \"server rekeylimit",
			"for s in ; do\n\tverbose \"server rekeylimit", ""},
		{"for size in 16 1k 1K 1m 1M 1g 1G 4G 8G", "for size in ", ""}}},
	{name: "stderr-data"},
	{name: "stderr-after-eof"},
	{name: "broken-pipe"},
	{name: "try-ciphers"},
	{name: "yes-head"},
	{name: "login-timeout", edits: []edit{{"telnet 127.0.0.1", "$NC 127.0.0.1",
		"the suite's netcat in place of telnet"}}},
	{name: "agent", edits: []edit{
		{"estragon", "regress", "a certificate's first principal is the login name"}}},
	{name: "keyscan"},
	{name: "key-options", edits: []edit{
		{`if [ "$r" != "bar" ]; then` + "\n\tfail \"key option environment",
			`if false; then` + "\n\tfail \"key option environment", "no `environment=`"},
		{"echo 'PermitUserEnvironment yes' >> $OBJ/sshd_proxy", "", ""}}},
	{name: "scp3"},
	{name: "sftp-uri", edits: []edit{{` -oForceCommand="internal-sftp -d /"`, "",
		"no ForceCommand: the paths are absolute anyway"}}},
	{name: "dynamic-forward"},
	{name: "forwarding"},
	{name: "multiplex", edits: []edit{{"_XXX_TEST", "LC_TEST",
		"accepted variables: `LANG LC_* TERM COLORTERM GIT_PROTOCOL`"}}},
	{name: "brokenkeys"},
	{name: "percent", edits: []edit{
		{"USER=`id -u -n`", "", ""},
		{"trial $i '%u' $USER", "trial $i '%u' $LOGNAME", "`%u` is the machine's own user"},
		{"$REMUSER/$USER\"", "$REMUSER/$LOGNAME\"", ""},
		{"HASH=\"\"", "HASH=; HOME=$(getent passwd $LOGNAME | cut -d: -f6)", ""}}},
	{name: "localcommand"},
	{name: "portnum"},
	{name: "host-expand"},
	{name: "keytype"},
	{name: "kextype"},
	{name: "cert-file"},
	{name: "integrity"},
	{name: "knownhosts"},
	{name: "knownhosts-command"},
	{name: "putty-transfer", edits: []edit{puttyUser}},
	{name: "putty-ciphers", edits: []edit{puttyUser}},
	{name: "putty-kex", edits: []edit{puttyUser}},
}

// doesNotApply are the others, with the reason.
var doesNotApply = []struct{ why, scripts string }{
	{"reaches no server: it tests the client, the agent or ssh-keygen alone",
		"agent-getpeereid agent-ptrace agent-subprocess agent-timeout " +
			"agent-pkcs11 cfginclude keygen-change keygen-comment keygen-convert keygen-knownhosts " +
			"keygen-moduli keygen-sshfp krl scp scp-uri sftp sftp-badcmds " +
			"sftp-batch sftp-cmds sftp-glob sftp-perm sshcfgparse sshsig"},
	{"tests the language of sshd_config, which sandboxd does not have",
		"addrmatch cfgmatch cfgmatchlisten cfgparse servcfginclude"},
	{"tests a setting of sshd_config (AcceptEnv, Banner, AllowUsers, ExposeAuthInfo, " +
		"ChannelTimeout, UnusedConnectionTimeout, " +
		"AuthenticationMethods, PubkeyAcceptedAlgorithms, AllowTcpForwarding, ForceCommand, " +
		"ChrootDirectory); what a client may do is said in " +
		"its line of authorized_keys",
		"envpass banner allow-deny-users authinfo channel-timeout connection-timeout multipubkey " +
			"limit-keytype forward-control forcecommand sftp-chroot"},
	{"compares the output of ExposeAuthInfo, with host certificates", "agent-restrict"},
	{"tests AuthorizedPrincipalsFile, AuthorizedKeysCommand, TrustedUserCAKeys or RevokedKeys; " +
		"authorities are in authorized_keys",
		"cert-userkey keys-command principals-command"},
	{"tests unsupported host keys: certificates, in an agent, rotated by `hostkeys-00@openssh.com`",
		"cert-hostkey hostkey-agent hostkey-rotate"},
	{"tests an unsupported login: only keys and certificates are accepted", "hostbased"},
	{"tests an unsupported key exchange: group exchange", "dhgex"},
	{"tests sshd's own process: restart by SIGHUP, running itself again", "reconfigure reexec"},
	{"needs a domain with DNSSEC", "sshfp-connect"},
	{"needs SHA-1 signatures (`ssh-rsa`), which are rejected: Debian 12's conch has no others " +
		"for RSA", "conch-ciphers"},
}

// regress runs the suite, script after script: they share ports.
func regress(ctx context.Context, r *report) error {
	if !slices.ContainsFunc(applies, func(s script) bool { return r.wants("openssh", s.name) }) {
		return nil
	}
	dir, err := os.MkdirTemp("", "sandboxd-interop-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := os.Stat(suite); err != nil {
		return fmt.Errorf("%w; scripts/setup interop installs openssh-tests", err)
	}
	obj := filepath.Join(dir, "regress")
	if out, err := exec.CommandContext(ctx, "cp", "-a", suite, obj).CombinedOutput(); err != nil {
		return fmt.Errorf("copy of the suite: %w: %s", err, out)
	}
	if out, err := exec.CommandContext(ctx, "scripts/go", "test", "-C", "scripts", "-c", "-o",
		filepath.Join(dir, "sshd"), "./interop/sshd").CombinedOutput(); err != nil {
		return fmt.Errorf("build of the stand-in for sshd: %w: %s", err, out)
	}
	if err := wrappers(ctx, dir); err != nil {
		return err
	}
	var env []string
	if r.behind == host {
		m, err := startMachine(ctx, filepath.Join(dir, "machine"), false)
		if err != nil {
			return err
		}
		defer m.end()
		env = []string{"SANDBOXD_INTEROP_HOST=" + m.URI + " " + m.Identity + " " + m.Accept}
	}
	for _, s := range applies {
		if !r.wants("openssh", s.name) || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		err := s.run(ctx, dir, obj, r.behind, env)
		r.add(result{behind: r.behind, group: "openssh", name: s.name, err: err,
			took: time.Since(began), note: s.note()})
	}
	return nil
}

func (s script) note() string {
	var whys []string
	for _, e := range slices.Concat(s.edits, s.with[container], s.with[host]) {
		if e.why != "" {
			whys = append(whys, e.why)
		}
	}
	return strings.Join(whys, "; ")
}

//go:embed ssh-wrapper
var sshWrapper string

// wrappers makes the programs that the suite finds in place of the machine's: an ssh that states
// the gateway's algorithms, and a whoami, for root is no name of a sandbox.
func wrappers(ctx context.Context, dir string) error {
	for _, kind := range []string{"kex", "cipher", "mac"} {
		out, err := exec.CommandContext(ctx, filepath.Join(dir, "sshd"), "-Q", kind).Output()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, kind), out, 0o600)
		}
		if err != nil {
			return fmt.Errorf("what the gateway offers: %w", err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "path"), 0o700); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "ssh"), []byte(sshWrapper), 0o700),
		os.WriteFile(filepath.Join(dir, "path", "whoami"), []byte("#!/bin/sh\necho regress\n"),
			0o700))
}

var failure = regexp.MustCompile(`(?m)^(FAIL|FATAL): .*$`)

var skipped = regexp.MustCompile(`(?mi)^(skipped|.*not enabled).*$`)

func (s script) run(ctx context.Context, dir, obj, behind string, env []string) error {
	from := filepath.Join(suite, s.name+".sh")
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	for _, e := range slices.Concat(s.edits, s.with[behind]) {
		if !strings.Contains(string(text), e.old) {
			return fmt.Errorf("%s no longer has %q", from, e.old)
		}
		text = []byte(strings.ReplaceAll(string(text), e.old, e.new))
	}
	path := filepath.Join(obj, s.name+".sh")
	if err := os.WriteFile(path, text, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, regressLimit)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "test-exec.sh", obj, path)
	c.Dir = obj
	// A group of its own, which is ended as a whole: scripts leave clients behind when they fail.
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	me, err := user.Current()
	if err != nil {
		return err
	}
	c.Env = append(slices.Clone(env), "PATH="+filepath.Join(dir, "path")+
		":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME="+dir, "TMPDIR="+dir, "USER=regress", "LOGNAME="+me.Username, "LC_ALL=C",
		"TEST_SHELL=sh", "BUILDDIR="+obj,
		"TEST_SSH_SSH="+filepath.Join(dir, "ssh"), "TEST_SSH_SSHD="+filepath.Join(dir, "sshd"),
		"TEST_SSH_SFTPSERVER=/usr/lib/openssh/sftp-server", "TEST_SSH_PLINK=plink",
		"TEST_SSH_PUTTYGEN=puttygen",
		"TEST_SSH_UNSAFE_PERMISSIONS=1")
	log := filepath.Join(dir, s.name+".log")
	out, err := os.Create(log) // a file: what stays in the background must not hold us up
	if err != nil {
		return err
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	failures := filepath.Join(obj, "failed-regress.log") // which the suite appends to
	_ = os.Remove(failures)
	err = c.Run()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM) // whatever is left
	}
	said, readErr := os.ReadFile(log)
	switch {
	case readErr != nil:
		return readErr
	case err != nil:
		whys, _ := os.ReadFile(failures) // there if it got as far as that
		return fmt.Errorf("%w\n%s\n%s", err,
			strings.Join(failure.FindAllString(string(whys), 20), "\n"), tail(string(said), 5))
	case skipped.Match(said):
		return fmt.Errorf("it skips itself: %s", skipped.Find(said))
	}
	return nil
}

// tail is the last n lines of a text.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
