//go:build linux

package guest

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pod is a guest that waits for its configuration, and then for connections.
type pod struct {
	keys
	in      io.WriteCloser
	address string
	cmd     *exec.Cmd
	log     bytes.Buffer
	waited  chan error
}

func newPod(t *testing.T) *pod {
	t.Helper()
	p := &pod{keys: newKeys(t), address: "unix:@sandboxd-test-" + rand.Text(),
		waited: make(chan error, 1)}
	p.cmd = unshare(t, "pod")
	p.cmd.Stderr = &p.log
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.waited <- p.cmd.Wait() }()
	t.Cleanup(func() {
		endUnshare(p.cmd, p.waited)
		if t.Failed() {
			t.Logf("the guest's log:\n%s", p.log.String())
		}
	})
	return p
}

// configure sends the configuration, as the daemon does: it ends the line of an earlier one.
func (p *pod) configure(t *testing.T) {
	t.Helper()
	line, err := json.Marshal(wire.GuestConfig{Version: wire.Version, HostKey: p.hostPEM,
		ClientKey: p.authorized, Name: "demo", Listen: []string{p.address},
		Authorities: "of the host\n"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(p.in, "\n%s\n", line); err != nil {
		t.Fatal(err)
	}
	await(t, "the guest listens", func() bool {
		conn, err := net.Dial("unix", strings.TrimPrefix(p.address, "unix:"))
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

func (p *pod) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", strings.TrimPrefix(p.address, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A daemon that ended in the middle of the configuration does not keep the next one out, and
// another line after it changes nothing.
func TestPodIsConfiguredOnce(t *testing.T) {
	p := newPod(t)
	if _, err := io.WriteString(p.in, `{"host_key": "of a daemon that en`); err != nil {
		t.Fatal(err)
	}
	p.configure(t)
	if got := execute(t, p.login(t, p.dial(t)), "echo $PPID $USER", ""); got.Out != "1 root\n" {
		t.Errorf("%+v", got)
	}
	other := newKeys(t)
	line, _ := json.Marshal(wire.GuestConfig{Version: wire.Version, HostKey: other.hostPEM,
		ClientKey: other.authorized, Listen: []string{p.address + "2"}})
	_, _ = p.in.Write(append(line, '\n')) // nobody reads
	if got := execute(t, p.login(t, p.dial(t)), "echo same", ""); got.Out != "same\n" {
		t.Errorf("%+v", got)
	}
}

// More authorities follow those of the configuration.
func TestAuthorities(t *testing.T) {
	p := newPod(t)
	p.configure(t)
	client := p.login(t, p.dial(t))
	order(t, client, wire.Control{Do: "hello"})
	const look = "cat " + wire.AuthoritiesFile + "; stat -c %a " + wire.AuthoritiesFile
	if got := execute(t, client, look, ""); got.Out != "of the host\n444\n" {
		t.Errorf("%+v", got)
	}
	for _, more := range []string{"second\n", "", "third\n"} {
		if r := order(t, client, wire.Control{Do: "trust", Authorities: more}); r.Error != nil {
			t.Fatalf("%+v", r)
		}
		if got := execute(t, client, look, ""); got.Out != "of the host\n"+more+"444\n" {
			t.Errorf("%+v", got)
		}
	}
	// The sandbox's root may remove the directory.
	execute(t, client, "rm -r /run/.sandboxd; touch /run/.sandboxd", "")
	if r := order(t, client, wire.Control{Do: "trust", Authorities: "x"}); r.Error == nil ||
		r.Error.Code != wire.CodeUnavailable {
		t.Errorf("%+v", r)
	}
}

// Silent connections, as any program of the sandbox can make, do not keep the daemon out, and do
// not end connections that have logged in.
func TestSilentCallers(t *testing.T) {
	p := newPod(t)
	p.configure(t)
	first := p.login(t, p.dial(t))
	for range 3 * maxCallers {
		conn := p.dial(t)
		defer conn.Close()
	}
	for _, client := range []*ssh.Client{p.login(t, p.dial(t)), first} {
		if got := execute(t, client, "echo here", ""); got.Out != "here\n" {
			t.Errorf("%+v", got)
		}
	}
}

// Programs of the sandbox reach no server at the socket that relays use, however often they try.
func TestOnlyRelays(t *testing.T) {
	p := newPod(t)
	p.configure(t)
	path, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	fifo := t.TempDir() + "/over"
	// The second one is an orphan.
	got := execute(t, p.login(t, p.dial(t)), `r='timeout 20 `+path+` relay `+p.address+`'
		cat /dev/null | $r; echo ended; mkfifo `+fifo+`; (setsid sh -c "$r; echo over >`+fifo+`" &)
		cat `+fifo+`; rm `+fifo+``, "")
	if got.Out != "ended\nover\n" {
		t.Errorf("a program of the sandbox was answered: %+v", got)
	}
	if got := execute(t, p.login(t, p.dial(t)), "echo here", ""); got.Out != "here\n" {
		t.Errorf("%+v", got)
	}
}

func TestRelay(t *testing.T) {
	p := newPod(t)
	p.configure(t)
	path, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	relay := func(address string) (*exec.Cmd, *bytes.Buffer) {
		cmd, errors := exec.Command(path, "relay", address), new(bytes.Buffer)
		cmd.Stderr = errors
		return cmd, errors
	}
	cmd, errors := relay(p.address)
	near, far := net.Pipe()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = far
	go func() { // ends with near
		_, _ = io.Copy(in, far)
		in.Close()
	}()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := p.login(t, near)
	if got := execute(t, client, "cat", "through"); got.Out != "through" {
		t.Errorf("%+v", got)
	}
	client.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("relay: %v, %s", err, errors)
	}
	for address, want := range map[string]string{"unix:@sandboxd-no-one": "refused",
		"unix:/tmp/s": "is not unix:@NAME", "udp:1": "is not unix:@NAME",
		"tcp:": "is not unix:@NAME"} {
		cmd, errors := relay(address)
		if err := cmd.Run(); err == nil || !strings.Contains(errors.String(), want) {
			t.Errorf("relay %s: %v, %s", address, err, errors)
		}
	}
}

func TestInstall(t *testing.T) {
	path, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir() + "/guest"
	if out, err := exec.Command(path, "install", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(to, "version").Output()
	if want := fmt.Sprintln(Software, wire.Version); err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
	if out, err := exec.Command(path, "install", to+"/x").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "not a directory") {
		t.Errorf("%v: %s", err, out)
	}
}
