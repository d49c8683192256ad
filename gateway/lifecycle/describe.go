package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	queryWithin = 3 * time.Second  // for one query of the guest
	queryAgain  = 30 * time.Second // the lifetime of the answer
	maxQuery    = 32 << 10         // bytes of the answer
)

// tools are the programs that agents look for first.
var tools = []string{"bash", "sh", "python3", "pip", "node", "npm", "go", "gcc", "make", "git",
	"curl", "wget", "tar", "rsync",
	"vim", "nano", "less", "sudo", "apt-get", "apk", "dnf", "tmux", "jq", "perl", "ruby", "java",
	"cargo", "uv", "rg", "unzip", "sqlite3", "ffmpeg",
	"convert", "tesseract", "pandoc", "dot", "pdftotext", "gs"}

// script prints facts about the sandbox as lines of key=value. It starts no process but its shell:
// at the limit of processes every further one would fail.
var script = `while IFS= read -r l; do case $l in PRETTY_NAME=*) echo "os=${l#*=}";; esac; done </etc/os-release
read -r l </proc/sys/kernel/osrelease && echo "kernel=$l"
read -r l 2>/dev/null </proc/sys/kernel/arch && echo "arch=$l"
while read -r k u l; do case $k in Uid:) echo "uid=$u";; esac; done </proc/self/status
echo "user=$USER"; echo "cwd=$PWD"; echo "shell=$SHELL"
for f in pids/pids.current pids.current; do read -r l 2>/dev/null </sys/fs/cgroup/$f && echo "pids=$l"; done
for f in memory/memory.usage_in_bytes memory.current; do read -r l 2>/dev/null </sys/fs/cgroup/$f && echo "memory=$l"; done
for t in ` + strings.Join(tools, " ") + `; do printf 'tool.%s=' "$t"; command -v "$t" || echo; done
:`

// inside is the output of script: what each key was, and when it was read.
type inside struct {
	facts map[string]string
	when  time.Time
}

// insideCache caches the last answer of queryInside.
type insideCache struct {
	mu    sync.Mutex
	found *inside // guarded by mu; nil before the first answer and after a stop
}

// forget drops the cached answer.
func (l *insideCache) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = nil
}

// Describe returns everything known about the sandbox, even if the sandbox itself does not answer.
func (sb *Sandbox) Describe(ctx context.Context) (Description, error) {
	reg := sb.reg
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	d := Description{Info: sb.Info()}
	f := sb.get()
	d.NetworkText = networkText(d.Network, d.Via)
	d.LimitsText = limitsText(d.Limits)
	if f.Sudo {
		d.Notes = append(d.Notes, "setuid programs work (--sudo): no-new-privileges is off")
	}
	for _, l := range sb.sessions.All() {
		if why := l.Recording(); why != "" {
			d.Notes = append(d.Notes, fmt.Sprintf("session %s: not fully recorded: %s", l.Name(),
				why))
		}
	}
	d.Health = string(f.State)
	if f.Reason != "" {
		d.Health += ": " + f.Reason
	}
	if f.State != Running && f.State != Broken {
		if f.State == Stopped && strings.HasPrefix(f.Reason, admission.DiskFull) {
			d.Notes = append(d.Notes, "its files are kept: start it to copy or remove files; it "+
				"may write a little more; "+
				"start --disk SIZE "+d.Name+" raises the limit")
		}
		return d, nil
	}
	within, cancel := context.WithTimeoutCause(ctx, queryWithin, fmt.Errorf("no answer within %v",
		queryWithin))
	defer cancel()
	meter(within, sb, &d, f)
	d.Health = health(within, sb, f.Instance)
	if c, err := reg.pool.Control(within, f.Instance); err == nil {
		d.Tier, d.TierText = c.Tier()
	}
	found, err := queryInside(within, sb, f.Instance)
	if err != nil && d.Health == "ok" {
		d.Health = "commands fail: " + oneLine(reg.Public(sb.Reach(err)).Message, 200)
	}
	d.fill(found)
	if f.Instance.Network.Carried() {
		share := reg.accounts.connectionsOf(f.Owner)
		d.Usage = strings.TrimPrefix(
			fmt.Sprintf("%s, %d of %d connections of its owner's sandboxes", d.Usage, share.Used(),
				share.Most()), ", ")
	}
	if infos, err := sb.guest.ListSessions(within); err == nil {
		d.Sessions = infos
	}
	return d, nil
}

// health asks the guest for its health.
func health(ctx context.Context, sb *Sandbox, inst sandbox.Instance) string {
	c, err := sb.reg.pool.Control(ctx, inst)
	if err == nil {
		var reply wire.ControlReply
		if reply, err = c.Do(ctx, wire.Control{Do: "health"}); err == nil {
			return cmp.Or(oneLine(reply.Health, 300), "ok")
		}
	}
	if f := sb.get(); f.State == Broken && f.Reason != "" {
		return "broken: " + f.Reason
	}
	return "broken: " + brokenWhy(err)
}

// queryInside runs script in the sandbox and parses its output, at most once every queryAgain.
func queryInside(ctx context.Context, sb *Sandbox, inst sandbox.Instance) (*inside, error) {
	sb.inside.mu.Lock()
	found := sb.inside.found
	sb.inside.mu.Unlock()
	if found != nil && time.Since(found.when) < queryAgain {
		return found, nil
	}
	out, err := runInside(ctx, sb, inst, script, maxQuery)
	if len(out) == 0 && err != nil {
		return found, err
	}
	fresh := &inside{facts: make(map[string]string), when: time.Now()}
	for line := range strings.Lines(string(out)) {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok &&
			len(fresh.facts) < 100 {
			fresh.facts[oneLine(key, 64)] = oneLine(strings.Trim(value, `"`), 200)
		}
	}
	sb.inside.mu.Lock()
	defer sb.inside.mu.Unlock()
	sb.inside.found = fresh
	return fresh, nil
}

// runInside runs a command in the sandbox without a terminal and returns the first limit bytes of
// its output. It disconnects a command that prints more.
func runInside(ctx context.Context, sb *Sandbox, inst sandbox.Instance, command string,
	limit int) ([]byte, error) {
	conn, err := sb.reg.pool.SSH(ctx, inst)
	if err != nil {
		return nil, err
	}
	client := conn.Client()
	defer client.Close()
	return connect.Output(ctx, client, command, limit)
}

// fill copies the answers of script into d.
func (d *Description) fill(found *inside) {
	f := map[string]string{}
	if found != nil {
		f = found.facts
	}
	d.OS, d.Kernel, d.Arch, d.Cwd, d.Shell = f["os"], f["kernel"], f["arch"], f["cwd"], f["shell"]
	if f["uid"] != "" {
		d.Account = strings.TrimPrefix(f["user"]+" ", " ") + "(uid " + f["uid"] + ")"
	}
	for _, t := range tools {
		if path := f["tool."+t]; path != "" {
			if d.Tools == nil {
				d.Tools = make(map[string]string)
			}
			d.Tools[t] = path
		}
	}
	if d.Used != nil { // counted outside the sandbox: prefer it
		f = map[string]string{"pids": fmt.Sprint(d.Used.PIDs), "memory": fmt.Sprint(d.Used.Memory)}
	}
	var usage []string
	if f["pids"] != "" && d.Limits.PIDs > 0 {
		usage = append(usage, fmt.Sprintf("%s of %d processes", f["pids"], d.Limits.PIDs))
	}
	var n int64
	if _, err := fmt.Sscan(f["memory"], &n); err == nil && d.Limits.Memory > 0 {
		usage = append(usage, fmt.Sprintf("%s of %s memory", admission.Size(n),
			admission.Size(d.Limits.Memory)))
	}
	if d.Used != nil && d.Used.Disk > 0 {
		usage = append(usage, fmt.Sprintf("%s of %s disk", admission.Size(d.Used.Disk),
			admission.Size(d.Limits.Disk)))
	}
	d.Usage = strings.Join(usage, ", ")
}

func networkText(n sandbox.Network, via sandbox.Via) string {
	if via == sandbox.ViaProxy {
		text, rest, _ := strings.Cut(networkText(n, ""), ":")
		return text + " (proxy):" + rest + "; by an HTTP and SOCKS5 proxy on " + wire.ProxyAddress +
			", for programs that use proxy variables; UDP and other programs get " +
			"\"Network is unreachable\" at once"
	}
	switch n {
	case sandbox.NetworkNone, "":
		return "none: loopback only. Copy files with scp, sftp or rsync; forward ports with ssh -L"
	case sandbox.NetworkBridge:
		return "bridge: OPEN. The engine's own network: this machine's services, the local " +
			"network, cloud metadata and the " +
			"internet are reachable from inside, and sandboxd does not protect them"
	case sandbox.NetworkFiltered:
		return "filtered: public addresses through the daemon's policy; private and metadata " +
			"addresses are blocked"
	case sandbox.NetworkHost:
		return "host: the machine's own; sandboxd does not control it"
	case sandbox.NetworkAllowlist:
		return "allowlist: the listed names and addresses only"
	}
	return string(n)
}

func limitsText(l sandbox.Limits) string {
	var words []string
	if l.Memory > 0 {
		if l.Swap > 0 {
			words = append(words, admission.Size(l.Memory)+" memory and "+admission.Size(l.Swap)+
				" swap")
		} else {
			words = append(words, admission.Size(l.Memory)+" memory")
		}
	}
	if l.CPUs > 0 {
		words = append(words, fmt.Sprintf("%g cpus", l.CPUs))
	}
	if l.PIDs > 0 {
		words = append(words, fmt.Sprintf("%d processes", l.PIDs))
	}
	if l.Shm > 0 {
		words = append(words, admission.Size(l.Shm)+" /dev/shm")
	}
	if l.Disk > 0 {
		words = append(words, admission.Size(l.Disk)+" disk")
	}
	if l.Sessions > 0 {
		words = append(words, fmt.Sprintf("%d sessions", l.Sessions))
	}
	if l.Connections > 0 {
		words = append(words, fmt.Sprintf("%d connections", l.Connections))
	}
	if l.NoFile > 0 {
		words = append(words, fmt.Sprintf("%d open files a process", l.NoFile))
	}
	return strings.Join(words, ", ")
}
