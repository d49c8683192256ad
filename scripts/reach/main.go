// Command reach finds out which programs reach what in which network mode, with real programs in
// real sandboxes, and prints the table of docs/how-to/network.md: allowed, blocked (reported) or
// blocked (silent).
//
// It needs root, a Docker engine with the image sandboxd/base, git, Debian's and nobody else's
// packages, and the binaries that make build makes. Everything it starts is its own: a daemon with
// a temporary state directory, an interface with an address, and the listeners there. Nothing that
// is tried leaves the machine.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// program is a row: how it is called on the host called name.
type program struct {
	what    string
	command string
}

const name = "reach.test"

var programs = []program{
	{"curl (http)", "curl -sSf -m 20 http://" + name + ":8080/hello"},
	{"curl (https)", "curl -ksSf -m 20 https://" + name + ":8443/hello"},
	{"git over https", "GIT_SSL_NO_VERIFY=1 git ls-remote https://" + name + ":8443/git/reach.git"},
	{"pip",
		"pip download -q --retries 0 --timeout 20 --no-deps --no-cache-dir -d /tmp/pip -i http://" +
			name + ":8080/simple/ --trusted-host " + name + " reachpkg"},
	{"npm", "npm view reachpkg version --fetch-retries 0 --registry http://" + name + ":8080/npm/"},
	{"node, `fetch`", `node -e 'fetch("http://` + name +
		`:8080/hello").then(r => process.exit(r.ok ? 0 : 1), () => process.exit(1))'`},
	{"Java", "java /opt/Reach.java http://" + name + ":8080/hello"},
	{"static Go", "/opt/reach http://" + name + ":8080/hello"},
	{"psql", "psql 'host=" + name +
		" user=x dbname=x sslmode=disable connect_timeout=20' -tAc 'select 1'"},
	{"dig", "dig +short +tries=1 +time=5 " + name + " | grep -x '[0-9.]*'"},
	{"ssh",
		"ssh -p 2222 -o ConnectTimeout=20 -o StrictHostKeyChecking=no -o " +
			"UserKnownHostsFile=/dev/null -o BatchMode=yes x@" + name + " true"},
	{"UDP", `python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect(("` + name + `", 9000)); s.send(b"x"); s.recv(1)'`},
}

// mode is a column: the sandbox that it is tried in. ADDR is the listeners' address.
type mode struct {
	what string
	args []string
}

var modes = []mode{
	{"`filtered`, open", []string{"--network", "filtered=tun", "--allow", "ADDR"}},
	{"`filtered`, closed", []string{"--network", "filtered=tun"}},
	{"`allowlist`, listed", []string{"--network", "allowlist=tun", "--allow", "ADDR", "--allow",
		name}},
	{"`allowlist`, not listed", []string{"--network", "allowlist=tun", "--allow", "other.test"}},
	{"proxy, open", []string{"--network", "filtered=proxy", "--allow", "ADDR"}},
	{"proxy, closed", []string{"--network", "filtered=proxy"}},
	{"`none`", []string{"--network", "none"}},
}

// tools is what the programs need besides the image.
const tools = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install " +
	"nodejs npm default-jdk-headless postgresql-client dnsutils openssh-client git curl " +
	"python3-pip >/dev/null && chmod 755 /opt/reach"

func main() {
	log.SetFlags(0)
	bin := flag.String("bin", "bin/sandboxd", "the binary")
	update := flag.String(
		"update", "", "file in which the table stands between two marks, and is put")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	table, err := run(ctx, *bin)
	if err == nil && *update != "" {
		err = put(*update, table)
	}
	fmt.Print(table)
	if err != nil {
		log.Fatal("reach: ", err)
	}
}

func run(ctx context.Context, bin string) (table string, err error) {
	dir, err := os.MkdirTemp("", "reach")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	target, err := listen(ctx, dir)
	if err != nil {
		return "", err
	}
	defer target.close()
	d, err := startDaemon(ctx, bin, dir, target.hosts)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	log.Print("installing the programs in a sandbox")
	image, err := d.prepare(ctx, dir)
	if err != nil {
		return "", err
	}
	defer func() { // a snapshot stays until it is removed
		if out, rerr := exec.CommandContext(context.WithoutCancel(ctx), "docker", "rmi",
			image).CombinedOutput(); rerr != nil {
			err = errors.Join(err, fmt.Errorf("docker rmi: %w: %s", rerr, out))
		}
	}()
	rows := make([]string, len(programs)) // without the program's name
	head, rule := "| program", "| ---"
	for i, m := range modes {
		box := fmt.Sprint("mode", i)
		log.Print("trying ", m.what)
		args := append([]string{"new", box, "--image", image}, m.args...)
		for j := range args {
			args[j] = strings.ReplaceAll(args[j], "ADDR", target.address)
		}
		if _, err := d.sandboxd(ctx, args...); err != nil {
			return "", err
		}
		head, rule = head+" | "+m.what, rule+" | ---"
		for j, p := range programs {
			cell, err := d.try(ctx, box, p.command, target)
			if err != nil {
				return "", fmt.Errorf("%s, %s: %w", m.what, p.what, err)
			}
			rows[j] += " | " + cell
		}
		if _, err := d.sandboxd(ctx, "rm", "--force", box); err != nil {
			return "", err
		}
	}
	return head + " |\n" + rule + " |\n" + merged(rows), nil
}

// merged returns the rows of the programs. Programs with equal results share a row.
func merged(rows []string) string {
	var order []string
	names := make(map[string][]string)
	for i, row := range rows {
		if names[row] == nil {
			order = append(order, row)
		}
		names[row] = append(names[row], programs[i].what)
	}
	var b strings.Builder
	for _, row := range order {
		fmt.Fprintf(&b, "| %s%s |\n", strings.Join(names[row], "; "), row)
	}
	return b.String()
}

// try runs a program in a sandbox and says in a word how it fared.
func (d *daemon) try(ctx context.Context, box, command string, target *target) (string, error) {
	before := target.hits.Load()
	out, failed := d.sandboxd(ctx, "run", "--json", "--timeout", "90s", "-n", box, "--", "sh", "-c",
		command)
	var r struct {
		Ended    string `json:"ended"`
		ExitCode *int   `json:"exit_code"`
		Output   string `json:"output"`
		Denied   []any  `json:"denied"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return "", errors.Join(err, failed)
	}
	if r.Ended != "done" || r.ExitCode == nil {
		return "", fmt.Errorf("it ended by %s: %s", r.Ended, r.Output)
	}
	hit := target.hits.Load() > before
	switch {
	case *r.ExitCode == 0:
		return "allowed", nil
	case hit:
		return "", fmt.Errorf("it arrived, and failed with %d: %s", *r.ExitCode, r.Output)
	case len(r.Denied) > 0:
		return "blocked (reported)", nil
	}
	return "blocked (silent)", nil
}

// The marks between which the table stands in a file.
const (
	begins = "<!-- made by make -C scripts network-table -->\n"
	ends   = "<!-- end -->\n"
)

func put(path, table string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(text, []byte(begins))
	_, tail, ended := bytes.Cut(rest, []byte(ends))
	if !ok || !ended {
		return fmt.Errorf("%s has no marks for the table", path)
	}
	// #nosec G306 -- a document.
	return os.WriteFile(path, bytes.Join(
		[][]byte{head, []byte(begins), []byte(table), []byte(ends), tail}, nil), 0o644)
}

// daemon is a daemon of our own.
type daemon struct {
	bin string
	env []string
	cmd *exec.Cmd
}

// startDaemon starts one that finds names in the file hosts.
func startDaemon(ctx context.Context, bin, dir, hosts string) (*daemon, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	d := &daemon{bin: bin, env: append(os.Environ(), "SANDBOXD_STATE="+filepath.Join(dir, "state"),
		"SANDBOXD_SSH=127.0.0.1:0")}
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
		return nil, err
	}
	d.cmd = exec.CommandContext(ctx, "unshare", "-m", "sh", "-c",
		`mount --bind "$1" /etc/hosts && exec "$2" serve --json`, "sh", hosts, bin)
	d.cmd.Env = d.env
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	var said bytes.Buffer
	d.cmd.Stderr = &said
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	if err := json.NewDecoder(out).Decode(new(map[string]any)); err != nil { // it listens
		return nil, errors.Join(fmt.Errorf("the daemon ended: %w", err), d.cmd.Wait(),
			errors.New(said.String()))
	}
	return d, nil
}

func (d *daemon) stop() error {
	ctx := context.Background() // also when it was interrupted
	_, err := d.sandboxd(ctx, "rm", "--force", "--all")
	return errors.Join(err, d.cmd.Process.Signal(syscall.SIGTERM), d.cmd.Wait())
}

// sandboxd runs the command line and returns what it printed.
func (d *daemon) sandboxd(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.bin, args...)
	cmd.Env = d.env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("sandboxd %s: %w\n%s%s", strings.Join(args, " "), err,
			out.Bytes(), said.Bytes())
	}
	return out.Bytes(), nil
}

// prepare makes an image with the programs in it, as a person would: in a sandbox.
func (d *daemon) prepare(ctx context.Context, dir string) (image string, err error) {
	build := exec.CommandContext(ctx, "go", "build", "-C", "scripts", "-o",
		filepath.Join(dir, "reach"), "./reach/static")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "Reach.java"), []byte(java), 0o600); err != nil {
		return "", err
	}
	out, err := d.sandboxd(ctx, "new", "tools", "--network", "filtered=tun", "--json")
	if err != nil {
		return "", err
	}
	var box struct {
		SSH string `json:"ssh_command"`
	}
	if err := json.Unmarshal(out, &box); err != nil {
		return "", err
	}
	// The command that a person would paste, with tar at its end.
	send := exec.CommandContext(ctx, "sh", "-c", `tar -C "$1" -c reach Reach.java | `+box.SSH+
		` tar -C /opt --no-same-owner -x`, "sh", dir)
	if out, err := send.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", box.SSH, err, out)
	}
	if _, err := d.sandboxd(ctx, "exec", "tools", "--", "sh", "-c", tools); err != nil {
		return "", err
	}
	out, err = d.sandboxd(ctx, "snapshot", "tools", "--json")
	if err != nil {
		return "", err
	}
	var made struct {
		Image string `json:"image"`
	}
	return made.Image, errors.Join(json.Unmarshal(out, &made),
		func() error { _, err := d.sandboxd(ctx, "rm", "--force", "tools"); return err }())
}

const java = `import java.net.*;
public class Reach {
	public static void main(String[] args) throws Exception {
		new URL(args[0]).openStream().readAllBytes();
	}
}
`
