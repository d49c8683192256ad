package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func messages(all []Problem) []string {
	var texts []string
	for _, p := range all {
		_, message, _ := strings.Cut(p.Message(), "c.yaml")
		texts = append(texts, message+"; "+p.Fix)
	}
	return texts
}

func TestDefaultsAreThoseOfThePackages(t *testing.T) {
	c := Load(Sources{})
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	if got := c.Limits.SandboxLimits(); got != sandbox.DefaultLimits {
		t.Errorf("limits are %+v, want %+v", got, sandbox.DefaultLimits)
	}
	if got := c.ExplicitLimits(); got != (sandbox.Limits{}) {
		t.Errorf("explicit limits are %+v, want none", got)
	}
	if c.Image != sandbox.DefaultImage || c.Python.Image != images.Python {
		t.Errorf("images are %s and %s", c.Image, c.Python.Image)
	}
	for _, s := range c.Settings() {
		if s.Origin != "default" {
			t.Errorf("%s comes from %s", s.Key, s.Origin)
		}
	}
}

func TestEveryFieldHasAMeaning(t *testing.T) {
	for _, f := range fields() {
		if !strings.HasSuffix(f.Meaning, ".") {
			t.Errorf("%s: its meaning is %q", f.Key, f.Meaning)
		}
	}
	for _, s := range sections() {
		if !strings.HasSuffix(s.Meaning, ".") {
			t.Errorf("section %s: its meaning is %q", s.Key, s.Meaning)
		}
	}
}

// A check of an unknown key would never run.
func TestChecksAreOfKnownKeys(t *testing.T) {
	for key := range new(Config).check() {
		if find(key) == nil {
			t.Errorf("%s is checked, and is no key", key)
		}
	}
}

func TestLaterSourcesReplaceEarlierOnes(t *testing.T) {
	text := "image: file\npool: {images: [a, b]}\n"
	for _, key := range []string{"ssh", "http"} {
		text += key + ": 127.0.0.1:1\n"
	}
	usual, file := write(t, "image: usual\nisolation: usual\nttl: 1m\n"), write(t, text)
	c := Load(Sources{
		Usual: []string{usual, filepath.Join(t.TempDir(), "missing.yaml")},
		File:  file,
		Environ: []string{"SBX_HTTP=127.0.0.1:2", "SBX_SSH=127.0.0.1:2", "SANDBOXD_SSH=127.0.0.1:3",
			"SANDBOXD_TTL=", "SBX_POOL_IMAGES=x,y z"},
		Flags: map[string]string{"state": "/flag"},
	})
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range c.Settings() {
		if s.Origin != "default" {
			got[s.Key] = s.Value + " from " + s.Origin
		}
	}
	want := map[string]string{
		"state": "/flag from --state", "ssh": "127.0.0.1:3 from SANDBOXD_SSH",
		"http": "127.0.0.1:2 from SBX_HTTP", "image": "file from " + file + ":1",
		"isolation": "usual from " + usual + ":2", "ttl": "1m from " + usual + ":3",
		"pool.images": "x,y z from SBX_POOL_IMAGES",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if want := (Words{"x", "y", "z"}); !slices.Equal(c.Pool.Images, want) || c.State != "/flag" {
		t.Errorf("pool.images is %v, state %s", c.Pool.Images, c.State)
	}
}

func TestBadFiles(t *testing.T) {
	bomb := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 10))
	}
	bomb += "allow: *j\n"
	for _, tt := range []struct {
		name, text string
		want       []string // beginning of each error
	}{
		{"empty", "", nil},
		{"comments alone", "# nothing\n---\n", nil},
		{"CRLF", "image: busybox\r\nquota:\r\n  memory: 1g\r\nallow:\r\n  - a.example\r\n", nil},
		{"byte order mark", "\ufeffimage: busybox\n", nil},
		{"list at the top", "- image: busybox\n", []string{":1: not keys with values, but a list"}},
		{"text at the top", "busybox\n", []string{":1: not keys with values, but a text"}},
		{"tab", "quota:\n\tmemory: 1g\n",
			[]string{":2: not YAML: found character that cannot start"}},
		{"two documents", "image: a\n---\nimage: b\n", []string{":2: a second document"}},
		{"duplicate key", "image: a\nttl: 1h\nimage: b\n",
			[]string{":3: image: set twice, first in line 1; remove one"}},
		{"duplicate section key", "quota:\n  memory: 1g\n  memory: 1g\n",
			[]string{":3: quota.memory: set twice, first in line 2"}},
		{"old and new form", "quota:\n  memory: 1g\nquota.memory: 2g\n",
			[]string{":3: quota.memory: set twice, first in line 2"}},
		{"old and new name", find("prefix_key").Old + ": none\nprefix_key: none\n",
			[]string{":2: prefix_key: set twice, first in line 1"}},
		{"alias bomb", bomb, append(slices.Repeat([]string{""}, 10),
			":11: allow: aliases (*NAME, <<) are not supported; write the value")},
		{"merge", "quota: {<<: {memory: 1g}}\n", []string{":1: quota: aliases (*NAME, <<)"}},
		{"size below zero", "quota:\n  memory: -1\nlimits: {disk: -1g}\n", []string{
			`:2: quota.memory "-1": not a size; write a number with k, m, g or t`,
			`:3: limits.disk "-1g": not a size`}},
		{"duration without unit", "ttl: 30\n", []string{
			`:1: ttl "30": not a duration; write a number with`}},
		{"unknown", "nettwork: none\nqouta: {x: 1}\npool: {sise: 1}\nzzzzzzzzzzzz: 1\n", []string{
			`:1: unknown key "nettwork"; did you mean network?`,
			`:2: unknown key "qouta"; did you mean quota?`,
			`:3: unknown key "pool.sise"; did you mean pool.size?`,
			`:4: unknown key "zzzzzzzzzzzz"; to list all keys: sandboxd config show`}},
		{"wrong types",
			"image: [a]\nmax_sandboxes: many\nisolation: true\npool: 4\nallow: {a: b}\n" +
				"closed: [10.0.0.0/8, 5]\nlimits:\n  cpus: two\nquota: {cpus: .nan}\npython: " +
				"[1]\n" +
				"e2b: {templates: [a]}\nttl: {}\nstate: here\n", []string{
				":1: image: not a text, but a list; write one text",
				`:2: max_sandboxes "many": not a whole number; write digits`,
				":3: isolation: not a text, but true or false; put it in quotes",
				":4: pool: a section, not a number; indent below it: size, images",
				":5: allow: not a list, but keys with values; write [FIRST, SECOND]",
				":6: closed: a list with a number in it; put texts in quotes",
				`:8: limits.cpus "two": not a number`,
				`:9: quota.cpus ".nan": not a number`,
				":10: python: a section, not a list",
				":11: e2b.templates: not a map, but a list; write {NAME: VALUE}",
				":12: ttl: not a duration, but keys with values; write a duration, such as 30m",
				`:13: state "here": not an absolute path`}},
		{"out of bounds", "max_sandboxes: 0\npool: {size: 1001}\nlog_level: loud\nnetwork: open\n" +
			"record: {mode: perhaps, total: 0}\nmount_roots: [relative]\nhttp: nowhere\n" +
			"limits: {pids: 1}\nhook: {url: example.com}\nopenai: {base_url: x}\nnetwork_: 1\n",
			[]string{
				`:1: max_sandboxes "0": out of range; write a number from 1 to`,
				`:2: pool.size "1001": out of range; write a number from 0 to 1000`,
				`:3: log_level "loud": must be debug, info, warn or error`,
				`:4: network "open": not a network mode; use filtered`,
				`:5: record.mode "perhaps": must be best_effort or strict`,
				`:5: record.total "0": out of range`,
				`:6: mount_roots "relative": "relative" is not an absolute path`,
				`:7: http "nowhere": not an address; write HOST:PORT`,
				`:8: limits.pids "1": 1 is out of bounds; it may be 64 to`,
				`:9: hook.url: not a URL`,
				`:10: openai.base_url "x": not a URL`,
				`:11: unknown key "network_"; did you mean network?`}},
		{"at odds", "limits:\n  memory: 32m\n  shm: 64m\nagentrun:\n  memswap_limit: 1m\n",
			[]string{
				":5: agentrun.memswap_limit", ":3: limits.shm"}},
		{"secret of another type", "openai:\n  api_key: 12345\n", []string{
			":2: openai.api_key: not a text"}},
		{"key that is a list", "[a]: 1\n", []string{":1: a key that is not one word"}},
		{"larger than 1 MiB", "#" + strings.Repeat(" ", maxFile), []string{": larger than 1 MiB"}},
		{"1 MiB", "image: busybox\n#" + strings.Repeat(" ", maxFile-16), nil},
		{"1 MiB of brackets", strings.Repeat("[", maxFile),
			[]string{": not YAML: exceeded max depth"}},
		{"not YAML", "image: 'busybox\n", []string{":2: not YAML: "}},
		{"binary", "\x00\x01\xff", []string{": not YAML: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := messages(Load(Sources{File: write(t, tt.text)}).Errors)
			if len(got) != len(tt.want) {
				t.Fatalf("got %d errors, want %d:\n%s", len(got), len(tt.want),
					strings.Join(got, "\n"))
			}
			for _, want := range tt.want {
				begins := func(s string) bool { return strings.HasPrefix(s, want) }
				if !slices.ContainsFunc(got, begins) {
					t.Errorf("no error begins with %q:\n%s", want, strings.Join(got, "\n"))
				}
			}
		})
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:              dir + ": is a directory; name a readable file",
		dir + "/missing": dir + "/missing: no such file or directory; name a readable file",
	} {
		all := Load(Sources{File: path}).Errors
		if len(all) != 1 || !strings.HasPrefix(all[0].Message()+"; "+all[0].Fix, want) {
			t.Errorf("%s: got %+v, want %s", path, all, want)
		}
	}
}

// The old form, one text per key, still works, with a warning.
func TestOldFormMeansTheSame(t *testing.T) {
	values := map[string]string{"state": "/s", "mount_roots": "/a:/b",
		"hook.exec":     `run "two words"`,
		"e2b.templates": "a=b, c=d:1", "docker_options": "hostname=lab oom-score-adj"}
	var flat, environ, old []string
	for _, f := range fields() {
		value := values[f.Key]
		if value == "" {
			value = f.Default
		}
		key := f.Key
		if f.Old != "" {
			key = f.Old
		}
		flat = append(flat, fmt.Sprintf("%s: '%s'", key, value))
		if value != "" {
			environ = append(environ, f.variable()+"="+value)
		}
		if strings.Contains(key, ".") || f.Old != "" || f.listed() && f.Kind != "command" {
			old = append(old, f.Key)
		}
	}
	file := Load(Sources{File: write(t, strings.Join(flat, "\n"))})
	env := Load(Sources{Environ: environ})
	for _, c := range []*Loaded{file, env} {
		if len(c.Errors) > 0 {
			t.Fatal(strings.Join(messages(c.Errors), "\n"))
		}
	}
	if diff := cmp.Diff(env.Config, file.Config); diff != "" {
		t.Errorf("a file and the environment differ:\n%s", diff)
	}
	for _, key := range old {
		if !slices.ContainsFunc(file.Warnings, func(p Problem) bool { return p.Key == key }) {
			t.Errorf("%s: no warning", key)
		}
	}
	nested := Load(Sources{File: write(t, `
state: /s
mount_roots: [/a, /b]
hook: {exec: [run, two words]}
e2b: {templates: {a: b, c: "d:1"}}
docker_options: [hostname=lab, oom-score-adj]
`)})
	if diff := cmp.Diff(env.Config, nested.Config); diff != "" {
		t.Errorf("the new form and the environment differ:\n%s", diff)
	}
	if len(nested.Errors)+len(nested.Warnings) > 0 {
		t.Error(messages(slices.Concat(nested.Errors, nested.Warnings)))
	}
}

func TestVariables(t *testing.T) {
	c := Load(Sources{Environ: []string{
		"SANDBOXD_MAX_SANDBOX=3", "SANDBOXD_OTHER_PRODUCT_THING=x", "SANDBOXD_LOG_LEVEL=trace",
		"SBX_LOG_LEVEL=debug", "SANDBOXD_CHORD=none", "SANDBOXD_GATEWAY=x", "SBX_CONFIG=x",
		"SANDBOXD_TEST_KILLS=1", "SANDBOXD_HOOK_NEEDS=asks", "SANDBOXD_POOL_SIZE=many", "PATH=/bin",
		"SANDBOXD_HOOK_EXEC=\"",
	}})
	var got []string
	for _, p := range slices.Concat(c.Errors, c.Warnings) {
		got = append(got, p.Message()+"; "+p.Fix)
	}
	want := []string{
		`SANDBOXD_HOOK_EXEC: hook.exec "\"": not a command line: Unterminated double-quoted string; ` +
			"add the missing quote",
		`SANDBOXD_POOL_SIZE: pool.size "many": not a whole number; write digits only, such as 64`,
		"SANDBOXD_MAX_SANDBOX: not a setting of sandboxd; did you mean SANDBOXD_MAX_SANDBOXES?",
		"SANDBOXD_OTHER_PRODUCT_THING: not a setting of sandboxd; " +
			"if another product uses it, ignore this",
		"SANDBOXD_LOG_LEVEL: log_level: ignored, because another product uses this variable; " +
			"set SBX_LOG_LEVEL",
		"SANDBOXD_CHORD: prefix_key: old name; set SANDBOXD_PREFIX_KEY",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if c.LogLevel != "debug" || c.PrefixKey != "none" {
		t.Errorf("log_level is %s, prefix_key %s", c.LogLevel, c.PrefixKey)
	}
}

// A command prints the first error, and how to see the others.
func TestErrNamesTheRest(t *testing.T) {
	var e *wire.Error
	err := Load(Sources{File: write(t, "ttl: 1\npool: 1\n")}).Err()
	if !errors.As(err, &e) || e.Code != wire.CodeUsage {
		t.Fatalf("got %v, want an error of usage", err)
	}
	if want := `c.yaml:1: ttl "1": not a duration`; !strings.Contains(e.Message, want) {
		t.Errorf("got %s, want %s", e.Message, want)
	}
	if want := "(1 more: sandboxd config check FILE)"; !strings.HasSuffix(e.Hint, want) {
		t.Errorf("got %s, want %s", e.Hint, want)
	}
}

func TestExampleIsReadWithoutAWarning(t *testing.T) {
	c := Load(Sources{File: "../../../docs/examples/sandboxd.yaml"})
	if all := slices.Concat(c.Errors, c.Warnings); len(all) > 0 {
		t.Error(messages(all))
	}
	if c.Quota.Memory != 16<<30 || len(c.Allow) != 2 || c.E2B.Templates["small"] == "" {
		t.Errorf("read as %+v", c.Config)
	}
}

const secret = "sk-of-a-test"

// The written configuration can be read again and means the same. It has no secrets.
func TestWrittenConfigurationReadsBack(t *testing.T) {
	first := Load(Sources{File: "../../../docs/examples/sandboxd.yaml", Environ: []string{
		"SANDBOXD_OPENAI_API_KEY=" + secret, "SANDBOXD_PYTHON_ABOUT=# odd: 'text'\nof two lines",
		"SANDBOXD_HTTP_HOSTS=a b", "SANDBOXD_IMAGE=1.10", "SANDBOXD_MOUNT_ROOTS=none",
	}})
	text := readBack(t, first)
	const named = "# api_key: (hidden)  # from SANDBOXD_OPENAI_API_KEY"
	if strings.Contains(text, secret) || !strings.Contains(text, named) {
		t.Errorf("the secret is shown, or not named as hidden:\n%s", text)
	}
	for _, s := range first.Settings() {
		if strings.Contains(s.Value, secret) {
			t.Errorf("%s is %s", s.Key, s.Value)
		}
	}
}

// readBack returns the configuration that c writes, and fails unless it means the same.
func readBack(t *testing.T, c *Loaded) string {
	t.Helper()
	if len(c.Errors) > 0 {
		t.Fatal(messages(c.Errors))
	}
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") && len(line) > 101 {
			t.Errorf("a comment of %d columns: %s", len(line)-1, line)
		}
	}
	again := Load(Sources{File: write(t, b.String())})
	if all := slices.Concat(again.Errors, again.Warnings); len(all) > 0 {
		t.Fatalf("%s\n%s", strings.Join(messages(all), "\n"), b.String())
	}
	want := c.Config
	want.OpenAI.APIKey = ""
	bothEmpty := func(a, b any) bool { return emptyList(a) && emptyList(b) }
	equal := cmp.FilterValues(bothEmpty, cmp.Ignore())
	if diff := cmp.Diff(want, again.Config, equal); diff != "" {
		t.Errorf("%s\n%s", diff, b.String())
	}
	return b.String()
}

func emptyList(v any) bool {
	r := reflect.ValueOf(v)
	return (r.Kind() == reflect.Slice || r.Kind() == reflect.Map) && r.Len() == 0
}

// FuzzFile checks that any file can be loaded, and that a valid one can be written and read again.
func FuzzFile(f *testing.F) {
	example, err := os.ReadFile("../../../docs/examples/sandboxd.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	for _, text := range []string{"", "- a", "quota.memory: 1g", "a: &a [*a]",
		"hook: {exec: 'a \"b'}",
		"allow: [\"a\u0085b\"]", "python: {about: \"a\\nb\"}", "mount_roots:", "ttl: 0x10"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := Load(Sources{File: write(t, text)})
		if len(c.Errors) == 0 {
			readBack(t, c)
		}
		for _, p := range c.Errors {
			if p.Problem == "" || p.Fix == "" {
				t.Errorf("an error without text: %+v", p)
			}
		}
	})
}

func TestNearest(t *testing.T) {
	words := []string{"network", "quota"}
	for s, want := range map[string]string{"nettwork": "network", "Quota": "quota",
		"elephant": ""} {
		if got := nearest(s, words); got != want {
			t.Errorf("nearest to %s is %q, want %q", s, got, want)
		}
	}
}
