// Package agents has descriptions of coding agents as data: how a program is installed in a
// sandbox, how it is started there without questions, and which secrets it uses. A user's own file
// has the same form as the built-in ones. The package knows no daemon and runs nothing.
package agents

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
)

//go:embed *.yaml
var builtin embed.FS

// Sentinel is what a variable of a key contains in the sandbox. The daemon replaces it.
const Sentinel = "sandboxd-managed"

const (
	extension = ".yaml"
	maxFile   = 64 << 10 // bytes
)

// ErrUnknown means that there is no agent of a name.
var ErrUnknown = errors.New("no such agent")

// Agent describes a coding agent. Setup, Print and the texts of files are templates. In Setup,
// {{.Version}} is the version. In Print, {{.Prompt}} is the prompt. In files, {{.Dir}} is the
// directory of the repository in the sandbox, {{json .Dir}} the same as a JSON string, and
// {{env "NAME"}} the value of a variable of Env, or of a secret that is used; else it is empty.
type Agent struct {
	Name    string            `yaml:"-"` // of the file, without its extension
	File    string            `yaml:"-"` // its absolute path; empty for a built-in agent
	Title   string            `yaml:"title"`
	Version string            `yaml:"version"` // of the package
	Setup   []string          `yaml:"setup"`   // shell commands that install it, once for an image
	Hosts   []string          `yaml:"hosts"`   // that a sandbox with network allowlist may connect to
	Command []string          `yaml:"command"` // program and arguments
	Ask     []string          `yaml:"ask"`     // arguments with which it asks for permissions
	Yolo    []string          `yaml:"yolo"`    // arguments with which it has all permissions
	Print   []string          `yaml:"print"`   // arguments with which it answers a prompt
	Env     map[string]string `yaml:"env"`     // variables of all processes in the sandbox
	Secrets []Secret          `yaml:"secrets"` // one of them is required, if there are any
	Files   []File            `yaml:"files"`
	// Ready is a regular expression for the screen of the program when it takes a prompt. Empty
	// means that it is enough if the program is idle.
	Ready string `yaml:"ready"`

	ready *regexp.Regexp // Ready; nil for an Agent that was not parsed
}

// Secret is a credential that the agent can use.
type Secret struct {
	Host   string `yaml:"host"`   // that the credential is for
	Header string `yaml:"header"` // that has it; empty means any
	Set    string `yaml:"set"`    // arguments of sandboxd secret set, for people
	Env    string `yaml:"env"`    // variable that has to be set; it gets Sentinel
}

// File is a file that is written in the sandbox.
type File struct {
	Path string `yaml:"path"` // absolute, or ~/ for the home directory
	Text string `yaml:"text"`
}

// Names returns the names of the built-in agents, sorted.
func Names() []string {
	files, _ := fs.Glob(builtin, "*"+extension) // the pattern is valid
	for i, file := range files {
		files[i] = strings.TrimSuffix(file, extension)
	}
	return files
}

// Find returns an agent: that of a file if name has a slash or ends in .yaml, else the one in the
// directory own, else the built-in one. own may be missing. An unknown name is ErrUnknown.
func Find(name, own string) (*Agent, error) {
	if strings.ContainsRune(name, '/') || strings.HasSuffix(name, extension) {
		return read(name)
	}
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("%q: %w", name, ErrUnknown)
	}
	if own != "" {
		a, err := read(filepath.Join(own, name+extension))
		if !errors.Is(err, fs.ErrNotExist) {
			return a, err
		}
	}
	text, err := builtin.ReadFile(name + extension)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, ErrUnknown)
	}
	return Parse(name, text)
}

func read(file string) (*Agent, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxFile)
	}
	a, err := Parse(strings.TrimSuffix(filepath.Base(file), extension), text)
	if err == nil {
		a.File, err = filepath.Abs(file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return a, nil
}

// Parse parses a description. Unknown keys, and values that cannot be used, are errors.
func Parse(name string, text []byte) (*Agent, error) {
	a := &Agent{Name: name}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(a); errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	} else if err != nil {
		said := strings.TrimPrefix(err.Error(), "yaml: ")
		said = strings.TrimPrefix(said, "unmarshal errors:\n  ")
		return nil, errors.New(strings.ReplaceAll(said, " in type agents.Agent", ""))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	return a, a.check()
}

// Forms of names. A version becomes a word of shell commands.
var (
	nameForm     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	versionForm  = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_-]*$`)
	variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

func (a *Agent) check() error {
	if slices.Contains([]string{"ls", "compare", "keep"}, a.Name) {
		return fmt.Errorf("name %q: is a command", a.Name)
	}
	if !nameForm.MatchString(a.Name) {
		return fmt.Errorf("name %q: must be lower-case letters, digits and dashes, at most 32",
			a.Name)
	}
	if len(a.Command) == 0 || a.Command[0] == "" {
		return errors.New("command: missing")
	}
	if a.Title == "" {
		a.Title = a.Name
	}
	if !utf8.ValidString(a.Title) || strings.ContainsFunc(a.Title, func(r rune) bool {
		return !unicode.IsPrint(r)
	}) {
		return fmt.Errorf("title %q: has characters that are not printable", a.Title)
	}
	if a.Version != "" && !versionForm.MatchString(a.Version) {
		return fmt.Errorf("version %q: must be letters, digits and .+_-", a.Version)
	}
	for name := range a.Env {
		if !variableForm.MatchString(name) {
			return fmt.Errorf("env: %q is not the name of a variable", name)
		}
	}
	for i, s := range a.Secrets {
		switch {
		case s.Host == "" || s.Set == "":
			return fmt.Errorf("secrets[%d]: host and set are required", i)
		case s.Env != "" && !variableForm.MatchString(s.Env):
			return fmt.Errorf("secrets[%d]: env: %q is not the name of a variable", i, s.Env)
		case s.Header != "" && !httpguts.ValidHeaderFieldName(s.Header):
			return fmt.Errorf("secrets[%d]: header %q: write the name alone, such as x-api-key", i,
				s.Header)
		}
	}
	for _, f := range a.Files {
		if rest, ok := strings.CutPrefix(f.Path, "~/"); !ok && !path.IsAbs(f.Path) ||
			ok && !filepath.IsLocal(rest) {
			return fmt.Errorf("files: path %q: must be absolute or begin with ~/", f.Path)
		}
	}
	var err error
	if a.ready, err = regexp.Compile(a.Ready); err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	if _, err := a.Install(""); err != nil {
		return err
	}
	if _, err := a.Answers(""); err != nil {
		return err
	}
	_, err = a.Render("/", a.Secrets)
	return err
}

// Install returns the commands that install a version; empty means the one of the description.
func (a *Agent) Install(version string) ([]string, error) {
	switch {
	case version == "":
		version = a.Version
	case !versionForm.MatchString(version):
		return nil, fmt.Errorf("version %q: must be letters, digits and .+_-", version)
	case !strings.Contains(strings.Join(a.Setup, ""), ".Version"):
		return nil, fmt.Errorf("version %q: setup of %s has no {{.Version}}", version, a.Name)
	}
	if version == "" && strings.Contains(strings.Join(a.Setup, ""), ".Version") {
		return nil, errors.New("version: missing, and setup has {{.Version}}")
	}
	return expandAll("setup", a.Setup, "Version", version)
}

// Answers returns the arguments with which the program answers a prompt without a terminal. They
// are empty if it cannot.
func (a *Agent) Answers(prompt string) ([]string, error) {
	if len(a.Print) > 0 && !strings.Contains(strings.Join(a.Print, ""), ".Prompt") {
		return nil, errors.New("print: no {{.Prompt}}")
	}
	return expandAll("print", a.Print, "Prompt", prompt)
}

// Render returns the files for a repository that is at dir in the sandbox. bound are the secrets
// that it uses.
func (a *Agent) Render(dir string, bound []Secret) ([]File, error) {
	env := a.variables(bound)
	all := make([]File, len(a.Files))
	for i, f := range a.Files {
		text, err := expand(f.Text, env, "Dir", dir)
		if err != nil {
			return nil, fmt.Errorf("files: %s: %w", f.Path, err)
		}
		all[i] = File{f.Path, text}
	}
	return all, nil
}

// Variables returns the variables of the sandbox as NAME=VALUE, sorted. bound are the secrets that
// it uses.
func (a *Agent) Variables(bound []Secret) []string {
	all := a.variables(bound)
	var env []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

func (a *Agent) variables(bound []Secret) map[string]string {
	all := maps.Clone(a.Env)
	if all == nil {
		all = make(map[string]string)
	}
	for _, s := range bound {
		if s.Env != "" {
			all[s.Env] = Sentinel
		}
	}
	return all
}

// IsReady reports whether the program takes a prompt if it is idle with this text on its screen.
func (a *Agent) IsReady(screen string) bool {
	return a.ready == nil || a.ready.MatchString(screen)
}

// LastLine returns the last line with letters on a screen of the program, above its input line.
func (a *Agent) LastLine(screen string) string {
	if a.Ready != "" && a.ready != nil {
		if all := a.ready.FindAllStringIndex(screen, -1); len(all) > 0 {
			screen = screen[:all[len(all)-1][0]]
		}
	}
	last := ""
	for line := range strings.Lines(screen) {
		if strings.ContainsFunc(line, unicode.IsLetter) {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// expandAll executes the templates of a field, in which .key is value.
func expandAll(field string, texts []string, key, value string) ([]string, error) {
	all := make([]string, len(texts))
	for i, text := range texts {
		var err error
		if all[i], err = expand(text, nil, key, value); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	return all, nil
}

// expand executes a template, in which .key is value. Unless env is nil, env is a function there
// that returns a variable.
func expand(text string, env map[string]string, key, value string) (string, error) {
	functions := template.FuncMap{"json": func(s string) (string, error) {
		b, err := json.Marshal(s)
		return string(b), err
	}}
	if env != nil {
		functions["env"] = func(name string) string { return env[name] }
	}
	t, err := template.New("").Option("missingkey=error").Funcs(functions).Parse(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = t.Execute(&out, map[string]string{key: value})
	return out.String(), err
}
