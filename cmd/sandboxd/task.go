package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent/task"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// taskFlags are the flags of task.
type taskFlags struct {
	rounds, tokens       int
	timeout              time.Duration
	model, shell         string
	transcript           string
	wipe, remove, asJSON bool
	dir, image, network  string
	allow                []string
	limits               map[string]*string // by name of the limit
}

func (c *cli) taskCommand() *cobra.Command {
	f := taskFlags{limits: make(map[string]*string)}
	cmd := &cobra.Command{
		Use:   "task TASK…",
		Short: "let a language model do a task in this directory's sandbox",
		Long: "Let a language model do TASK in the sandbox of the current directory, which is\n" +
			"mounted in it at the same path. The first task or run creates the sandbox,\n" +
			"later ones reuse it. The model's messages and the output of its commands go to\n" +
			"standard error, its last message to standard output.\n\n" +
			"The model comes from OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, or from\n" +
			"the configuration keys openai.*. Any server with OpenAI's Chat Completions API\n" +
			"works, with or without tools. The API key never enters the sandbox.\n\n" +
			"Exit codes: 0 done, 1 the model gave up, 3 out of rounds, 4 error of the\n" +
			"model's server, 5 stuck, 6 out of tokens, 124 timeout, 125 sandboxd failed,\n" +
			"130 interrupted.\n\n" +
			"^C stops the task and its commands; the sandbox stays. A second ^C ends this\n" +
			"program at once.",
		Example: "  sandboxd task \"convert cat.jpg to png\"\n" +
			"  OPENAI_BASE_URL=http://localhost:11434/v1 sandboxd task --model qwen3 \"run " +
			"pylint on the code in src/\"",
		Args: func(_ *cobra.Command, args []string) error {
			if strings.TrimSpace(strings.Join(args, " ")) == "" {
				return usage("task: nothing to do",
					`say what: sandboxd task "convert cat.jpg to png"`)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.task(cmd.Context(), f, strings.Join(args, " "))
		},
	}
	p := cmd.Flags()
	p.IntVar(&f.rounds, "max-rounds", task.DefaultRounds, "largest number of answers of the model")
	p.IntVar(&f.tokens, "max-tokens", 0,
		"largest number of tokens in all requests and answers; 0 means no limit")
	p.DurationVar(&f.timeout, "timeout", 0,
		"longest duration of the task, such as 10m; 0 means no limit")
	p.StringVar(&f.model, "model", "",
		"name of the model (default: OPENAI_MODEL or key openai.model)")
	p.StringVar(&f.shell, "shell-command", "",
		"shell that runs each command with -c, such as \"dash -eu\" (default: the session's "+
			"shell, which keeps its directory and variables)")
	p.StringVar(&f.transcript, "save-transcript", "",
		"write all events to this file, one JSON object per line")
	p.BoolVar(&f.wipe, "wipe", false, "remove the directory's sandbox first; the directory stays")
	p.BoolVar(&f.remove, "rm", false,
		"remove the sandbox afterwards, also after an error or interrupt")
	p.BoolVar(&f.asJSON, "json", false, "print all events on standard output, one object per line")
	p.StringVar(&f.dir, "dir", "",
		"directory whose sandbox is used (default: the current directory)")
	p.StringVar(&f.image, "image", "", "image of a new sandbox; an existing one must have it")
	p.StringVar(&f.network, "network", "",
		"network of a new sandbox: filtered, allowlist, none or bridge; an existing one must "+
			"have it")
	p.StringArrayVar(&f.allow, "allow", nil,
		"host that the sandbox may connect to: NAME, *.NAME, address, range or *; repeatable")
	for _, l := range sandbox.AllLimits {
		f.limits[l.Name] = p.String(l.Name, "", l.Help+"; an existing sandbox must have it")
	}
	return cmd
}

// task runs a task and reports its outcome.
func (c *cli) task(ctx context.Context, f taskFlags, what string) error {
	switch {
	case c.gateway != "":
		return usage("task: --gateway is not supported: the directory is on this machine",
			"omit --gateway")
	case f.rounds < 1 || f.tokens < 0 || f.timeout < 0:
		return usage("task: --max-rounds must be at least 1, --max-tokens and --timeout at least 0",
			"see: sandboxd task --help")
	}
	dir := absolute(f.dir)
	o := task.Options{Endpoint: modelEndpoint(c.config, f.model), Task: what, Dir: dir,
		Shell: f.shell, MaxRounds: f.rounds, MaxTokens: f.tokens}
	for _, name := range []string{"OPENAI_API_KEY", "SANDBOXD_OPENAI_API_KEY"} {
		if err := os.Unsetenv(name); err != nil { // so that a daemon started here does not get it
			return err
		}
	}
	var e *task.EndpointError
	if err := o.Endpoint.Check(); errors.As(err, &e) {
		return usage("task: "+e.Message, e.Hint)
	}
	var sinks []*task.Transcript
	if f.transcript != "" {
		file, err := createIn(dir, f.transcript)
		if err != nil {
			return usage("task: --save-transcript: "+err.Error(), "name a writable file")
		}
		defer file.Close()
		sinks = append(sinks, task.NewTranscript(file, o.Endpoint.Key))
	}
	view := task.NewView(os.Stderr)
	if f.asJSON {
		sinks = append(sinks, task.NewTranscript(text.JSONWriter(os.Stdout), o.Endpoint.Key))
		view = task.NewView(io.Discard)
	}
	put := func(v any) {
		for _, s := range sinks {
			s.Put(v)
		}
	}
	o.Words, o.Output = view.Words, view
	o.Tell = func(e task.Event) { view.Tell(e); put(e) }

	ctx, stop := twice(ctx)
	defer stop()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	said := shownOn(os.Stderr)
	defer said.Close()
	g := &sshGateway{cli: c, said: said}
	finish := func(o task.Outcome) error {
		put(task.End{Event: "end", Time: time.Now().UTC(), Outcome: o, ExitCode: o.ExitStatus()})
		for _, s := range sinks {
			if err := s.Err(); err != nil {
				return fmt.Errorf("transcript: %w", err)
			}
		}
		if !f.asJSON {
			printTaskEnd(view, o)
		}
		if code := o.ExitStatus(); code != 0 {
			return exitCode(code)
		}
		return nil
	}
	name, err := g.ensureAs(ctx, f.words(dir))
	switch {
	case err != nil && ctx.Err() != nil:
		return finish(task.GivenUp(ctx))
	case err != nil:
		return err
	}
	if f.remove {
		defer removeAfter(g, name)
	}
	o.Gateway, o.Sandbox, o.Session = g, name, newTaskSession()
	ssh, err := c.joinCommand(name + "~" + o.Session)
	if err != nil {
		return err
	}
	view.Sayf("watch: %s", ssh)
	if o.Endpoint.Plain() {
		view.Sayf("warning: %s is not encrypted: others on the network can read the API key and "+
			"all messages", o.Endpoint.URL)
	}
	put(task.Start{Event: "start", Time: time.Now().UTC(), Sandbox: name, Session: o.Session,
		SSH: ssh, Model: o.Endpoint.Model, Task: what})
	outcome, err := task.Run(ctx, o)
	if err != nil {
		return err
	}
	return finish(outcome)
}

// printTaskEnd prints the model's last message to standard output, and everything else to standard
// error.
func printTaskEnd(view *task.View, o task.Outcome) {
	if o.Ended == task.Done {
		fmt.Println(strings.TrimRight(text.Lines(o.Message), "\n"))
		return
	}
	said := o.Message
	if o.Hint != "" {
		said += "; " + o.Hint
	}
	view.Sayf("task %s: %s", o.Ended, said)
}

// words returns the command line of ensure.
func (f taskFlags) words(dir string) []string {
	words := []string{"ensure", "--json", "--dir=" + dir}
	if f.wipe {
		words = append(words, "--wipe")
	}
	for name, value := range map[string]string{"image": f.image, "network": f.network} {
		if value != "" {
			words = append(words, "--"+name+"="+value)
		}
	}
	for _, a := range f.allow {
		words = append(words, "--allow="+a)
	}
	for name, value := range f.limits {
		if *value != "" {
			words = append(words, "--"+name+"="+*value)
		}
	}
	return words
}

// twice returns a context that ^C ends. A second ^C ends the program.
func twice(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt)
	go func() { // until the caller is done
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		fmt.Fprintln(os.Stderr, "\nsandboxd: stopping; press ^C again to exit at once")
		cancel()
		<-signals
		os.Exit(wire.ExitInterrupt)
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}

// removePatience is the longest time for the removal of a sandbox after a task.
const removePatience = time.Minute

// removeAfter removes the sandbox, whatever the outcome of the task.
func removeAfter(g *sshGateway, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), removePatience)
	defer cancel()
	if _, err := g.Command(ctx, nil, "rm", "--force", "--json", "--", name); err != nil {
		task.NewView(os.Stderr).Sayf("sandbox %s was not removed: %v", name, err)
	}
}

// newTaskSession returns a new name for a session.
func newTaskSession() string {
	var b [4]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return "task-" + hex.EncodeToString(b[:])
}

// joinCommand returns the ssh command that attaches to target.
func (c *cli) joinCommand(target string) (string, error) {
	e, err := c.daemon()
	if err != nil {
		return "", err
	}
	return e.gateway().SSHCommand(target), nil
}

// modelEndpoint returns the model's server: from OpenAI's variables, else from our configuration.
func modelEndpoint(c *config.Loaded, model string) task.Endpoint {
	e := task.Endpoint{
		URL:   cmp.Or(os.Getenv("OPENAI_BASE_URL"), c.OpenAI.BaseURL),
		Key:   cmp.Or(os.Getenv("OPENAI_API_KEY"), c.OpenAI.APIKey),
		Model: cmp.Or(model, os.Getenv("OPENAI_MODEL"), c.OpenAI.Model),

		Timeout: time.Duration(c.OpenAI.Timeout),
	}
	return e
}

// createIn creates a file that only the caller can read. In dir, which a sandbox may have written,
// it follows no link that leads out of dir.
func createIn(dir, path string) (*os.File, error) {
	path = absolute(path)
	// opening a pipe fails
	const how, mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC | syscall.O_NONBLOCK, 0o600
	var f *os.File
	if inside, err := filepath.Rel(dir, path); err != nil || !filepath.IsLocal(inside) {
		if f, err = os.OpenFile(path, how, mode); err != nil {
			return nil, err
		}
	} else {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		if f, err = root.OpenFile(inside, how, mode); err != nil {
			return nil, err
		}
	}
	if err := f.Chmod(mode); err != nil { // the file may have existed
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkModel asks the model's server, if one is configured, for its models.
func (d doctor) checkModel(ctx context.Context) []finding {
	e := modelEndpoint(d.cli.config, "")
	if e.Key == "" && e.Model == "" && os.Getenv("OPENAI_BASE_URL") == "" &&
		!d.cli.config.IsSet("openai.base_url") {
		return nil
	}
	var all []finding
	if d.cli.config.OpenAI.APIKey != "" {
		path := d.cli.config.Source("openai.api_key")
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			all = append(all, finding{Check: "key",
				Found: fmt.Sprintf("%s has an API key and is readable by others (%v)", path,
					info.Mode()), Fix: "chmod 600 " + path})
		}
	}
	found, err := e.Probe(ctx)
	f := finding{Check: "model", OK: err == nil, Found: found}
	var known *task.EndpointError
	switch {
	case errors.As(err, &known):
		f.Found, f.Fix = text.Line(known.Message, 300), known.Hint
	case err != nil:
		f.Found, f.Fix = text.Line(err.Error(), 300), "check OPENAI_BASE_URL"
	case e.Plain():
		f.Fix = "use https: others on the network can read the API key and all messages"
	}
	return append(all, f)
}
