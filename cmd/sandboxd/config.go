package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/adrg/xdg"
	ref "github.com/distribution/reference"
	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/sshd"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// setting is one key of the configuration. Flags > SANDBOXD_* > --config > the user's file > /etc.
type setting struct {
	key   string // in files; SANDBOXD_KEY in the environment
	value string // the default, then what is in force
	from  string // where value comes from
	help  string
	check func(string) error // nil accepts anything

	secret bool // not shown
}

// shown is the value as it may be printed.
func (s *setting) shown() string {
	if s.secret && s.value != "" {
		return "(hidden)"
	}
	return s.value
}

// config is every setting by key.
type config []*setting

// defaultSSH is where the daemon listens when nobody said where; the port is not registered for anything.
const defaultSSH = "127.0.0.1:2222"

// defaultHTTP likewise.
const defaultHTTP = "127.0.0.1:8022"

// noHTTP is the address of no HTTP door.
const noHTTP = "none"

func defaults() config {
	c := config{
		{key: "state", value: agent.DefaultState(), help: "directory of everything that the daemon keeps", check: isAbsolute},
		{key: "ssh", value: defaultSSH, help: "address of the SSH front door; a port 0 takes any", check: isAddress},
		{key: "http", value: defaultHTTP, help: "address of the HTTP front door, as ssh; the next free port where nobody set it and it is taken; none is no such door", check: isAddressOrNone},
		{key: "http_hosts", value: "", help: "names, by commas or spaces, by which HTTP clients may ask for this daemon besides localhost and addresses: those of a proxy in front of it"},
		{key: "e2b.templates", value: "", help: "images by the names that clients in E2B's shape have for them, as NAME=IMAGE by commas or spaces; base, unless it is listed, is image, and code-interpreter-v1 sandboxd/python", check: areTemplates},
		{key: "network", value: string(sandbox.NetworkFiltered), help: "network of sandboxes that ask for none: filtered, allowlist, none or bridge; =tun behind one of the first two takes no proxy for it", check: isNetwork},
		{key: "allow", value: "", help: "what every sandbox with network filtered or allowlist may connect to besides, as allow takes it; by commas or spaces", check: isAllow},
		{key: "closed", value: "", help: "ranges closed to them unless listed, by commas or spaces, besides loopback, link-local, metadata and multicast ones; empty means private, shared and reserved ones", check: isClosed},
		{key: "connections", value: "0", help: "most connections of all sandboxes together, with network filtered or allowlist; 0 is half of the files that the daemon may have open, and at most 16384", check: isCountOrNone},
		{key: "bridge", value: "", help: "principals besides the daemon's own user who may ask for network bridge, by commas or spaces; all may where the key network says so"},
		{key: "image", value: sandbox.DefaultImage, help: "image of sandboxes that ask for none"},
		{key: "pool.size", value: "0", help: "sandboxes of each image of pool.images that are booted before anybody asks, for those who ask for nothing but a name and the image; 0 is none", check: isPoolSize},
		{key: "pool.images", value: "", help: "images that the pool has, by commas or spaces; empty means image", check: areImages},
		{key: "isolation", value: "", help: "runtime that keeps sandboxes apart from this machine, by the name that the engine has for it, such as runc or runsc; empty means the engine's default"},
		{key: "docker_options", value: "", help: "options of docker run that principals besides the daemon's own user may ask for, as NAME, or NAME=VALUE for one value alone; by spaces", check: areOpenOptions},
		{key: "mount_roots", value: defaultRoots(), help: "directories below which sandboxes of the daemon's own user may mount some, with a colon between two; none is none", check: areRoots},
		{key: "docker_host", value: "", help: "socket of the Docker engine, as unix:///path; empty means DOCKER_HOST or /var/run/docker.sock"},
		{key: "ca_bundle", value: "", help: "certificate authorities that sandboxes trust; empty means this machine's", check: isAbsoluteOrEmpty},
		{key: "guest_dir", value: "", help: "directory of the guest binaries; empty means beside sandboxd, or sandboxd itself", check: isAbsoluteOrEmpty},
		{key: "max_sandboxes", value: "64", help: "most sandboxes of one owner", check: isCount},
		{key: "total.sandboxes", value: "1000", help: "most sandboxes of all owners together; what stands ready in the pool has what is left of it", check: isCount},
		{key: "total.running", value: "0", help: "most of them that are not stopped; 0 is one for each 32 MiB of memory and each 64 threads that this machine has, and each 16 files that the daemon may have open, at most 1000", check: isCountOrNone},
		{key: "ttl", value: "0", help: "how long nobody may use a sandbox that asks for nothing else until it is stopped, its files kept, as 30m or 12h; 0 is for ever", check: isAge},
		{key: "delete_after", value: "0", help: "how long such a sandbox may be stopped until it is removed with its files, as 7d; 0 is for ever", check: isAge},
		{key: "quota.sessions", value: "0", help: "most sessions of one owner's sandboxes together; 0 is no such limit", check: isCountOrNone},
		{key: "quota.connections", value: "0", help: "most connections of one owner's sandboxes together, with network filtered or allowlist; 0 is half of connections, and never more than are left for everybody", check: isCountOrNone},
		{key: "quota.memory", value: "0", help: "most memory that one owner's running sandboxes may be allowed together, such as 16g; 0 is no such limit", check: isQuota},
		{key: "quota.cpus", value: "0", help: "most processor cores of the same; 0 is no such limit", check: isCores},
		{key: "quota.disk", value: "0", help: "most disk that one owner's sandboxes may be allowed together, those that are stopped included; 0 is no such limit", check: isQuota},
		{key: "disk.min_free", value: "1g", help: "while the engine's disk has less than that free nothing is made or started, and what writes most is stopped; 0 is no such floor", check: isQuota},
		{key: "record.quota", value: "256m", help: "most bytes of one session's record; then its oldest part goes", check: isSize},
		{key: "record.total", value: "2g", help: "most bytes of a sandbox's records; then those of sessions that have ended go, the oldest first", check: isSize},
		{key: "record.keep", value: "0", help: "how long the record of a session that has ended is kept, as 30d or 12h; 0 is while there is room", check: isAge},
		{key: "record.mode", value: recordBestEffort, help: "best_effort: a session that cannot be recorded goes on; strict: it ends", check: isRecordMode},
		{key: "hook.exec", value: "", help: "program with its arguments that is told on standard input when what a session needs changes; no shell", check: isProgramOrEmpty},
		{key: "hook.url", value: "", help: "URL that is told of the same by POST", check: isHTTPOrEmpty},
		{key: "chord", value: "ctrl-]", help: "key that begins what a person in a session asks of us, such as take and give: ctrl- and a letter or one of \\ ] ^ _, or none", check: sshd.CheckPrefixKey},
		{key: "agentrun.dependencies_whitelist", value: "*", help: "packages that code of POST /v1/run/ may have installed, by commas or spaces; * is any, none is none", check: isWhitelist},
		{key: "agentrun.cached_dependencies", value: "", help: "packages that such code has without their being installed for it, by commas or spaces", check: isPackages},
		{key: "agentrun.cpu_quota", value: "50000", help: "microseconds of processors that it has in each tenth of a second", check: isCount},
		{key: "agentrun.memory_limit", value: "100m", help: "its memory", check: isSize},
		{key: "agentrun.memswap_limit", value: "512m", help: "its memory and swap together, where the machine has swap", check: isSize},
		{key: "agentrun.timeout", value: "20s", help: "after which it is killed, as 90s or 5m; at most 1h", check: isAge},
		{key: "agentrun.image", value: "", help: "image that it runs in, with python3 and pip; empty means image"},
		{key: "agentrun.network", value: "", help: "its network, as network; empty means that", check: isNetworkOrEmpty},
		{key: "agentrun.install_from", value: "pypi.org:443 files.pythonhosted.org:443", help: "what installing packages for it may connect to, as allow", check: isAllow},
		{key: "agentrun.warm", value: "4", help: "sandboxes that stand ready for somebody who has called in the last ten minutes", check: isPoolSize},
		{key: "agentrun.parallel", value: "8", help: "calls that run at once; further ones wait", check: isCount},
		{key: "python.image", value: images.Python, help: "image of a sandbox that python makes, with python3, ipykernel and jupyter_server"},
		{key: "python.network", value: string(sandbox.NetworkNone), help: "its network, as network; empty means that", check: isNetworkOrEmpty},
		{key: "python.memory", value: "1g", help: "its memory", check: isSize},
		{key: "python.isolation", value: "", help: "its runtime, as isolation; empty means that"},
		{key: "python.options", value: "", help: "its options of docker run, as new --docker-option has them; by spaces, each without one", check: areOptions},
		{key: "python.timeout", value: "2m", help: "after which code that python runs is interrupted, where the call says nothing else", check: isAge},
		{key: "python.idle", value: "30m", help: "after which a context that nobody uses ends, with its variables", check: isAge},
		{key: "python.dir", value: "/mnt/data", help: "directory of the sandbox in which code begins, made if it is missing", check: isAbsolute},
		{key: "python.images", value: imagesAuto, help: "how python draws images on a terminal: auto asks the terminal; kitty, iterm2, sixel, none", check: isDrawing},
		{key: "python.about", value: "", help: "what a model is told of Python besides, such as which packages and data there are; describe shows it of a sandbox that python makes"},
		{key: "openai.base_url", value: "https://api.openai.com/v1", help: "server that task asks, which speaks OpenAI's Chat Completions; OPENAI_BASE_URL goes before it", check: isHTTPOrEmpty},
		{key: "openai.api_key", value: "", help: "key for it, which config show hides; OPENAI_API_KEY goes before it", secret: true},
		{key: "openai.model", value: "", help: "model that task asks for; OPENAI_MODEL goes before it"},
		{key: "openai.timeout", value: "5m", help: "time for one answer of it, as 90s or 20m; one that goes silent for a fifth of it is given up", check: isAge},
		{key: "log_level", value: "info", help: "debug, info, warn or error", check: isLevel},
	}
	for _, d := range sandbox.AllLimits {
		c = append(c, &setting{key: "limits." + d.Name, value: d.Text(sandbox.DefaultLimits), help: "of sandboxes that ask for nothing else: " + d.Help,
			check: func(s string) error { return d.Set(new(sandbox.Limits), s) }})
	}
	return c
}

func (c config) find(key string) *setting {
	for _, s := range c {
		if s.key == key {
			return s
		}
	}
	return nil
}

func (c config) value(key string) string { return c.find(key).value }

// set checks a value and puts it in force.
func (c config) set(key, value, from string) error {
	s := c.find(key)
	if s == nil {
		return c.unknown(key, from)
	}
	if s.check != nil {
		if err := s.check(value); err != nil {
			return usage(fmt.Sprintf("%s: %s %q: %v", from, key, value, err), s.help)
		}
	}
	s.value, s.from = value, from
	return nil
}

func (c config) unknown(key, from string) error {
	hint := "known keys: " + strings.Join(c.keys(), ", ")
	if near := nearest(key, c.keys()); near != "" {
		hint = "did you mean " + near + "?"
	}
	return usage(fmt.Sprintf("%s: unknown key %q", from, key), hint)
}

func (c config) keys() []string {
	var keys []string
	for _, s := range c {
		keys = append(keys, s.key)
	}
	return keys
}

// foreignEnv are SANDBOXD_* variables that are no settings of ours: the client's own, what tests of this project set, and
// what Docker's product of the same name is known to leave about.
var foreignEnv = []string{"SANDBOXD_GATEWAY", "SANDBOXD_CONFIG", "SANDBOXD_LOG_LEVEL"}

// loadConfig reads files and the environment. file is what --config names; empty reads the usual ones.
func loadConfig(file string, environ []string) (config, error) {
	c := defaults()
	for _, s := range c {
		s.from = "default"
	}
	files := []string{"/etc/sandboxd/config.yaml", filepath.Join(xdg.ConfigHome, "sandboxd", "config.yaml")}
	if file != "" {
		files = append(files, file)
	}
	for _, path := range files {
		if err := c.readFile(path, path == file); err != nil {
			return nil, err
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		key, ours := strings.CutPrefix(name, "SANDBOXD_")
		if !ours || value == "" || slices.Contains(foreignEnv, name) || slices.Contains(hookEnv, name) || strings.HasPrefix(key, "TEST_") {
			continue // empty is as good as unset: env files cannot unset
		}
		if err := c.set(c.keyOf(key), value, name); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// keyOf is the key that a variable's name means: HOOK_EXEC is hook.exec.
func (c config) keyOf(variable string) string {
	name := strings.ToLower(variable)
	for _, s := range c {
		if strings.ReplaceAll(s.key, ".", "_") == name {
			return s.key
		}
	}
	return name
}

// readFile reads one file of flat keys. One that nobody asked for by name may be missing.
func (c config) readFile(path string, required bool) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return nil
	}
	if err != nil {
		return usage("config: "+err.Error(), "name a file that can be read")
	}
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return usage(fmt.Sprintf("config %s: %v", path, err), "write one key: value per line; see: sandboxd config show")
	}
	for key, node := range keys {
		if node.Kind != yaml.ScalarNode {
			return usage(fmt.Sprintf("%s:%d: %s is not a single value", path, node.Line, key), "write one key: value per line")
		}
		if err := c.set(key, node.Value, fmt.Sprintf("%s:%d", path, node.Line)); err != nil {
			return err
		}
	}
	return nil
}

// show prints every setting, with where it comes from on request.
func (c config) show(w io.Writer, origin bool) {
	for _, s := range c {
		fmt.Fprintf(w, "# %s\n%s: %s", s.help, s.key, yamlScalar(s.shown()))
		if origin {
			fmt.Fprintf(w, "  # from %s", s.from)
		}
		fmt.Fprintln(w)
	}
}

func yamlScalar(s string) string {
	text, err := yaml.Marshal(s)
	if err != nil {
		return strconv.Quote(s)
	}
	return strings.TrimSpace(string(text))
}

// nearest returns the word that differs least from s, if that is little.
func nearest(s string, words []string) string {
	best, at := "", len(s)/3+2
	for _, w := range words {
		if d := distance(strings.ToLower(s), w); d < at {
			best, at = w, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(change, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

func isAbsolute(s string) error {
	if !filepath.IsAbs(s) {
		return errors.New("is not an absolute path")
	}
	return nil
}

func isAbsoluteOrEmpty(s string) error {
	if s == "" {
		return nil
	}
	return isAbsolute(s)
}

func isNetwork(s string) error {
	if _, _, err := command.ParseNetwork(s); err != nil {
		return fmt.Errorf("is no network mode: %w", err)
	}
	return nil
}

func isNetworkOrEmpty(s string) error {
	if s == "" {
		return nil
	}
	return isNetwork(s)
}

func isAllow(s string) error {
	_, err := command.ParseAllow(s)
	return err
}

func isClosed(s string) error {
	_, err := command.ParseClosed(s)
	return err
}

func isSize(s string) error {
	_, err := sandbox.ParseSize(s)
	return err
}

func isAge(s string) error {
	_, err := command.ParseAge(s)
	return err
}

// Modes of recording.
const (
	recordBestEffort = "best_effort"
	recordStrict     = "strict"
)

func isRecordMode(s string) error {
	if s != recordBestEffort && s != recordStrict {
		return errors.New("is neither best_effort nor strict")
	}
	return nil
}

func isAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("is not HOST:PORT")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return errors.New("has no port from 0 to 65535")
	}
	return nil
}

func isCount(s string) error {
	if n, err := strconv.Atoi(s); err != nil || n < 1 {
		return errors.New("is not a number above 0")
	}
	return nil
}

func isCountOrNone(s string) error {
	if n, err := strconv.Atoi(s); err != nil || n < 0 || n > 1<<30 {
		return errors.New("is not a number, nor 0 for none")
	}
	return nil
}

// maxPool is far beyond what anybody means: each is a container that runs.
const maxPool = 1000

func isPoolSize(s string) error {
	if n, err := strconv.Atoi(s); err != nil || n < 0 || n > maxPool {
		return fmt.Errorf("is not a number from 0 to %d", maxPool)
	}
	return nil
}

func areImages(s string) error {
	for _, image := range command.Words(s) {
		if _, err := ref.ParseNormalizedNamed(image); err != nil {
			return fmt.Errorf("image %q: %w", image, err)
		}
	}
	return nil
}

func areOptions(s string) error { return docker.CheckOptions(strings.Fields(s)) }

// areOpenOptions takes options with and without a value.
func areOpenOptions(s string) error {
	for _, option := range strings.Fields(s) {
		if slices.Contains(docker.OptionNames(), option) {
			continue
		}
		if err := docker.CheckOptions([]string{option}); err != nil {
			return err
		}
	}
	return nil
}

func isQuota(s string) error {
	if _, err := parseQuota(s); err != nil {
		return errors.New("is not a size such as 512m or 2g, nor 0 for none")
	}
	return nil
}

func isCores(s string) error {
	if n, err := strconv.ParseFloat(s, 64); err != nil || !(n >= 0 && n <= 1<<20) { // which NaN is not
		return errors.New("is not a number of cores such as 8 or 2.5, nor 0 for none")
	}
	return nil
}

func isLevel(s string) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, s) {
		return errors.New("is no level")
	}
	return nil
}

func usage(message, hint string) error {
	return &wire.Error{Code: wire.CodeUsage, Message: message, Hint: hint}
}
