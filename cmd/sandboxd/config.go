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
	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// setting is one key of the configuration. Flags > SANDBOXD_* > --config > the user's file > /etc.
type setting struct {
	key   string // in files; SANDBOXD_KEY in the environment
	value string // the default, then what is in force
	from  string // where value comes from
	help  string
	check func(string) error // nil accepts anything
}

// config is every setting by key.
type config []*setting

// defaultSSH is where the daemon listens when nobody said where; the port is not registered for anything.
const defaultSSH = "127.0.0.1:2222"

func defaults() config {
	return config{
		{key: "state", value: agent.DefaultState(), help: "directory of everything that the daemon keeps", check: isAbsolute},
		{key: "ssh", value: defaultSSH, help: "address of the SSH front door; a port 0 takes any", check: isAddress},
		{key: "network", value: string(sandbox.NetworkNone), help: "network of sandboxes that ask for none: none or bridge", check: isNetwork},
		{key: "image", value: sandbox.DefaultImage, help: "image of sandboxes that ask for none"},
		{key: "docker_host", value: "", help: "socket of the Docker engine, as unix:///path; empty means DOCKER_HOST or /var/run/docker.sock"},
		{key: "ca_bundle", value: "", help: "certificate authorities that sandboxes trust; empty means this machine's", check: isAbsoluteOrEmpty},
		{key: "guest_dir", value: "", help: "directory of the guest binaries; empty means beside sandboxd", check: isAbsoluteOrEmpty},
		{key: "max_sandboxes", value: "64", help: "most sandboxes of one owner", check: isCount},
		{key: "record_quota", value: "256m", help: "most bytes of one session's record", check: isSize},
		{key: "log_level", value: "info", help: "debug, info, warn or error", check: isLevel},
	}
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
		if !ours || value == "" || slices.Contains(foreignEnv, name) || strings.HasPrefix(key, "TEST_") {
			continue // empty is as good as unset: env files cannot unset
		}
		if err := c.set(strings.ToLower(key), value, name); err != nil {
			return nil, err
		}
	}
	return c, nil
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
		fmt.Fprintf(w, "# %s\n%s: %s", s.help, s.key, yamlScalar(s.value))
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
	switch sandbox.Network(s) {
	case sandbox.NetworkNone, sandbox.NetworkBridge:
		return nil
	case sandbox.NetworkFiltered, sandbox.NetworkAllowlist:
		return errors.New("is not in this version")
	}
	return errors.New("is no network mode")
}

func isSize(s string) error {
	_, err := command.ParseSize(s)
	return err
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

func isLevel(s string) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, s) {
		return errors.New("is no level")
	}
	return nil
}

func usage(message, hint string) error {
	return &wire.Error{Code: wire.CodeUsage, Message: message, Hint: hint}
}
