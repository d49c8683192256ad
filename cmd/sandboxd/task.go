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
	limits               map[string]*string // by name
}

func (c *cli) taskCommand() *cobra.Command {
	f := taskFlags{limits: make(map[string]*string)}
	cmd := &cobra.Command{
		Use:   "task TASK…",
		Short: "let a language model do a task in this directory's sandbox",
		Long: "Have a language model do what TASK says, in the sandbox of the current directory, which is mounted in it at the same path:\n" +
			"made at the first task or run, and found again by the next ones, with what is installed in it. The model's words and what\n" +
			"its commands print go to standard error as they come, its last message to standard output.\n\n" +
			"The model is that of OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, or of the keys openai.*: any server that speaks\n" +
			"OpenAI's Chat Completions, with tools or without. The key stays in this program.\n\n" +
			"Exit codes: 0 done, 1 the model gave up, 3 out of rounds, 4 the model's server cannot be used, 5 stuck, 6 out of tokens, 124\n" +
			"out of time, 125 sandboxd failed, 130 interrupted. ^C stops the task and what it runs, and leaves the sandbox; a second one\n" +
			"ends this program at once.",
		Example: "  sandboxd task \"convert cat.jpg to png\"\n" +
			"  OPENAI_BASE_URL=http://localhost:11434/v1 sandboxd task --model qwen3 \"run pylint on the code in src/\"",
		Args: func(_ *cobra.Command, args []string) error {
			if strings.TrimSpace(strings.Join(args, " ")) == "" {
				return usage("task: nothing to do", `say what: sandboxd task "convert cat.jpg to png"`)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.task(cmd.Context(), f, strings.Join(args, " "))
		},
	}
	p := cmd.Flags()
	p.IntVar(&f.rounds, "max-rounds", task.DefaultRounds, "most answers of the model")
	p.IntVar(&f.tokens, "max-tokens", 0, "most tokens of all requests and answers together; 0 is no limit")
	p.DurationVar(&f.timeout, "timeout", 0, "time for the whole task; 0 is no limit")
	p.StringVar(&f.model, "model", "", "model to ask (OPENAI_MODEL, key openai.model)")
	p.StringVar(&f.shell, "shell-command", "", "shell that each command is given to with -c, such as \"dash -eu\" (default the sandbox's, which keeps its directory and variables)")
	p.StringVar(&f.transcript, "save-transcript", "", "file to write what happens to, one JSON object a line")
	p.BoolVar(&f.wipe, "wipe", false, "remove the directory's sandbox first; the directory stays")
	p.BoolVar(&f.remove, "rm", false, "remove it after, also when the task failed or was interrupted")
	p.BoolVar(&f.asJSON, "json", false, "print what happens on standard output, one object a line")
	p.StringVar(&f.dir, "dir", "", "directory whose sandbox it is (default the current one)")
	p.StringVar(&f.image, "image", "", "image of a new sandbox; of one that exists it has to be that")
	p.StringVar(&f.network, "network", "", "network of it, likewise: filtered, allowlist, none or bridge")
	p.StringArrayVar(&f.allow, "allow", nil, "name, *.name, address or range that its network opens, likewise; may be repeated")
	for _, l := range sandbox.AllLimits {
		f.limits[l.Name] = p.String(l.Name, "", "limit of it, likewise: "+l.Help)
	}
	return cmd
}

// task does a task and says how it ended.
func (c *cli) task(ctx context.Context, f taskFlags, what string) error {
	switch {
	case c.gateway != "":
		return usage("task: the sandbox of a directory is one of this machine", "leave --gateway out")
	case f.rounds < 1 || f.tokens < 0 || f.timeout < 0:
		return usage("task: --max-rounds is 1 or more, --max-tokens and --timeout are 0 or more", "see: sandboxd task --help")
	}
	dir := absolute(f.dir)
	o := task.Options{Endpoint: modelEndpoint(c.config, f.model), Task: what, Dir: dir, Shell: f.shell, MaxRounds: f.rounds, MaxTokens: f.tokens}
	for _, name := range []string{"OPENAI_API_KEY", "SANDBOXD_OPENAI_API_KEY"} {
		if err := os.Unsetenv(name); err != nil { // a daemon that is started does not have it either
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
			return usage("task: --save-transcript: "+err.Error(), "name a file that can be written")
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
	g := &lobbyGateway{cli: c, said: said}
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
		view.Sayf("note: %s is not encrypted: the key, if there is one, and all that is said can be read on the way", o.Endpoint.URL)
	}
	put(task.Start{Event: "start", Time: time.Now().UTC(), Sandbox: name, Session: o.Session, SSH: ssh, Model: o.Endpoint.Model, Task: what})
	outcome, err := task.Run(ctx, o)
	if err != nil {
		return err
	}
	return finish(outcome)
}

// printTaskEnd prints the model's last word on standard output, and everything else on standard error.
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

// words are those of ensure.
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

// twice is a context that ^C ends. A second ^C ends the program.
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
		fmt.Fprintln(os.Stderr, "\nsandboxd: stopping; ^C again leaves at once")
		cancel()
		<-signals
		os.Exit(wire.ExitInterrupt)
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}

// removePatience bounds the removal of a sandbox after a task.
const removePatience = time.Minute

// removeAfter removes the sandbox, whatever became of the task.
func removeAfter(g *lobbyGateway, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), removePatience)
	defer cancel()
	if _, err := g.Command(ctx, nil, "rm", "--force", "--json", "--", name); err != nil {
		task.NewView(os.Stderr).Sayf("the sandbox %s is still there: %v", name, err)
	}
}

// newTaskSession is a name that no session has.
func newTaskSession() string {
	var b [4]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return "task-" + hex.EncodeToString(b[:])
}

// joinCommand is the ssh command that joins target.
func (c *cli) joinCommand(target string) (string, error) {
	e, err := c.daemon()
	if err != nil {
		return "", err
	}
	return e.gateway().SSHCommand(target), nil
}

// modelEndpoint is the model's server as the environment of OpenAI's programs names it, else as ours does.
func modelEndpoint(c *config.Loaded, model string) task.Endpoint {
	e := task.Endpoint{
		URL:   cmp.Or(os.Getenv("OPENAI_BASE_URL"), c.OpenAI.BaseURL),
		Key:   cmp.Or(os.Getenv("OPENAI_API_KEY"), c.OpenAI.APIKey),
		Model: cmp.Or(model, os.Getenv("OPENAI_MODEL"), c.OpenAI.Model),

		Timeout: time.Duration(c.OpenAI.Timeout),
	}
	return e
}

// createIn creates a file for the caller alone. Where it is in dir, which a sandbox may have written, no link there leads out of it.
func createIn(dir, path string) (*os.File, error) {
	path = absolute(path)
	const how, mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC | syscall.O_NONBLOCK, 0o600 // a pipe there is an error
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
	if err := f.Chmod(mode); err != nil { // of one that was there
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkModel asks the model's server, if one is configured, what models it has.
func (d doctor) checkModel(ctx context.Context) []finding {
	e := modelEndpoint(d.cli.config, "")
	if e.Key == "" && e.Model == "" && os.Getenv("OPENAI_BASE_URL") == "" && !d.cli.config.IsSet("openai.base_url") {
		return nil
	}
	var all []finding
	if d.cli.config.OpenAI.APIKey != "" {
		path := d.cli.config.Source("openai.api_key")
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			all = append(all, finding{Check: "key", Found: fmt.Sprintf("%s has a key and can be read by others (%v)", path, info.Mode()), Fix: "chmod 600 " + path})
		}
	}
	found, err := e.Probe(ctx)
	f := finding{Check: "model", OK: err == nil, Found: found}
	var known *task.EndpointError
	switch {
	case errors.As(err, &known):
		f.Found, f.Fix = text.Line(known.Message, 300), known.Hint
	case err != nil:
		f.Found, f.Fix = text.Line(err.Error(), 300), "look at OPENAI_BASE_URL"
	case e.Plain():
		f.Fix = "it is not encrypted: what is said can be read on the way"
	}
	return append(all, f)
}
