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
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// Options of docker run that a Spec may set by the engine's names, as NAME=VALUE. Only these reach
// the engine: they restrict a sandbox, or spend its own limits. Options that would give it more of
// the machine, or that have another setting, are in reserved, with the alternative.

// options are the parsed options of one Spec. The zero value sets none.
type options struct {
	Hostname  string
	Env       []string // of sessions, in addition to the image's
	Labels    map[string]string
	Hosts     []string // of /etc/hosts, NAME:ADDRESS
	DNS       []netip.Addr
	DNSSearch []string
	Ulimits   []*container.Ulimit
	Sysctls   map[string]string
	Tmpfs     map[string]tmpfs // by path
	ReadOnly  bool

	CPUShares, OOMScoreAdj int64 // 0: not set
	CPUSet                 string
	BlkioWeight            uint16

	given []string // as given, without values that may be secret; for display
	names []string // of all options in given
}

// tmpfs is a directory in memory.
type tmpfs struct {
	size    int64
	options string // in the syntax of mount(8)
}

// option parses one VALUE into o.
type option struct {
	takes string // syntax of VALUE
	set   func(o *options, value string) error
}

const (
	maxOptions   = 64
	maxOptionLen = 4 << 10
)

var (
	validHost = regexp.MustCompile(
		`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	validCPUSet = regexp.MustCompile(`^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$`)
	validSysctl = regexp.MustCompile(`^[0-9]{1,19}([ \t][0-9]{1,19}){0,3}$`)
	validLabel  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$`)
)

// sysctls are per namespace and affect the sandbox only.
var sysctls = []string{"kernel.msgmax", "kernel.msgmnb", "kernel.sem", "kernel.shmall",
	"kernel.shmmax", "net.core.somaxconn",
	"net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"}

// ulimits are those that do not harm the guest, to which they also apply. A real-time priority
// would affect the whole machine.
var ulimits = []string{"memlock", "stack"}

// minStack is enough for the guest: the first goroutine assumes 64 KiB, and the kernel reserves a
// quarter for arguments.
const minStack = 256 << 10

var optionsByName = map[string]option{
	"add-host": {"NAME:ADDRESS to add to /etc/hosts", func(o *options, value string) error {
		name, text, _ := strings.Cut(value, ":")
		addr, err := netip.ParseAddr(text)
		if !isHostName(name) || err != nil || addr.Zone() != "" {
			return errTakes
		}
		o.Hosts = append(o.Hosts, name+":"+addr.String())
		return nil
	}},
	"blkio-weight": {"10 to 1000: relative weight when others use the same disk",
		func(o *options, value string) error {
			n, err := number(value, 10, 1000)
			o.BlkioWeight = uint16(n) //nolint:gosec // n is within bounds
			return err
		}},
	"cpu-shares": {"2 to 1024: relative weight when others use the processors; the default is 1024",
		func(o *options, value string) (err error) {
			o.CPUShares, err = number(value, 2, 1024)
			return err
		}},
	"cpuset-cpus": {"processors to use, such as 0-1,3", func(o *options, value string) error {
		if len(value) > 256 || !validCPUSet.MatchString(value) {
			return errTakes
		}
		o.CPUSet = value
		return nil
	}},
	"dns": {"address of a name server, with network bridge", func(o *options, value string) error {
		addr, err := netip.ParseAddr(value)
		if err != nil || addr.Zone() != "" {
			return errTakes
		}
		o.DNS = append(o.DNS, addr)
		return nil
	}},
	"dns-search": {"search domain for short names, with network bridge",
		func(o *options, value string) error {
			if !isHostName(value) {
				return errTakes
			}
			o.DNSSearch = append(o.DNSSearch, value)
			return nil
		}},
	"env": {"NAME=VALUE: environment variable of every process, as --env",
		func(o *options, value string) error {
			if name, _, ok := strings.Cut(value, "="); !ok || name == "" {
				return errTakes
			}
			o.Env = append(o.Env, value)
			return nil
		}},
	"hostname": {"host name inside, such as box or box.example",
		func(o *options, value string) error {
			if len(value) > 63 || !isHostName(value) { // 64 with a NUL (uname(2))
				return errTakes
			}
			o.Hostname = value
			return nil
		}},
	"label": {"NAME=VALUE: label to filter by in docker ps; names of sandboxd and engines are " +
		"reserved", func(o *options, value string) error {
		name, is, ok := strings.Cut(value, "=")
		if !ok || !validLabel.MatchString(name) || isReservedLabel(name) {
			return errTakes
		}
		return put(&o.Labels, name, is)
	}},
	"oom-score-adj": {"0 to 1000: higher values are killed first when the machine runs out of " +
		"memory; programs get 200 more than the guest, up to 1000",
		func(o *options, value string) (err error) {
			o.OOMScoreAdj, err = number(value, 0, 1000)
			return err
		}},
	"read-only": {"true: programs can write only to tmpfs, /dev/shm and mounts",
		func(o *options, value string) (err error) {
			if o.ReadOnly, err = strconv.ParseBool(value); err != nil {
				return errTakes
			}
			return nil
		}},
	"sysctl": {"NAME=NUMBER of " + strings.Join(sysctls, ", "),
		func(o *options, value string) error {
			name, is, _ := strings.Cut(value, "=")
			if !slices.Contains(sysctls, name) || !validSysctl.MatchString(is) {
				return errTakes
			}
			return put(&o.Sysctls, name, is)
		}},
	"tmpfs": {"PATH, or PATH:size=64m,uid=1000,gid=1000,exec: directory in memory; it counts as " +
		"memory of the sandbox and is empty after a stop", func(o *options, value string) error {
		at, t, err := parseTmpfs(value)
		if err != nil {
			return err
		}
		return put(&o.Tmpfs, at, t)
	}},
	"ulimit": {"memlock or stack, as NAME=SOFT[:HARD] in bytes; -1 is unlimited, and stack is at " +
		"least 262144; for files use --nofile, for processes --pids",
		func(o *options, value string) error {
			name, is, _ := strings.Cut(value, "=")
			if !slices.Contains(ulimits, name) {
				return errTakes
			}
			if slices.ContainsFunc(o.Ulimits,
				func(u *container.Ulimit) bool { return u.Name == name }) {
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

// once are the options that may be given only once.
var once = []string{"blkio-weight", "cpu-shares", "cpuset-cpus", "hostname", "oom-score-adj",
	"read-only"}

// reserved are options of docker run that are rejected, with the alternative. They include the
// names that Docker's Python package uses.
var reserved = func() map[string]string {
	all := make(map[string]string)
	for names, instead := range map[string]string{
		"privileged cap-add cap-drop security-opt userns userns-mode group-add": "not available (see docs/concepts/security.md); use --sudo for setuid programs",
		"device device-cgroup-rule device-request gpu":                          "not available: sandboxes cannot use devices of the machine",
		"volume v volumes-from volume-driver mount bind":                        "use --mount DIR[:ro] or -v SRC:DST[:ro]",
		"network network-mode net network-alias link ip ip6 mac-address":        "use --network",
		"publish p publish-all expose port":                                     "use sandboxd port NAME PORT",
		"pid pid-mode ipc ipc-mode uts uts-mode cgroup cgroupns cgroup-parent":  "not available: a sandbox has its own namespaces and control group",
		"runtime isolation":     "use --isolation",
		"entrypoint command":    "use --no-entrypoint, then sandboxd run",
		"user u":                "use --user",
		"workdir w working-dir": "use --workdir",
		"name":                  "use sandboxd new NAME",
		"image platform pull":   "use --image",
		"restart restart-policy rm auto-remove remove detach": "the daemon starts and removes " +
			"sandboxes: use --ttl, --delete-after",
		"stop-signal stop-timeout init": "not available: the guest is the " +
			"first process, and ends the others on stop",
		"attach interactive tty stdin-open sig-proxy": "use sandboxd run or ssh: " +
			"sessions have terminals",
		"log-driver log-opt log-config": "not available: the container's " +
			"log is that of the guest; for output of sessions use sandboxd log",
		"memory m mem-limit": "use --memory",
		"memory-swap memswap-limit memory-swappiness mem-swappiness oom-kill-disable kernel-memory": "not available: --memory limits memory and swap together",
		"cpus nano-cpus cpu-quota cpu-period cpu-count cpu-percent cpu-rt-runtime cpu-rt-period":    "use --cpus",
		"pids-limit":                            "use --pids",
		"shm-size":                              "use --shm",
		"storage-opt":                           "use --disk",
		"env-file label-file":                   "use env or label for each value",
		"health-cmd healthcheck no-healthcheck": "use sandboxd describe",
	} {
		for name := range strings.FieldsSeq(names) {
			all[name] = instead
		}
	}
	return all
}()

// other maps further names of options to ours.
var other = map[string]string{"environment": "env", "extra-host": "add-host", "h": "hostname",
	"e": "env", "l": "label"}

// Docker's own engine honors all options with a runtime that uses this machine's kernel. Elsewhere
// only these work.
var (
	// With engines that speak Docker's API but are not Docker; see IsDockers.
	compatibleOptions = []string{"env"}
	// With runtimes that have their own kernel: the engine or the guest implements these.
	ownKernel = []string{"add-host", "dns", "dns-search", "env", "label"}
)

var (
	errTakes = errors.New("invalid value")
	errTwice = errors.New("it is given twice")
)

// OptionNames returns the supported options, sorted.
func OptionNames() []string { return slices.Sorted(maps.Keys(optionsByName)) }

// CheckOptions checks options of a Spec without an engine. Its error names the alternative.
func CheckOptions(list []string) error {
	_, err := parseOptions(list)
	if hint := sandbox.HintOf(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// parseOptions parses the options of a Spec. An error names the option.
func parseOptions(list []string) (options, error) {
	var o options
	if len(list) > maxOptions {
		return o, fmt.Errorf("%d docker options; at most %d are allowed", len(list), maxOptions)
	}
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		known, found := optionsByName[name]
		switch {
		case !found:
			return options{}, unknownOption(name)
		case !ok || value == "" || len(text) > maxOptionLen || strings.ContainsFunc(
			value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return options{}, fmt.Errorf("docker option %s takes %s", name, known.takes)
		case slices.Contains(once, name) && slices.Contains(o.names, name):
			return options{}, fmt.Errorf("docker option %s: %w", name, errTwice)
		}
		switch err := known.set(&o, value); {
		case err == nil:
		case errors.Is(err, errTwice):
			return options{}, fmt.Errorf("docker option %s=%.100s: %w", name, value, err)
		default:
			return options{}, fmt.Errorf("docker option %s takes %s; not %.100q", name, known.takes,
				value)
		}
		if name == "env" {
			text, _, _ = strings.Cut(value, "=")
			text = "env=" + text
		}
		o.names, o.given = append(o.names, name), append(o.given, text)
	}
	return o, nil
}

// unknownOption returns the error of an unsupported option, with the alternative as a hint.
func unknownOption(name string) error {
	plain := strings.Trim(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "- ")
	for _, try := range []string{plain, strings.TrimSuffix(plain, "s")} {
		if instead := reserved[try]; instead != "" {
			return sandbox.Hint(fmt.Errorf("docker option %.60q is reserved: %w", name,
				sandbox.ErrUnsupported), instead)
		}
		if _, is := optionsByName[try]; !is {
			try = other[try]
		}
		if try != "" {
			return sandbox.Hint(fmt.Errorf("docker option %.60q: %w", name, sandbox.ErrUnsupported),
				fmt.Sprintf("use %s, which takes %s", try, optionsByName[try].takes))
		}
	}
	return sandbox.Hint(fmt.Errorf("docker option %.60q: %w", name, sandbox.ErrUnsupported),
		"supported options: "+strings.Join(OptionNames(), ", "))
}

// fit rejects options that conflict with spec, or that the engine would silently ignore.
func (o options) fit(spec sandbox.Spec, memory int64, f facts) error {
	for i, name := range o.names {
		if f.compatible && !slices.Contains(compatibleOptions, name) {
			return sandbox.Hint(fmt.Errorf("docker option %s: %w: the engine is not Docker's own", name,
				sandbox.ErrUnsupported), "omit it; this engine supports "+
				strings.Join(compatibleOptions, ", "))
		}
		if runtime := cmp.Or(spec.Isolation, f.defaultRuntime); !passesDescriptors(runtime) &&
			!slices.Contains(ownKernel, name) {
			return sandbox.Hint(fmt.Errorf(
				"docker option %s: %w with isolation %s, which has its own kernel", name,
				sandbox.ErrUnsupported, runtime), "omit it; this isolation supports "+
				strings.Join(ownKernel, ", "))
		}
		if (name == "dns" || name == "dns-search") && spec.Network != sandbox.NetworkBridge {
			return sandbox.Hint(fmt.Errorf(
				"docker option %s: %w with network %s, where the daemon resolves names", o.given[i],
				sandbox.ErrUnsupported, spec.Network), "omit it, or use --network bridge")
		}
	}
	for at, t := range o.Tmpfs {
		for _, m := range spec.Mounts {
			if inside := m.Inside(); machine.Within(at, inside) || machine.Within(inside, at) {
				return fmt.Errorf("docker option tmpfs=%s: the directory %s is mounted there", at,
					m.Path)
			}
		}
		if t.size > memory {
			return fmt.Errorf("docker option tmpfs=%s: %s is more than the memory limit, %s", at,
				sandbox.FormatSize(t.size), sandbox.FormatSize(memory))
		}
	}
	return nil
}

// apply adds o to r.
func (o options) apply(r *container.CreateRequest) {
	if o.Hostname != "" {
		r.Config.Hostname = o.Hostname
		// The list already has the sandbox's name.
		if len(r.HostConfig.ExtraHosts) > 0 {
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
		_ = put(&h.Tmpfs, at, t.options) // keys of the map are unique
	}
	h.CPUShares, h.CpusetCpus, h.BlkioWeight = o.CPUShares, o.CPUSet, o.BlkioWeight
	h.Ulimits = append(h.Ulimits, o.Ulimits...)
}

// isHostName reports whether s is a host name; a single label is one.
func isHostName(s string) bool { return len(s) <= 253 && validHost.MatchString(s) }

// isReservedLabel reports whether a label has a meaning to us, an engine or a container manager.
func isReservedLabel(label string) bool {
	return slices.ContainsFunc([]string{ourLabels, "com.docker.", "io.docker.",
		"org.dockerproject.", "io.podman.", "io.containers."},
		func(prefix string) bool { return strings.HasPrefix(strings.ToLower(label)+".", prefix) })
}

// closedToTmpfs are directories of the kernel, the engine and the guest, besides /.
var closedToTmpfs = []string{"/proc", "/sys", "/dev", "/.sandboxd", "/etc"}

// parseTmpfs parses PATH[:OPTION,…]. It accepts no mode: runc uses the mode of an existing
// directory, and from the second start on the directory exists.
func parseTmpfs(value string) (at string, t tmpfs, err error) {
	at, text, _ := strings.Cut(value, ":")
	if !path.IsAbs(at) || path.Clean(at) != at || at == "/" || strings.ContainsAny(at, ",\\\"") ||
		slices.ContainsFunc(closedToTmpfs, func(dir string) bool {
			return machine.Within(at, dir)
		}) {
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
		case part == "rw", part == "nosuid", part == "nodev": // these are set already
		default:
			err = errTakes
		}
		if err != nil {
			return "", t, errTakes
		}
	}
	t.options = fmt.Sprintf("rw,nosuid,nodev,%s,size=%d,mode=%s,uid=%d,gid=%d", exec, t.size, mode,
		uid, gid)
	return at, t, nil
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
