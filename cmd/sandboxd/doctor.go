package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// finding is the result of one check of doctor.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	Fix   string `json:"fix,omitempty"` // what to do if it is not OK, or could be better
}

// checkPatience is the longest time of one check, and clusterPatience that of a check that makes
// pods.
const (
	checkPatience   = 5 * time.Second
	clusterPatience = 2 * time.Minute
)

// doctor checks the requirements of the daemon on this machine, or of a client of another one.
type doctor struct{ cli *cli }

// checks returns all checks in the order of their output.
func (d doctor) checks() []func(context.Context) []finding {
	if d.cli.gateway != "" || runsDaemon() != nil {
		return []func(context.Context) []finding{d.checkGateway, d.checkTools}
	}
	all := []func(context.Context) []finding{d.checkEngine, d.checkImage, d.checkFilter,
		d.checkLeft}
	switch backendOf(d.cli.config) {
	case kubernetes.Name:
		all = []func(context.Context) []finding{d.checkCluster}
	case oci.Name:
		all = []func(context.Context) []finding{d.checkBundles}
	}
	return append(all, d.checkGuests, d.checkState, d.checkDaemon, d.checkRoom, d.checkPool,
		d.checkHook, d.checkModel, d.checkTools)
}

func doctorCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "check that this machine can run sandboxd, or reach it",
		Long: "Check the engine, the images, the state directory, the network filter and\n" +
			"everything else that sandboxd needs on this machine. With backend kubernetes,\n" +
			"check the cluster: it makes and removes small pods for that. With --gateway, check\n" +
			"that the daemon there answers, and what this client needs. Print one line per\n" +
			"check, and how to fix each problem. The exit code is 125 if a check fails.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bad := 0
			for _, check := range (doctor{c}).checks() {
				ctx, cancel := context.WithTimeout(cmd.Context(), clusterPatience)
				findings := check(ctx)
				cancel()
				for _, f := range findings {
					if !f.OK {
						bad++
					}
					if asJSON {
						if err := text.WriteJSON(os.Stdout, f); err != nil {
							return err
						}
						continue
					}
					printFinding(os.Stdout, f)
				}
			}
			if bad > 0 {
				return exitCode(wire.ExitFailed)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per check")
	return cmd
}

func printFinding(w io.Writer, f finding) {
	mark := "ok  "
	switch {
	case !f.OK:
		mark = "FAIL"
	case f.Fix != "":
		mark = "warn"
	}
	fmt.Fprintf(w, "%s  %-14s %s\n", mark, f.Check, f.Found)
	if f.Fix != "" {
		fmt.Fprintf(w, "      %-14s → %s\n", "", f.Fix)
	}
}

func (d doctor) checkEngine(ctx context.Context) []finding {
	engine, err := newEngine(d.cli.config)
	if err != nil { // it says what is wrong with the address
		return []finding{{Check: "engine", Found: err.Error(), Fix: sandbox.HintOf(err)}}
	}
	defer engine.Close()
	v, err := engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return []finding{{Check: "engine", Found: err.Error(), Fix: d.engineFix(ctx)}}
	}
	all := []finding{{Check: "engine", OK: true, Found: fmt.Sprintf("docker %s, API %s", v.Version,
		v.APIVersion)}}
	info, err := engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return append(all, finding{Check: "engine info", Found: err.Error()})
	}
	all = append(all, finding{Check: "runtime", OK: true, Found: info.Info.DefaultRuntime +
		", cgroup " + info.Info.CgroupVersion}, d.checkLink(ctx))
	live := finding{Check: "live-restore", OK: true,
		Found: "on: sandboxes survive a restart of the engine"}
	switch {
	case !docker.IsDockers(v):
		all[0].Found = fmt.Sprintf(
			"%s, API %s; for the differences to Docker see docs/concepts/isolation.md",
			otherEngine(v), v.APIVersion)
		live.Found = "not needed: containers are not processes of the engine's service"
	case !info.Info.LiveRestoreEnabled:
		live.Found = "off: a restart of the engine stops all sandboxes (their files stay)"
		live.Fix = `set "live-restore": true in the engine's daemon.json, and reload the engine; with ` +
			"systemd: /etc/docker/daemon.json, systemctl reload docker"
	}
	return append(all, live)
}

// engineFix says what to do when the engine does not answer.
func (d doctor) engineFix(ctx context.Context) string {
	const start = "start Docker; on Debian: scripts/setup demo, or apt-get install docker.io"
	if host := engineHost(d.cli.config); host != "" {
		return "try: docker -H " + host + " version"
	}
	if needsLinux() != nil {
		return "start Docker; or use a daemon on a machine with Linux, with --gateway"
	}
	if hasEngine(d.cli.config) {
		return start
	}
	_, _, err := runtimeOf(ctx)
	if err == nil {
		return start
	}
	fix := err.Error()
	if hint := sandbox.HintOf(err); hint != "" {
		fix += ": " + hint
	}
	return start + ". Without Docker (docs/how-to/without-docker.md): " + fix
}

// checkLink says how the daemon reaches its sandboxes.
func (d doctor) checkLink(ctx context.Context) finding {
	dir := string(d.cli.config.State)
	for _, err := os.Stat(dir); err != nil; _, err = os.Stat(dir) {
		dir = filepath.Dir(dir) // it does not exist before the first start
	}
	link := finding{Check: "link", OK: true, Found: "a socket of this machine for each sandbox"}
	remote, err := docker.IsRemote(ctx, cmp.Or(engineHost(d.cli.config), docker.DefaultHost), dir)
	switch {
	case err != nil:
		link.OK, link.Found = false, err.Error()
	case remote:
		link.Found = "through the engine, which shares no files with this machine; for what " +
			"differs see docs/how-to/remote-engine.md"
	}
	return link
}

// otherEngine returns the name and version of an engine that is not Docker's, quoted for the
// terminal.
func otherEngine(v client.ServerVersionResult) string {
	name := "unknown engine"
	if len(v.Components) > 0 {
		name = v.Components[0].Name
	}
	return fmt.Sprintf("%.60q %.40q", name, v.Version)
}

func (d doctor) checkImage(ctx context.Context) []finding {
	image := d.cli.config.Image
	engine, err := newEngine(d.cli.config)
	if err != nil {
		return nil // checkEngine reports it
	}
	defer engine.Close()
	if _, err := engine.Ping(ctx, client.PingOptions{}); err != nil {
		return nil
	}
	if !hasImage(ctx, engine, image) {
		fix := "create a sandbox, which pulls it, or run: docker pull " + image
		if images.Has(image) {
			fix = "create a sandbox, which builds it"
		}
		return []finding{{Check: "image", OK: true, Found: image + " is missing", Fix: fix}}
	}
	return []finding{{Check: "image", OK: true, Found: image}}
}

func (d doctor) checkGuests(context.Context) []finding {
	guests, err := findGuests(string(d.cli.config.GuestDir))
	if err != nil {
		found := public(err)
		return []finding{{Check: "guest", Found: found.Message, Fix: found.Hint}}
	}
	path, err := guests.Path(runtime.GOARCH)
	if err != nil {
		return []finding{{Check: "guest", Found: err.Error(), Fix: "build it: make build"}}
	}
	if guests.Itself() {
		return []finding{{Check: "guest", OK: true,
			Found: path + " itself; separate guest binaries need less memory"}}
	}
	return []finding{{Check: "guest", OK: true, Found: path}}
}

// checkState checks the state directory. It does not create one.
func (d doctor) checkState(context.Context) []finding {
	dir := string(d.cli.config.State)
	info, err := os.Lstat(dir)
	if os.IsNotExist(err) {
		return []finding{{Check: "state", OK: true, Found: dir + " does not exist yet"}}
	}
	if err != nil {
		return []finding{{Check: "state", Found: err.Error()}}
	}
	if err := makeState(dir); err != nil {
		return []finding{{Check: "state", Found: err.Error(), Fix: "chmod 700 " + dir}}
	}
	all := []finding{{Check: "state", OK: true, Found: fmt.Sprintf("%s, %v", dir, info.Mode())}}
	for _, name := range []string{"identity", "host_ed25519_key", tokenFile} {
		key, err := os.Stat(filepath.Join(dir, name))
		if err == nil && key.Mode().Perm()&0o077 != 0 {
			all = append(all, finding{Check: "key",
				Found: fmt.Sprintf("%s can be read by others (%v)", name, key.Mode()),
				Fix:   "chmod 600 " + filepath.Join(dir, name)})
		}
	}
	return all
}

func (d doctor) checkDaemon(ctx context.Context) []finding {
	if e, err := d.cli.daemon(); err == nil {
		return []finding{{Check: "daemon", OK: true,
			Found: fmt.Sprintf("%s at %s, pid %d", e.Version, e.SSH, e.PID)}}
	}
	addr := d.cli.config.SSH
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return []finding{{Check: "port", Found: err.Error(),
			Fix: "sandboxd up uses the next free port; or set the key ssh"}}
	}
	l.Close()
	return []finding{{Check: "daemon", OK: true, Found: "not running; " + addr + " is free"}}
}

// checkRoom asks a running daemon how many sandboxes it may have, and has.
func (d doctor) checkRoom(ctx context.Context) []finding {
	if _, err := d.cli.daemon(); err != nil {
		return nil // checkDaemon reports it
	}
	var out, said bytes.Buffer
	if err := d.cli.control(ctx, &out, &said, "quota", "--json"); err != nil {
		return []finding{{Check: "sandboxes", Found: strings.TrimSpace(said.String() +
			out.String()), Fix: "see: sandboxd quota"}}
	}
	var all []finding
	for lines := json.NewDecoder(&out); ; {
		var a lifecycle.Allowance
		if err := lines.Decode(&a); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			return []finding{{Check: "sandboxes", Found: err.Error(), Fix: "see: sandboxd quota"}}
		}
		if !strings.HasPrefix(a.Key, "total.") {
			continue
		}
		have, most := a.Text()
		f := finding{Check: a.What, OK: true, Found: have + " of " + most + " of all owners"}
		if a.Have >= a.Most {
			f.Fix = "no new sandboxes: rm or stop some, or raise " + a.Key
		}
		all = append(all, f)
	}
}

// checkPool asks a running daemon for its pool.
func (d doctor) checkPool(ctx context.Context) []finding {
	if _, err := d.cli.daemon(); err != nil {
		return nil // checkDaemon reports it
	}
	pool, err := d.cli.pool(ctx, false)
	if err != nil {
		return []finding{{Check: "pool", Found: err.Error(), Fix: "see: sandboxd pool"}}
	}
	var all []finding
	for _, i := range pool {
		f := finding{Check: "pool", OK: true, Found: fmt.Sprintf("%d of %d ready of %s", i.Ready,
			i.Size, i.Image)}
		if i.Trouble != "" {
			f.Found += ": " + i.Trouble
			f.Fix = "the daemon retries; meanwhile sandboxes of this image are booted on request"
		}
		all = append(all, f)
	}
	return all
}

// checkGateway checks the daemon that a client uses.
func (d doctor) checkGateway(ctx context.Context) []finding {
	f := finding{Check: "gateway", Found: d.cli.gateway}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	err := runsDaemon()
	if d.cli.gateway != "" {
		var client *agent.Client
		if client, err = d.cli.dial(ctx, wire.ControlHost, false); err == nil {
			f.OK, f.Found = true, d.cli.gateway+" answers"
			client.Close()
		}
	}
	if err != nil {
		f.Found, f.Fix = err.Error(), "check the address, and that ssh logs in there"
		if e, ok := errors.AsType[*wire.Error](err); ok {
			f.Found, f.Fix = e.Message, cmp.Or(e.Hint, f.Fix)
		}
	}
	return []finding{f}
}

func (d doctor) checkTools(context.Context) []finding {
	var missing []string
	for _, name := range []string{"ssh", "scp"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		// Users of a cluster connect from elsewhere.
		return []finding{{Check: "ssh client", OK: d.cli.config.Backend == kubernetes.Name,
			Found: strings.Join(missing, " and ") + " not found",
			Fix:   installSSH()}}
	}
	clock := finding{Check: "clock", OK: true, Found: time.Now().UTC().Format(time.RFC3339)}
	if time.Now().Year() < 2025 {
		clock.OK, clock.Fix = false, "set the clock: certificates and recordings depend on it"
	}
	return []finding{{Check: "ssh client", OK: true, Found: "ssh and scp"}, clock}
}
