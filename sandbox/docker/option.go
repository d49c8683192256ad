package docker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Options of docker run that a Spec may use by the engine's names, as NAME=VALUE. Only these reach
// the engine: they restrict a sandbox, or spend its own limits. What would give it more of the
// machine, or has another setting, is in reserved, with the alternative.

// options are the parsed options of one Spec. The zero value asks for nothing.
type options struct {
	Hostname  string
	Env       []string // of sessions, on top of the image's
	Labels    map[string]string
	Hosts     []string // of /etc/hosts, NAME:ADDRESS
	DNS       []netip.Addr
	DNSSearch []string
	Ulimits   []*container.Ulimit
	Sysctls   map[string]string
	Tmpfs     map[string]tmpfs // by path
	ReadOnly  bool

	CPUShares, OOMScoreAdj int64 // 0 asks for none
	CPUSet                 string
	BlkioWeight            uint16

	given []string // as they were asked for, but for what may be a secret; for a person
	names []string // of all that were asked for
}

// tmpfs is a directory in memory.
type tmpfs struct {
	size    int64
	options string // as mount(8) has them
}

// option parses one VALUE into o.
type option struct {
	takes string // what VALUE is
	set   func(o *options, value string) error
}

const (
	maxOptions   = 64
	maxOptionLen = 4 << 10
)

var (
	validHost   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	validCPUSet = regexp.MustCompile(`^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$`)
	validSysctl = regexp.MustCompile(`^[0-9]{1,19}([ \t][0-9]{1,19}){0,3}$`)
	validLabel  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$`)
)

// sysctls belong to namespaces of the sandbox and affect it alone.
var sysctls = []string{"kernel.msgmax", "kernel.msgmnb", "kernel.sem", "kernel.shmall", "kernel.shmmax", "net.core.somaxconn",
	"net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"}

// ulimits are those that do not harm the guest, which has them, too. A real-time priority would
// affect the whole machine.
var ulimits = []string{"memlock", "stack"}

// minStack is enough for the guest: the first goroutine assumes 64 KiB, and the kernel a quarter
// for arguments.
const minStack = 256 << 10

var optionsByName = map[string]option{
	"add-host": {"NAME:ADDRESS, a line of /etc/hosts", func(o *options, value string) error {
		name, text, _ := strings.Cut(value, ":")
		addr, err := netip.ParseAddr(text)
		if !isHostName(name) || err != nil || addr.Zone() != "" {
			return errTakes
		}
		o.Hosts = append(o.Hosts, name+":"+addr.String())
		return nil
	}},
	"blkio-weight": {"10 to 1000, its share of a disk that others want too", func(o *options, value string) error {
		n, err := number(value, 10, 1000)
		o.BlkioWeight = uint16(n) //nolint:gosec // which is within bounds
		return err
	}},
	"cpu-shares": {"2 to 1024, its share of processors that others want too; all have 1024", func(o *options, value string) (err error) {
		o.CPUShares, err = number(value, 2, 1024)
		return err
	}},
	"cpuset-cpus": {"processors that it may use, such as 0-1,3", func(o *options, value string) error {
		if len(value) > 256 || !validCPUSet.MatchString(value) {
			return errTakes
		}
		o.CPUSet = value
		return nil
	}},
	"dns": {"the address of a name server, with network bridge", func(o *options, value string) error {
		addr, err := netip.ParseAddr(value)
		if err != nil || addr.Zone() != "" {
			return errTakes
		}
		o.DNS = append(o.DNS, addr)
		return nil
	}},
	"dns-search": {"a domain in which short names are looked up, with network bridge", func(o *options, value string) error {
		if !isHostName(value) {
			return errTakes
		}
		o.DNSSearch = append(o.DNSSearch, value)
		return nil
	}},
	"env": {"NAME=VALUE for every process, as --env", func(o *options, value string) error {
		if name, _, ok := strings.Cut(value, "="); !ok || name == "" {
			return errTakes
		}
		o.Env = append(o.Env, value)
		return nil
	}},
	"hostname": {"the name that it has for itself, such as box or box.example", func(o *options, value string) error {
		if len(value) > 63 || !isHostName(value) { // 64 with a NUL (uname(2))
			return errTakes
		}
		o.Hostname = value
		return nil
	}},
	"label": {"NAME=VALUE, by which docker ps finds it; none that belongs to sandboxd or an engine", func(o *options, value string) error {
		name, is, ok := strings.Cut(value, "=")
		if !ok || !validLabel.MatchString(name) || isTheirs(name) {
			return errTakes
		}
		return put(&o.Labels, name, is)
	}},
	"oom-score-adj": {"0 to 1000: how soon its processes are ended when the machine has no memory left; its programs get 200 more than the guest, up to 1000", func(o *options, value string) (err error) {
		o.OOMScoreAdj, err = number(value, 0, 1000)
		return err
	}},
	"read-only": {"true: programs write to tmpfs, /dev/shm and mounts alone", func(o *options, value string) (err error) {
		if o.ReadOnly, err = strconv.ParseBool(value); err != nil {
			return errTakes
		}
		return nil
	}},
	"sysctl": {"NAME=NUMBER of " + strings.Join(sysctls, ", "), func(o *options, value string) error {
		name, is, _ := strings.Cut(value, "=")
		if !slices.Contains(sysctls, name) || !validSysctl.MatchString(is) {
			return errTakes
		}
		return put(&o.Sysctls, name, is)
	}},
	"tmpfs": {"PATH, or PATH:size=64m,uid=1000,gid=1000,exec: a directory in memory, which counts as the sandbox's and is empty after a stop", func(o *options, value string) error {
		at, t, err := parseTmpfs(value)
		if err != nil {
			return err
		}
		return put(&o.Tmpfs, at, t)
	}},
	"ulimit": {"memlock or stack, as NAME=SOFT[:HARD] in bytes; -1 is none, and stack is not below 262144; files are --nofile, processes --pids", func(o *options, value string) error {
		name, is, _ := strings.Cut(value, "=")
		if !slices.Contains(ulimits, name) {
			return errTakes
		}
		if slices.ContainsFunc(o.Ulimits, func(u *container.Ulimit) bool { return u.Name == name }) {
			return errTwice
		}
		first, last, ok := strings.Cut(is, ":")
		if !ok {
			last = first
		}
		soft, err := number(first, -1, 1<<50)
		if err != nil {
			return err
		}
		hard, err := number(last, -1, 1<<50)
		if err != nil || hard >= 0 && (soft < 0 || soft > hard) {
			return errTakes
		}
		if name == "stack" && soft >= 0 && soft < minStack {
			return errTakes
		}
		o.Ulimits = append(o.Ulimits, &container.Ulimit{Name: name, Soft: soft, Hard: hard})
		return nil
	}},
}

// once are those of which a sandbox has one value.
var once = []string{"blkio-weight", "cpu-shares", "cpuset-cpus", "hostname", "oom-score-adj", "read-only"}

// reserved are options of docker run, with what there is instead. Names that Docker's Python package has for them are among those.
var reserved = func() map[string]string {
	all := make(map[string]string)
	for names, instead := range map[string]string{
		"privileged cap-add cap-drop security-opt userns userns-mode group-add": "no sandbox has more rights than docs/concepts/security.md says; --sudo lets setuid programs work",
		"device device-cgroup-rule device-request gpu":                          "a sandbox has no device of the machine",
		"volume v volumes-from volume-driver mount bind":                        "use --mount DIR[:ro] or -v SRC:DST[:ro]",
		"network network-mode net network-alias link ip ip6 mac-address":        "use --network",
		"publish p publish-all expose port":                                     "use sandboxd port NAME PORT",
		"pid pid-mode ipc ipc-mode uts uts-mode cgroup cgroupns cgroup-parent":  "its namespaces and control group are its own",
		"runtime isolation":     "use --isolation",
		"entrypoint command":    "use --no-entrypoint, and run what you mean: sandboxd run",
		"user u":                "use --user",
		"workdir w working-dir": "use --workdir",
		"name":                  "use sandboxd new NAME",
		"image platform pull":   "use --image",
		"restart restart-policy rm auto-remove remove detach": "the daemon starts and removes it: --ttl, --delete-after",
		"stop-signal stop-timeout init":                       "its guest is the first process, and ends what runs when the daemon says so",
		"attach interactive tty stdin-open sig-proxy":         "sessions have terminals: sandboxd run, or ssh",
		"log-driver log-opt log-config":                       "its log is bounded, and says what the guest did; sandboxd log has what sessions printed",
		"memory m mem-limit":                                  "use --memory",
		"memory-swap memswap-limit memory-swappiness mem-swappiness oom-kill-disable kernel-memory": "--memory bounds all of its memory, swap included",
		"cpus nano-cpus cpu-quota cpu-period cpu-count cpu-percent cpu-rt-runtime cpu-rt-period":    "use --cpus",
		"pids-limit":                            "use --pids",
		"shm-size":                              "use --shm",
		"storage-opt":                           "use --disk",
		"env-file label-file":                   "say env or label for each",
		"health-cmd healthcheck no-healthcheck": "its guest says how it is: sandboxd describe",
	} {
		for name := range strings.FieldsSeq(names) {
			all[name] = instead
		}
	}
	return all
}()

// other are further names of options that exist.
var other = map[string]string{"environment": "env", "extra-host": "add-host", "h": "hostname", "e": "env", "l": "label"}

// Docker's own engine honors all options with a runtime of this machine's kernel. These work
// elsewhere, too.
var (
	speakersOptions = []string{"env"}                                           // by engines that only speak Docker's API; see IsDockers
	ownKernel       = []string{"add-host", "dns", "dns-search", "env", "label"} // by runtimes with a kernel of their own: they are the engine's matter, or the guest's
)

var (
	errTakes = errors.New("it takes something else")
	errTwice = errors.New("it is said twice")
)

// OptionNames returns the known options, sorted.
func OptionNames() []string { return slices.Sorted(maps.Keys(optionsByName)) }

// CheckOptions checks options of a Spec without an engine. Its error names the alternative.
func CheckOptions(list []string) error {
	_, err := parseOptions(list)
	if hint := hintOf(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// parseOptions parses the options of a Spec. An error names the option.
func parseOptions(list []string) (options, error) {
	var o options
	if len(list) > maxOptions {
		return o, fmt.Errorf("%d docker options are more than %d", len(list), maxOptions)
	}
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		known, found := optionsByName[name]
		switch {
		case !found:
			return options{}, unknownOption(name)
		case !ok || value == "" || len(text) > maxOptionLen || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return options{}, fmt.Errorf("docker option %s takes %s", name, known.takes)
		case slices.Contains(once, name) && slices.Contains(o.names, name):
			return options{}, fmt.Errorf("docker option %s: %w", name, errTwice)
		}
		switch err := known.set(&o, value); {
		case err == nil:
		case errors.Is(err, errTwice):
			return options{}, fmt.Errorf("docker option %s=%.100s: %w", name, value, err)
		default:
			return options{}, fmt.Errorf("docker option %s takes %s; not %.100q", name, known.takes, value)
		}
		if name == "env" {
			text, _, _ = strings.Cut(value, "=")
			text = "env=" + text
		}
		o.names, o.given = append(o.names, name), append(o.given, text)
	}
	return o, nil
}

// unknownOption returns the error of an unknown option, with the alternative as a hint.
func unknownOption(name string) error {
	plain := strings.Trim(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "- ")
	for _, try := range []string{plain, strings.TrimSuffix(plain, "s")} {
		if instead := reserved[try]; instead != "" {
			return hinted{fmt.Errorf("docker option %.60q is reserved: %w", name, sandbox.ErrUnsupported), instead}
		}
		if _, is := optionsByName[try]; !is {
			try = other[try]
		}
		if try != "" {
			return hinted{fmt.Errorf("docker option %.60q: %w", name, sandbox.ErrUnsupported), fmt.Sprintf("write %s: it takes %s", try, optionsByName[try].takes)}
		}
	}
	return hinted{fmt.Errorf("docker option %.60q: %w", name, sandbox.ErrUnsupported), "there are " + strings.Join(OptionNames(), ", ")}
}

// fit refuses options that conflict with spec, or that the engine would silently ignore.
func (o options) fit(spec sandbox.Spec, memory int64, f facts) error {
	for i, name := range o.names {
		if f.speaks && !slices.Contains(speakersOptions, name) {
			return hinted{fmt.Errorf("docker option %s: %w: the engine is not Docker's own", name, sandbox.ErrUnsupported), "leave it out; with this engine there are " + strings.Join(speakersOptions, ", ")}
		}
		if runtime := cmp.Or(spec.Isolation, f.defaultRuntime); !passesDescriptors(runtime) && !slices.Contains(ownKernel, name) {
			return hinted{fmt.Errorf("docker option %s: %w with isolation %s, a kernel of its own", name, sandbox.ErrUnsupported, runtime), "leave it out; with this one there are " + strings.Join(ownKernel, ", ")}
		}
		if (name == "dns" || name == "dns-search") && spec.Network != sandbox.NetworkBridge {
			return hinted{fmt.Errorf("docker option %s: %w with network %s, whose names the daemon looks up", o.given[i], sandbox.ErrUnsupported, spec.Network), "leave it out, or use --network bridge"}
		}
	}
	for at, t := range o.Tmpfs {
		for _, m := range spec.Mounts {
			if inside := m.Inside(); within(at, inside) || within(inside, at) {
				return fmt.Errorf("docker option tmpfs=%s: the directory %s is mounted there", at, m.Path)
			}
		}
		if t.size > memory {
			return fmt.Errorf("docker option tmpfs=%s: %s is more than all of the sandbox's memory, %s", at, sandbox.FormatSize(t.size), sandbox.FormatSize(memory))
		}
	}
	return nil
}

// apply adds o to r.
func (o options) apply(r *container.CreateRequest) {
	if o.Hostname != "" {
		r.Config.Hostname = o.Hostname
		if len(r.HostConfig.ExtraHosts) > 0 { // its own name is known there, whatever that is
			short, _, _ := strings.Cut(o.Hostname, ".")
			r.HostConfig.ExtraHosts = append(r.HostConfig.ExtraHosts, o.Hostname+":127.0.1.1")
			if short != o.Hostname {
				r.HostConfig.ExtraHosts = append(r.HostConfig.ExtraHosts, short+":127.0.1.1")
			}
		}
	}
	maps.Copy(r.Config.Labels, o.Labels)
	h := r.HostConfig
	h.ExtraHosts = append(h.ExtraHosts, o.Hosts...)
	h.DNS = append(h.DNS, o.DNS...)
	h.DNSSearch = o.DNSSearch
	h.OomScoreAdj = int(o.OOMScoreAdj)
	h.ReadonlyRootfs = o.ReadOnly
	h.Sysctls = o.Sysctls
	for at, t := range o.Tmpfs {
		_ = put(&h.Tmpfs, at, t.options) // of which there is one each
	}
	h.CPUShares, h.CpusetCpus, h.BlkioWeight = o.CPUShares, o.CPUSet, o.BlkioWeight
	h.Ulimits = append(h.Ulimits, o.Ulimits...)
}

// isHostName reports whether s is a host name; a single label is one.
func isHostName(s string) bool { return len(s) <= 253 && validHost.MatchString(s) }

// isTheirs reports whether a label has a meaning to us, an engine or a container manager.
func isTheirs(label string) bool {
	return slices.ContainsFunc([]string{ourLabels, "com.docker.", "io.docker.", "org.dockerproject.", "io.podman.", "io.containers."},
		func(prefix string) bool { return strings.HasPrefix(strings.ToLower(label)+".", prefix) })
}

// closedToTmpfs are directories of the kernel, the engine and the guest, beside /.
var closedToTmpfs = []string{"/proc", "/sys", "/dev", "/.sandboxd", "/etc"}

// parseTmpfs parses PATH[:OPTION,…]. The mode cannot be set: runc uses that of an existing
// directory, and from the second start on it exists.
func parseTmpfs(value string) (at string, t tmpfs, err error) {
	at, text, _ := strings.Cut(value, ":")
	if !path.IsAbs(at) || path.Clean(at) != at || at == "/" || strings.ContainsAny(at, ",\\\"") ||
		slices.ContainsFunc(closedToTmpfs, func(dir string) bool { return within(at, dir) }) {
		return "", t, errTakes
	}
	var uid, gid int64
	mode, exec := "755", "noexec"
	if at == "/tmp" || at == "/var/tmp" {
		mode = "1777"
	}
	t.size = 64 << 20
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		key, is, _ := strings.Cut(part, "=")
		switch {
		case key == "size":
			t.size, err = sandbox.ParseSize(is)
		case key == "uid":
			uid, err = number(is, 0, math.MaxInt32)
		case key == "gid":
			gid, err = number(is, 0, math.MaxInt32)
		case part == "exec", part == "noexec":
			exec = part
		case part == "rw", part == "nosuid", part == "nodev": // which it is
		default:
			err = errTakes
		}
		if err != nil {
			return "", t, errTakes
		}
	}
	t.options = fmt.Sprintf("rw,nosuid,nodev,%s,size=%d,mode=%s,uid=%d,gid=%d", exec, t.size, mode, uid, gid)
	return at, t, nil
}

// within reports whether a path is dir or below it.
func within(at, dir string) bool {
	return at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/")
}

// number parses a whole number within bounds.
func number(s string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		return 0, errTakes
	}
	return n, nil
}

// put sets a key once.
func put[V any](m *map[string]V, key string, value V) error {
	if _, twice := (*m)[key]; twice {
		return errTwice
	}
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[key] = value
	return nil
}
