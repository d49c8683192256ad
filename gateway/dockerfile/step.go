package dockerfile

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// worker carries out the steps of a stage.
type worker struct {
	*build
	result

	commanded bool      // CMD was set in this stage
	copies    []copying // of the next layer
}

// env returns the variables of a step: those of the image, and arguments.
func (w *worker) env() []string {
	env := slices.Clone(w.args)
	for _, kv := range w.config.Env {
		key, value, _ := strings.Cut(kv, "=")
		env = setEnv(env, key, value)
	}
	return env
}

// step carries out an instruction. It leaves what copies files for the next layer.
func (w *worker) step(ctx context.Context, s step) error {
	env := w.env()
	expand := func(word string) (string, error) { return w.expand(word, env) }
	// Each ARG can use the one before it, so arg expands them.
	_, arg := s.command.(*instructions.ArgCommand)
	if c, ok := s.command.(instructions.SupportsSingleWordExpansion); ok && !arg {
		if err := c.Expand(expand); err != nil {
			return &sandbox.StepError{Step: s.title, Output: brief(err.Error())}
		}
	}
	var err error
	switch c := s.command.(type) {
	case *instructions.RunCommand:
		if err := w.flush(ctx); err != nil {
			return err
		}
		return w.run(ctx, s, c)
	case *instructions.CopyCommand:
		err = w.copy(ctx, s, c.SourcesAndDest, c.Chown, c.Chmod, c.From, false)
	case *instructions.AddCommand:
		if err = checkLocal(c.SourcePaths); err == nil { // again: variables have values now
			err = w.copy(ctx, s, c.SourcesAndDest, c.Chown, c.Chmod, "", true)
		}
	case *instructions.WorkdirCommand:
		w.config.WorkingDir = w.path(c.Path)
		err = w.add(copying{Dest: w.config.WorkingDir, Owner: w.config.User, MakeDir: true,
			title: s.title})
	default:
		if err = w.configure(s.command, env); err == nil {
			err = guestconfig.CheckEnv(w.env())
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.title, err)
	}
	return nil
}

// path returns an absolute path for one that is relative to the working directory.
func (w *worker) path(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/", w.config.WorkingDir, name)
}

// proxies are arguments that steps have without an ARG.
var proxies = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}

// configure carries out an instruction that changes no file.
func (w *worker) configure(command instructions.Command, env []string) error {
	switch c := command.(type) {
	case *instructions.ArgCommand:
		for _, arg := range c.Args {
			if err := w.arg(arg); err != nil {
				return err
			}
		}
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			w.config.Env = setEnv(w.config.Env, kv.Key, kv.Value)
		}
	case *instructions.LabelCommand:
		for _, kv := range c.Labels {
			if strings.HasPrefix(kv.Key, ownLabels) {
				return fmt.Errorf("names that begin with %s are reserved for sandboxd", ownLabels)
			}
			set(&w.config.Labels, kv.Key, kv.Value)
		}
	case *instructions.UserCommand:
		w.config.User = c.User
	case *instructions.ShellCommand:
		w.config.Shell = c.Shell
	case *instructions.CmdCommand:
		w.config.Cmd = w.command(c.ShellDependantCmdLine)
		w.commanded = true
	case *instructions.EntrypointCommand:
		w.config.Entrypoint = w.command(c.ShellDependantCmdLine)
		if !w.commanded { // it was for the program of the image below
			w.config.Cmd = nil
		}
	case *instructions.ExposeCommand:
		for _, words := range c.Ports {
			ports, err := w.expand(words, env)
			if err != nil {
				return err
			}
			for _, port := range strings.Fields(ports) {
				if !strings.Contains(port, "/") {
					port += "/tcp"
				}
				set(&w.config.ExposedPorts, port, struct{}{})
			}
		}
	case *instructions.VolumeCommand:
		for _, dir := range c.Volumes {
			set(&w.config.Volumes, dir, struct{}{})
		}
	case *instructions.StopSignalCommand:
		w.config.StopSignal = c.Signal
	case *instructions.HealthCheckCommand:
		w.config.Healthcheck = c.Health
	case *instructions.OnbuildCommand:
		w.config.OnBuild = append(w.config.OnBuild, c.Expression)
	case *instructions.MaintainerCommand: // images have no place for it any more
	default:
		return fmt.Errorf("%s is not supported", strings.ToUpper(command.Name()))
	}
	return nil
}

// set sets a key of a map, which may be nil.
func set[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[key] = value
}

// arg declares an argument: the caller's value, else that of the instruction, else that of one
// before the first FROM.
func (w *worker) arg(arg instructions.KeyValuePairOptional) error {
	value, ok := w.given[arg.Key]
	if !ok && arg.Value != nil {
		var err error
		if value, err = w.expand(*arg.Value, w.env()); err != nil {
			return err
		}
		ok = true
	}
	for _, kv := range w.meta {
		if key, meta, _ := strings.Cut(kv, "="); !ok && key == arg.Key {
			value, ok = meta, true
		}
	}
	if ok {
		w.args = setEnv(w.args, arg.Key, value)
	}
	return nil
}

// defaultShell runs commands of images that set no SHELL.
var defaultShell = []string{"/bin/sh", "-c"}

// command returns the words of a CMD, ENTRYPOINT or RUN.
func (w *worker) command(c instructions.ShellDependantCmdLine) []string {
	if !c.PrependShell {
		return c.CmdLine
	}
	shell := w.config.Shell
	if len(shell) == 0 {
		shell = defaultShell
	}
	return slices.Concat(shell, c.CmdLine)
}

// run carries out a RUN.
func (w *worker) run(ctx context.Context, s step, c *instructions.RunCommand) error {
	title := s.title
	words, err := script(c)
	if err != nil {
		return err
	}
	line := c.ShellDependantCmdLine
	line.CmdLine = words
	argv := w.command(line)
	if len(argv) == 0 {
		return &sandbox.StepError{Step: title, Output: "the command is empty"}
	}
	env := w.env()
	for _, key := range proxies {
		for _, key := range []string{key, strings.ToLower(key)} {
			if value, ok := w.given[key]; ok {
				env = setEnv(env, key, value)
			}
		}
	}
	slices.Sort(env)
	user := w.config.User
	of := map[string]any{"run": argv, "env": env, "user": user, "dir": w.config.WorkingDir}
	mounts, err := w.mounts(ctx, s, c)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		of["mounts"] = mounts
	}
	defer drop(mounts)
	return w.layer(ctx, &w.result, layer{of: of, env: env,
		before: func() error { return w.fetch(ctx, mounts) },
		do: func(ctx context.Context, conn *connect.Conn) error {
			client := conn.Client()
			defer client.Close()
			command := func() error {
				if user != "" && user != "root" && user != "0" {
					if err := conn.SetUser(ctx, user); err != nil {
						return &sandbox.StepError{Step: title, Output: brief(err.Error())}
					}
				}
				return run(ctx, client, title, connect.Command{Line: quoted(argv)}, w.Progress)
			}
			if len(mounts) == 0 {
				return command()
			}
			return withFiles(ctx, client, func(files *connect.Files) error {
				unmount, err := w.mount(ctx, files, mounts)
				if err == nil {
					err = command()
				}
				if err == nil {
					err = unmount()
				}
				return err
			})
		}})
}

// quoted returns a command line that a shell, and a guest without one, splits into words.
func quoted(words []string) string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return strings.Join(all, " ")
}

// Run runs a command whose output goes to progress, a line at a time and indented. The error of a
// command that failed is a *sandbox.StepError with this title and the last lines. Other errors are
// those of connect.Run.
func Run(ctx context.Context, conn *connect.Conn, title string, c connect.Command,
	progress func(string)) error {
	client := conn.Client()
	defer client.Close()
	return run(ctx, client, title, c, progress)
}

func run(ctx context.Context, client *ssh.Client, title string, c connect.Command,
	progress func(string)) error {
	said := &lines{each: func(line string) { progress("  " + line) }}
	c.Stdout, c.Stderr = said, said
	err := connect.Run(ctx, client, c)
	said.end()
	failed := &sandbox.StepError{Step: title, Output: strings.Join(said.last, "; ")}
	var exit *connect.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit) && exit.Signal == "":
		failed.Code = exit.Status
	case errors.As(err, &exit):
		failed.Output = "ended by signal " + text.Line(exit.Signal, 20) + ": " + failed.Output
	default:
		return err
	}
	return failed
}

const (
	lastLines = 12      // of a command's output, in its error
	maxLine   = 4 << 10 // bytes
)

// lines splits its input into printable lines and remembers the last ones.
type lines struct {
	each func(line string)

	mu   sync.Mutex
	open string   // guarded by mu
	last []string // guarded by mu; read after the last Write
}

// Write may be called for both streams of a command at once.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += string(p)
	for {
		line, rest, ok := strings.Cut(l.open, "\n")
		if !ok && len(l.open) <= maxLine {
			return len(p), nil
		}
		l.open = rest
		l.said(line)
	}
}

// end flushes an unfinished last line.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != "" {
		l.said(l.open)
		l.open = ""
	}
}

func (l *lines) said(line string) {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:] // the last state of a progress line
	line = strings.TrimRight(text.Line(line, maxLine), " ")
	if l.last = append(l.last, strings.TrimSpace(line)); len(l.last) > lastLines {
		l.last = l.last[1:]
	}
	l.each(line)
}
