package sshd

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// config is what of an sshd_config means something to the gateway.
type config struct {
	port     string
	address  string
	pidFile  string
	hostKeys []string
	keys     []string // files like authorized_keys
	grace    time.Duration
	startups int
}

// ignored are the keywords that ask for what the gateway does anyway, or that mean nothing outside
// of sshd's own process. The lists of algorithms are among them: the suite allows in them what the
// client then chooses.
var ignored = []string{"strictmodes", "addressfamily", "loglevel", "usepam", "subsystem",
	"acceptenv", "securitykeyprovider",
	"useprivilegeseparation", "pubkeyauthentication", "ciphers", "macs", "kexalgorithms",
	"hostkeyalgorithms", "pubkeyacceptedalgorithms",
	"casignaturealgorithms"}

// readConfig reads the files and options of sshd's command line. A keyword that the gateway has
// nothing for is an error: a test must not pass because what it asks for was overlooked.
func readConfig(path string, options []string) (config, error) {
	c := config{address: "127.0.0.1", port: "22"}
	f, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer f.Close()
	lines := slices.Clone(options) // the first that names a thing counts, and options come first
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
	}
	for _, line := range lines {
		if err := c.line(line); err != nil {
			return c, fmt.Errorf("%s: %q: %w", path, line, err)
		}
	}
	if len(c.hostKeys) == 0 {
		return c, fmt.Errorf("%s: no HostKey", path)
	}
	return c, nil
}

func (c *config) line(line string) error {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return nil
	}
	end := strings.IndexAny(line, " \t=")
	if end < 0 {
		end = len(line)
	}
	keyword, rest := strings.ToLower(line[:end]), strings.Trim(line[end:], " \t=")
	value := strings.Trim(rest, `"'`)
	var err error
	switch keyword {
	case "port":
		c.port = value
	case "listenaddress":
		c.address = value
	case "pidfile":
		c.pidFile = value
	case "hostkey":
		c.hostKeys = append(c.hostKeys, value)
	case "authorizedkeysfile":
		for _, file := range strings.Fields(value) {
			c.keys = append(c.keys, strings.ReplaceAll(file, "%u", login))
		}
	case "logingracetime":
		seconds := strings.TrimSuffix(value, "s")
		c.grace, err = time.ParseDuration(seconds + "s")
	case "maxstartups":
		c.startups, err = strconv.Atoi(value)
	default:
		if !slices.Contains(ignored, keyword) {
			return fmt.Errorf("the gateway has no %s", keyword)
		}
	}
	return err
}

// What the suite asks for and the gateway has not is an error, never left out.
func TestReadConfig(t *testing.T) {
	path := t.TempDir() + "/sshd_config"
	read := func(text string, options ...string) (config, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readConfig(path, options)
	}
	got,
		err := read(
		"\tPort\t\t4242\n#ListenAddress ::1\nHostKey /a\nHostKey=/b\nAuthorizedKeysFile "+
			"/keys_%u\nCiphers=x\nLoginGraceTime 10s\nPidFile /p\n",
		"MaxStartups 1")
	want := config{port: "4242", address: "127.0.0.1", pidFile: "/p",
		hostKeys: []string{"/a", "/b"}, keys: []string{"/keys_" + login},
		grace: 10 * time.Second, startups: 1}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, text := range []string{"HostKey /a\nForceCommand true\n",
		"HostKey /a\nAllowUsers nobody\n", "Port 22\n", "HostKey /a\nMaxStartups many\n"} {
		if _, err := read(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
