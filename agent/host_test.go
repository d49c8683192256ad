package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gliderssh "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// guestBinary is the real guest binary, built once.
var guestBinary = sync.OnceValues(func() (string, error) { return openssh.Guest(world.dir) })

func guestOf(arch string) (string, error) {
	if arch != runtime.GOARCH {
		return "", fmt.Errorf("there is no guest for %s", arch)
	}
	return guestBinary()
}

// noGuest stands for an installation without guest binaries.
func noGuest(arch string) (string, error) {
	return "", fmt.Errorf("no guest for %s is installed", arch)
}

// known writes a known_hosts file with a key for an address.
func known(t testing.TB, addr string, key ssh.PublicKey) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(knownhosts.Line([]string{addr}, key)+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// hostOptions log in to a server.
func hostOptions(t testing.TB, s *openssh.Server) agent.Options {
	t.Helper()
	return agent.Options{
		Identity:   s.Identity,
		KnownHosts: []string{known(t, s.Addr(), s.Key.PublicKey())},
		Host:       agent.HostOptions{Guest: guestOf},
	}
}

// dialHost connects to a host and checks the tier. The test's end removes everything from the host.
func dialHost(t testing.TB, uri string, o agent.Options, tier string) *agent.Client {
	t.Helper()
	c, err := agent.Dial(bounded(t), uri, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if got, _ := c.Tier(); got != agent.TierGuest {
			c.Close()
			return
		}
		if err := c.Remove(ctx); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Errorf("remove: %v", err)
		}
	})
	if tier != agent.TierGuest { // whose terminals the guest makes
		openssh.NeedTerminals(t)
	}
	if got, why := c.Tier(); got != tier {
		t.Fatalf("tier %s (%s), want %s", got, why, tier)
	}
	return c
}

// tiers are the tiers that a machine with OpenSSH can have.
var tiers = []struct {
	tier  string
	basis []agent.Basis
	o     agent.HostOptions
}{
	{
		agent.TierGuest,
		[]agent.Basis{agent.BasisProcess, agent.BasisMark},
		agent.HostOptions{Guest: guestOf},
	},
	{agent.TierMarks, []agent.Basis{agent.BasisMark}, agent.HostOptions{Guest: noGuest}},
	{agent.TierScreen, []agent.Basis{agent.BasisScreen}, agent.HostOptions{Tier: agent.TierScreen}},
}

// A host has the same Shell as a sandbox, within the limits of its tier.
func TestHost(t *testing.T) {
	t.Parallel()
	for _, tt := range tiers {
		t.Run(tt.tier, func(t *testing.T) {
			server := openssh.Start(t, openssh.Settings{RC: "PS1='$ '\n"})
			o := hostOptions(t, server)
			o.Host = tt.o
			c := dialHost(t, server.URI(), o, tt.tier)
			if _, why := c.Tier(); tt.tier == agent.TierMarks &&
				!strings.Contains(why, "is installed: sessions are in this process") {
				t.Errorf("why: %q", why)
			}
			if c.Sandbox() != "127.0.0.1" {
				t.Errorf("name %q", c.Sandbox())
			}
			sh := attach(t, c, agent.ShellOptions{})
			knows := tt.tier != agent.TierScreen // exit codes

			res, err := sh.Run(bounded(t), "echo hello; (exit 3)")
			if err != nil || res.Ended != agent.EndedDone || res.Output != "hello\n" ||
				!slices.Equal(res.Basis, tt.basis) {
				t.Errorf("run: %s, basis %v, %v", describe(res), res.Basis, err)
			}
			if knows != (res.ExitCode != nil) || knows && *res.ExitCode != 3 {
				t.Errorf("exit code: %s", describe(res))
			}
			res, err = sh.Do(
				bounded(t),
				agent.Call{
					Command: "read -p 'Name? ' name; echo hello $name",
					Timeout: 20 * time.Second,
				},
			)
			if err != nil ||
				knows && res.Ended != agent.EndedWaiting && res.Ended != agent.EndedAttention {
				t.Errorf("question: %s, %v", describe(res), err)
			}
			if knows {
				if res, err = sh.Answer(bounded(t), "Ann"); err != nil ||
					!strings.HasSuffix(res.Output, "hello Ann\n") {
					t.Errorf("answer: %s, %v", describe(res), err)
				}
			} else if res, err = sh.Type(bounded(t), "Ann"); err != nil ||
				!strings.HasSuffix(res.Output, "hello Ann\n") {
				t.Errorf("type: %s, %v", describe(res), err)
			}
			if res, err = sh.Do(bounded(t), agent.Call{Command: "sleep 1000",
				Timeout: time.Second}); err != nil ||
				res.Ended != agent.EndedDeadline && knows {
				t.Errorf("sleep: %s, %v", describe(res), err)
			}
			if res, err = sh.Interrupt(bounded(t)); err != nil || res.Phase != agent.PhasePrompt {
				t.Errorf("interrupt: %s, %v", describe(res), err)
			}
			go func() { _, _ = sh.Run(bounded(t), "echo ready; sleep 0.2; echo ste''ady") }()
			if m, err := sh.Expect(bounded(t), agent.Text("steady\r\n")); err != nil ||
				!strings.Contains(m.Text, "ready\r\n") {
				t.Errorf("expect: %q, %v", m.Text, err)
			}
			if res, err = sh.Wait(bounded(t), agent.PhasePrompt); err != nil ||
				res.Phase != agent.PhasePrompt {
				t.Errorf("wait: %s, %v", describe(res), err)
			}
			if res, err = sh.Run(bounded(t), "cat"); err != nil || res.Phase == agent.PhasePrompt {
				t.Errorf("cat: %s, %v", describe(res), err)
			}
			if res, err = sh.Keys(bounded(t), "^D"); err != nil || res.Phase != agent.PhasePrompt {
				t.Errorf("keys: %s, %v", describe(res), err)
			}
			if screen, err := sh.Screen(bounded(t)); err != nil ||
				!strings.Contains(screen.Text, "steady") {
				t.Errorf("screen: %q, %v", screen.Text, err)
			}
			if err := sh.Take(bounded(t)); err != nil {
				t.Errorf("take: %v", err)
			}
			if err := sh.Give(bounded(t)); err != nil {
				t.Errorf("give: %v", err)
			}
			if res, err := sh.WaitKeyboard(bounded(t)); err != nil || res.TakenOver != nil {
				t.Errorf("wait for the keyboard: %s, %v", describe(res), err)
			}
			another := attach(t, c, agent.ShellOptions{Session: "build"})
			if res, err = another.Run(bounded(t), "echo another"); err != nil ||
				res.Output != "another\n" ||
				res.Session != "build" {
				t.Errorf("another session: %s, %v", describe(res), err)
			}

			var stdout strings.Builder
			if exit, err := c.Exec(bounded(t),
				agent.Cmd{Command: "echo out; echo err >&2; exit 9",
					Stdout: &stdout}); err != nil ||
				exit.Code != 9 ||
				stdout.String() != "out\n" {
				t.Errorf("exec: %+v, %v, %q", exit, err, stdout.String())
			}
			files, err := c.Files(bounded(t))
			if err != nil {
				t.Fatalf("files: %v", err)
			}
			defer files.Close()
			f, err := files.Create(server.Home + "/made")
			if err == nil {
				_, err = io.WriteString(f, "by sftp\n")
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			if res, err = sh.Run(bounded(t), "cat "+server.Home+"/made"); err != nil ||
				res.Output != "by sftp\n" {
				t.Errorf("a file: %s, %v", describe(res), err)
			}
		})
	}
}

// A restarted program finds its sessions of tier guest. Remove ends and removes everything.
func TestHostAgain(t *testing.T) {
	server := openssh.Start(t, openssh.Settings{})
	c := dialHost(t, server.URI(), hostOptions(t, server), agent.TierGuest)
	sh := attach(t, c, agent.ShellOptions{})
	res, err := sh.Run(bounded(t), "x=kept")
	done(t, res, err, 0)
	sh.Close()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = dialHost(t, server.URI(), hostOptions(t, server), agent.TierGuest)
	sh = attach(t, c, agent.ShellOptions{NoNew: true})
	res, err = sh.Run(bounded(t), "echo $x")
	if got := done(t, res, err, 0); got != "kept\n" {
		t.Errorf("output %q", got)
	}
	if err := c.Remove(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server.Home + "/.cache/sandboxd-guest"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was copied is left: %v", err)
	}
	if left := openssh.Processes(server.Home); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if _, err := c.Shell(bounded(t), ""); err == nil {
		t.Error("a removed client attaches")
	}
}

// hostProxied is a host behind a network that can be cut.
func hostProxied(
	t *testing.T,
	h agent.HostOptions,
	tier string,
) (*agent.Client, *openssh.Server, *proxy) {
	t.Helper()
	server := openssh.Start(t, openssh.Settings{})
	network := newProxy(t, server.Addr())
	addr := network.listener.Addr().String()
	o := agent.Options{
		Identity:   server.Identity,
		KnownHosts: []string{known(t, addr, server.Key.PublicKey())},
		Host:       h,
	}
	return dialHost(t, "ssh://"+server.User+"@"+addr, o, tier), server, network
}

// On tier guest, a command survives a broken connection: its output is complete, it ran once, and
// the shell resumes its attachment.
func TestHostLinkGuest(t *testing.T) {
	c, server, network := hostProxied(t, agent.HostOptions{Guest: guestOf}, agent.TierGuest)
	sh := attach(t, c, agent.ShellOptions{})
	res, err := sh.Run(bounded(t), "cd "+server.Home+"; n=0")
	done(t, res, err, 0)
	var stdout strings.Builder
	answer := make(chan error, 1)
	go func() {
		res, err = sh.Do(
			bounded(t),
			agent.Call{
				Command: "n=$((n+1)); echo begun; while [ ! -e go ]; do sleep 0.02; done; seq " +
					"20000; echo $n",
				Stdout:    &stdout,
				MaxOutput: -1,
			},
		)
		answer <- err
	}()
	if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
		t.Fatal(err)
	}
	network.setDown(true)
	network.cut()
	if err := os.WriteFile(server.Home+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := network.connections()
	for network.connections() == before { // it tries
		runtime.Gosched()
	}
	network.setDown(false)
	err = <-answer
	var want strings.Builder
	want.WriteString("begun\n")
	for i := range 20000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("1\n")
	if got := done(t, res, err, 0); got != want.String() {
		t.Errorf("%d bytes of output, want %d", len(got), want.Len())
	}
	if got := strings.ReplaceAll(stdout.String(), "\r\n", "\n"); got != want.String() {
		t.Errorf("%d bytes on Stdout, want %d", len(got), want.Len())
	}
	if exit, err := c.Exec(bounded(t), agent.Cmd{Command: "exit 4"}); err != nil || exit.Code != 4 {
		t.Errorf("exec: %+v, %v", exit, err)
	}
}

// On the other tiers a session ends with its connection. A waiting call returns immediately, with
// the output so far. The next command has a new shell.
func TestHostLinkLocal(t *testing.T) {
	t.Parallel()
	for _, tt := range tiers[1:] {
		t.Run(tt.tier, func(t *testing.T) {
			c, _, network := hostProxied(t, tt.o, tt.tier)
			sh := attach(t, c, agent.ShellOptions{})
			if _, err := sh.Run(bounded(t), "x=lost"); err != nil {
				t.Fatal(err)
			}
			type answer struct {
				res agent.Result
				err error
			}
			answers, expected := make(chan answer, 1), make(chan error, 1)
			go func() {
				res, err := sh.Run(bounded(t), "echo begun; sleep 1000")
				answers <- answer{res, err}
			}()
			if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := sh.Expect(bounded(t), agent.Text("never"))
				expected <- err
			}()
			network.setDown(true) // no reconnect: the call must not wait for one
			network.cut()
			a := <-answers
			if !isCode(a.err, agent.CodeLost) || a.res.Ended != agent.EndedDead ||
				!strings.Contains(a.res.Output, "begun\n") {
				t.Errorf("run: %s, %v, want lost", describe(a.res), a.err)
			}
			if st := sh.State(); st.Phase != agent.PhaseDead || st.Reason != "link" {
				t.Errorf("state %+v, want dead by its link", st)
			}
			if err := <-expected; !isCode(err, agent.CodeLost) {
				t.Errorf("expect: %v, want lost", err)
			}
			if res, err := sh.Run(bounded(t), "true"); !isCode(err, agent.CodeUnavailable) &&
				!isCode(err, agent.CodeLost) {
				t.Errorf("run without a network: %s, %v", describe(res), err)
			}
			network.setDown(false)
			res, err := sh.Run(bounded(t), `echo "<$x>"`)
			if err != nil || res.Output != "<>\n" ||
				!slices.Contains(res.Notes, "shell_restarted") {
				t.Errorf(
					"run again: %s, notes %v, %v; want a new shell",
					describe(res),
					res.Notes,
					err,
				)
			}
		})
	}
}

// Close ends running calls on a host.
func TestHostClose(t *testing.T) {
	for _, tt := range tiers[:2] {
		t.Run(tt.tier, func(t *testing.T) {
			server := openssh.Start(t, openssh.Settings{})
			o := hostOptions(t, server)
			o.Host = tt.o
			c := dialHost(t, server.URI(), o, tt.tier)
			sh := attach(t, c, agent.ShellOptions{})
			ended := make(chan error, 1)
			go func() { _, err := sh.Run(bounded(t), "echo begun; sleep 1000"); ended <- err }()
			if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err == nil {
				t.Error("a call on a closed client succeeds")
			}
			if _, err := c.Shell(bounded(t), ""); err == nil {
				t.Error("a closed client attaches")
			}
			if tt.tier == agent.TierGuest {
				c = dialHost(t, server.URI(), o, tt.tier)
				if st := attach(t, c,
					agent.ShellOptions{NoNew: true}).State(); st.Phase != agent.PhaseRunning {
					t.Errorf("state %+v, want what ran to go on", st)
				}
			}
		})
	}
}

// Network gear has no bash, no commands and no files.
func TestHostRouter(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	key := openssh.KeyPair(t, filepath.Join(t.TempDir(), "host"))
	server := &gliderssh.Server{
		Handler: func(s gliderssh.Session) {
			if _, _, isPty := s.Pty(); !isPty || s.RawCommand() != "" {
				_ = s.Exit(1)
				return
			}
			cli := term.NewTerminal(s, "core-sw1>")
			for {
				line, err := cli.ReadLine()
				if err != nil {
					return
				}
				fmt.Fprintf(cli, "%s: 42\n", strings.TrimPrefix(line, "show "))
			}
		},
		PasswordHandler: func(_ gliderssh.Context, password string) bool {
			return password == "cisco"
		},
	}
	server.AddHostKey(key)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Close(); <-served }()

	asked := 0
	o := agent.Options{
		Signers:    []ssh.Signer{},
		KnownHosts: []string{known(t, l.Addr().String(), key.PublicKey())},
		Host: agent.HostOptions{
			Password: func(_ context.Context, user, host string) (string, error) {
				asked++
				if user != "admin" || host != l.Addr().String() {
					t.Errorf("asked for the password of %s at %s", user, host)
				}
				return "cisco", nil
			},
		},
	}
	c := dialHost(t, "ssh://admin@"+l.Addr().String(), o, agent.TierScreen)
	res, err := attach(t, c, agent.ShellOptions{}).Run(bounded(t), "show version")
	if err != nil || res.Output != "version: 42\n" || res.ExitCode != nil {
		t.Errorf("%s, %v", describe(res), err)
	}
	if _, err := c.Files(bounded(t)); err == nil ||
		!strings.Contains(
			err.Error(), "it has no SFTP, and its shell lacks the tools to serve files") {
		t.Errorf("a router's files: %v", err)
	}
	if asked != 1 {
		t.Errorf("asked for the password %d times, want once", asked)
	}
}
