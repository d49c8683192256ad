package images

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRecipe(t *testing.T) {
	tests := []struct {
		ref  string
		want bool
	}{
		{Default, true},
		{"sandboxd/base", true},
		{"sandboxd/base:" + checksum(baseRecipe...)[:12], true},
		{"sandboxd/base:000000000000", false},
		{"sandboxd/busybox:latest", true},
		{"sandboxd/empty", true},
		{"sandboxd/empty:1", false},
		{Python, true},
		{"sandboxd/python-full", true},
		{"sandboxd/layer", false},
		{"sandboxd/none", false},
		{"sandboxd/", false},
		{"sandboxd/..", false},
		{"sandboxd/base/../base", false},
		{"debian:bookworm", false},
		{"", false},
	}
	for _, test := range tests {
		if _, err := recipe(test.ref); (err == nil) != test.want || err != nil &&
			!errors.Is(err, ErrUnknown) {
			t.Errorf("recipe(%q): %v, want one: %v", test.ref, err, test.want)
		}
	}
}

// Both recipes of the base image install, configure and declare the same.
func TestBaseRecipesAgree(t *testing.T) {
	script, dockerfile := read(t, "base/build"), read(t, "base/Dockerfile")

	for name, text := range map[string]string{"build": script, "Dockerfile": dockerfile} {
		if !strings.Contains(text, "sed 's/#.*//'") || !strings.Contains(text, "packages") {
			t.Errorf("%s does not read its packages from the common list", name)
		}
		if strings.Contains(text, "--install-recommends") {
			t.Errorf("%s installs recommended packages", name)
		}
	}
	if got, want := find(t, dockerfile, `(?m)^RUN (localedef .*)$`),
		find(t, script, `chroot "\$1" (localedef [^']*)'`); got != want {
		t.Errorf("Dockerfile has %q for the locale, build has %q", got, want)
	}
	if !strings.Contains(dockerfile, "--no-install-recommends") {
		t.Error("Dockerfile installs recommended packages; mmdebstrap does not")
	}

	suite := find(t, script, `(?m)^readonly suite=(\S+)$`)
	if got, want := find(t, dockerfile, `(?m)^FROM (\S+)$`), "debian:"+suite; got != want {
		t.Errorf("Dockerfile starts from %s, build makes %s", got, want)
	}

	// ENV and CMD, in the syntax of the Dockerfile.
	declared := func(text, pattern string) []string {
		var lines []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			lines = append(lines, match[1])
		}
		slices.Sort(lines)
		return lines
	}
	got := declared(dockerfile, `(?m)^((?:ENV|CMD|USER|WORKDIR|ENTRYPOINT|EXPOSE|VOLUME) .*)$`)
	want := declared(
		script, `(?m)--change '((?:ENV|CMD|USER|WORKDIR|ENTRYPOINT|EXPOSE|VOLUME) .*)'`)
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("Dockerfile declares %q, build declares %q", got, want)
	}

	// Files that both recipes copy into the image.
	for _, file := range []string{"dpkg.cfg", "pip.conf"} {
		target := find(t, dockerfile, `(?m)^COPY `+regexp.QuoteMeta(file)+` (/\S+)$`)
		if !strings.Contains(script, `$1`+target+`"`) && !strings.Contains(script, target+"'") {
			t.Errorf("Dockerfile puts %s at %s, build does not", file, target)
		}
	}
}

func TestBasePackagesHoldWhatAgentsExpect(t *testing.T) {
	packages := packageNames(t)
	for _, name := range []string{
		"bash", "coreutils", "procps", "psmisc", "curl", "wget", "git", "less", "vim", "nano",
		"python3", "python3-pip",
		"python3-venv", "sudo", "tar", "gzip", "xz-utils", "rsync", "openssh-client",
		"openssh-sftp-server",
		"ca-certificates", "iproute2", "file", "unzip",
	} {
		if !slices.Contains(packages, name) {
			t.Errorf("%s is not in base/packages", name)
		}
	}
	for i, name := range packages {
		if slices.Contains(packages[:i], name) {
			t.Errorf("%s stands twice in base/packages", name)
		}
		if !regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`).MatchString(name) {
			t.Errorf("%q is not a package name", name)
		}
	}
}

// The script and this package use the same files of the recipe for the checksum in the tag.
func TestBaseScriptChecksumsTheWholeRecipe(t *testing.T) {
	var names []string
	for _, name := range strings.Fields(
		find(t, read(t, "base/build"), `(?m)^recipe=\$\(cat (.*) \| sha256sum\)$`)) {
		names = append(names, "base/"+name)
	}
	if !slices.Equal(names, baseRecipe) {
		t.Errorf("base/build checksums %q, images.go %q", names, baseRecipe)
	}
	entries, err := fs.Glob(recipes, "base/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !slices.Contains(names, entry) {
			t.Errorf("%s is not part of the checksum: a change of it would go unnoticed", entry)
		}
	}
}

// Recipes work with any mirror and registry of the machine.
func TestRecipesNameNoHost(t *testing.T) {
	err := fs.WalkDir(recipes, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if url := regexp.MustCompile(`\w+://[\w-]+\.[\w.-]+`).FindString(read(t, name)); url != "" {
			t.Errorf("%s names %s", name, url)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestBuildRefusesWhatIsNotOurs(t *testing.T) {
	for _, ref := range []string{"debian:bookworm", "sandboxd/none", "sandboxd/base:0123456789ab"} {
		if err := Build(t.Context(), "", ref, new(bytes.Buffer)); !errors.Is(err, ErrUnknown) {
			t.Errorf("Build(%q) = %v, want ErrUnknown", ref, err)
		}
	}
}

func TestBuildSaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Build(t.Context(), "", Default, new(bytes.Buffer))
	if err == nil || !strings.Contains(err.Error(), "command is missing; install it") {
		t.Errorf("without any program on PATH: %v", err)
	}
}

func TestBuildReportsAnEngineThatDoesNotAnswer(t *testing.T) {
	requireTools(t, "bash", "docker")
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "none.sock"))
	var out bytes.Buffer
	err := Build(t.Context(), "", Default, &out)
	if err == nil || !strings.Contains(err.Error(), "no Docker engine answers") ||
		!strings.Contains(err.Error(), "DOCKER_HOST") {
		t.Errorf("Build = %v, output %q", err, &out)
	}
}

// An abandoned build ends, with the program that its shell waits for.
func TestBuildEndsWithItsContext(t *testing.T) {
	requireTools(t, "bash", "sleep")
	bin := t.TempDir()
	started := filepath.Join(bin, "started")
	// An engine that has no image and never completes an import.
	fake := "#!/bin/bash\n[[ $1 == import ]] || exit 1\n: >" + started +
		"\necho the engine is asked >&2\nexec sleep 60\n"
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))

	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("nobody wants it any more")
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- Build(ctx, "", "sandboxd/empty", cancelOnWrite{cancel, reason}) }()
	if err := <-done; !errors.Is(err, reason) {
		t.Errorf("Build = %v, want the cause of the context's end", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Build took %v to end", took)
	}
	if _, err := os.Stat(started); err != nil {
		t.Error("the recipe never ran")
	}
}

// cancelOnWrite ends a context at the first output of the build.
type cancelOnWrite struct {
	cancel context.CancelCauseFunc
	reason error
}

func (c cancelOnWrite) Write(p []byte) (int, error) {
	c.cancel(c.reason)
	return len(p), nil
}

// An engine also imports a truncated archive. The result is not the default image, and no later
// build uses it.
func TestBuildThatBreaksOffLeavesNoImage(t *testing.T) {
	requireTools(t, "bash", "dpkg")
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	for name, script := range map[string]string{
		"docker": `echo "$@" >>` + calls + `
			case $1 in
			version) dpkg --print-architecture ;;
			import) cat >/dev/null; echo sha256:torn ;;
			rmi) ;;
			*) exit 1 ;;
			esac`,
		"mmdebstrap": `echo half; echo E: no mirror answers >&2; exit 25`,
		"newuidmap":  `exit 0`,
		"unshare":    `exit 0`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/bash\n"+script+"\n"),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))

	var out bytes.Buffer
	if err := Build(t.Context(), "", Default, &out); err == nil ||
		!strings.Contains(err.Error()+out.String(), "no mirror answers") {
		t.Errorf("Build = %v, output %q", err, &out)
	}
	asked, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(asked), "\nrmi sha256:torn\n") ||
		regexp.MustCompile(`(?m)^tag |^import .*- \S+$`).Match(asked) {
		t.Errorf("the engine was asked:\n%s", asked)
	}
}

func TestBuildEmptyImage(t *testing.T) {
	requireEngine(t)
	var out bytes.Buffer
	if err := Build(t.Context(), "", "sandboxd/empty", &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if got := docker(t, "image", "inspect", "--format", "{{.Size}}",
		"sandboxd/empty:latest"); got != "0" {
		t.Errorf("size of the empty image = %s", got)
	}
}

// The base image has the programs that users and SSH clients call, not only the packages.
func TestBaseImage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a container")
	}
	requireEngine(t)
	var out bytes.Buffer
	if err := Build(t.Context(), "", Default, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	// One container for all checks; it prints a line for each failed one.
	const questions = `
		for p in bash ps killall curl wget git less vim nano python python3 pip sudo tar gzip xz rsync ssh scp sftp ip file unzip; do
			command -v $p >/dev/null || echo "no $p"
		done
		[ -x /usr/lib/openssh/sftp-server ] || echo "no sftp-server"
		[ "$(locale charmap)" = UTF-8 ] || echo "charmap $(locale charmap)"
		[ "$LANG" = C.UTF-8 ] || echo "LANG=$LANG"
		[ "$(localedef --list-archive)" = C.utf8 ] || echo "the locale is not in the archive"
		python3 -m venv /tmp/venv || echo "no venv"
		env -i pip install --no-index no-such-thing 2>&1 | grep -q "No matching distribution" || echo "pip refuses to install"
		[ -s /etc/apt/sources.list ] || echo "no package sources"
		grep -q security /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || echo "no security updates"
		[ ! -s /etc/machine-id ] || echo "a machine id"
		[ -z "$(find / -xdev -name '*.deb' -print -quit)" ] || echo "packages left in a cache"
		exit 0`
	if got := docker(t, "run", "--rm", "--network", "none", "--label", "sandboxd.test=images",
		Default, "bash", "-c", questions); got != "" {
		t.Errorf("%s:\n%s", Default, got)
	}
	if got, want := docker(t, "image", "inspect", "--format",
		`{{index .Config.Labels "sandboxd.recipe"}}`, Default),
		checksum(baseRecipe...); got != want {
		t.Errorf("label sandboxd.recipe = %q, want %q", got, want)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := recipes.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// find returns the first group of the pattern's only match.
func find(t *testing.T, text, pattern string) string {
	t.Helper()
	matches := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if len(matches) != 1 {
		t.Fatalf("%d matches of %s, want 1", len(matches), pattern)
	}
	return matches[0][1]
}

// packageNames reads base/packages as both recipes do.
func packageNames(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(read(t, "base/packages")) {
		line, _, _ = strings.Cut(line, "#")
		names = append(names, strings.Fields(line)...)
	}
	return names
}

// requireTools skips the test if a program is missing, or fails it where skips are not allowed.
func requireTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			unavailable(t, "%s is not installed: scripts/setup test", name)
		}
	}
}

func requireEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("an engine is not for short tests")
	}
	requireTools(t, "bash", "docker")
	if out, err := exec.CommandContext(t.Context(), "docker",
		"version").CombinedOutput(); err != nil {
		unavailable(t, "no Docker engine: scripts/setup test\n%s", out)
	}
}

func unavailable(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" || os.Getenv("SANDBOXD_TEST_REQUIRE") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(string(out))
}
