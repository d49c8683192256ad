package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxScript is the longest command that `run -` reads from standard input, in bytes. It fits into
// one frame of the session stream.
const maxScript = 512 << 10

// callFlags are the flags that run, type, keys, wait, screen and interrupt share.
type callFlags struct {
	timeout   time.Duration
	maxOutput string
	screen    string
	asJSON    bool
	hold      bool
}

func (f *callFlags) add(cmd *cobra.Command, call bool) {
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the Result as one object")
	if call {
		cmd.Flags().DurationVar(&f.timeout, "timeout", 120*time.Second,
			"return after this duration, such as 30s; the program keeps running")
		cmd.Flags().StringVar(&f.maxOutput, "max-output", "",
			"longest Result.output in bytes, such as 64k; 0 means all, up to 64 MiB of the log "+
				"(default 32k)")
		cmd.Flags().StringVar(&f.screen, "screen", "auto",
			"print the screen at the end: never, always, or auto for a full-screen or idle program")
		cmd.Flags().BoolVar(&f.hold, "hold", false,
			"wait until no user holds the keyboard, instead of failing")
		cmd.Flags().SetInterspersed(false)
	}
}

// request returns a request with the values of the flags.
func (f *callFlags) request(verb wire.Verb) (wire.Request, error) {
	r := wire.Request{Verb: verb, Op: wire.NewOp(), TimeoutMS: f.timeout.Milliseconds(),
		Hold: f.hold}
	if f.timeout <= 0 {
		return r, usage("--timeout %v: must be longer than 0", f.timeout)
	}
	var err error
	if r.Screen, err = wire.ParseShowScreen(f.screen); err != nil {
		return r, usage("--screen %q: must be never, auto or always", f.screen)
	}
	switch f.maxOutput {
	case "":
	case "0":
		r.MaxOutput = -1
	default:
		n, err := parseSize("max-output", f.maxOutput)
		if err != nil {
			return r, err
		}
		r.MaxOutput = int(min(n, 1<<30))
	}
	return r, nil
}

func shellCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{runCommand(env), typeCommand(env), keysCommand(env), waitCommand(env),
		screenCommand(env), interruptCommand(env)}
}

func runCommand(env *Env) *cobra.Command {
	var f callFlags
	var kill, create, adopt bool
	var name, dir string
	cmd := &cobra.Command{
		Use:   "run [NAME[~SESSION] --] CMD…",
		Short: "run a command in a session and print its output",
		Long: "Run a command in the terminal of a session, and print its output until the\n" +
			"command ends, asks for input, or --timeout passes. A missing sandbox is\n" +
			"created, unless its name is similar to that of another one.\n\n" +
			"One word before -- is the name of the sandbox, as with -n. Without a name, the\n" +
			"command runs in the sandbox of the current directory, which is mounted in it\n" +
			"at the same path. The first run creates that sandbox from .sandboxd.yaml or\n" +
			".devcontainer/devcontainer.json.\n\n" +
			"One argument is shell text, several are a program and its arguments. - alone\n" +
			"reads shell text from standard input. Flags come before CMD.\n\n" +
			"The exit code is that of the command. 123 means that it waits for input, 124\n" +
			"that it still runs after --timeout, 125 that it did not run, was lost, or that\n" +
			"a user took the keyboard.",
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := NameFirst(cmd, args)
			if err != nil {
				return err
			}
			if (name == "") == (dir == "") {
				e := usage("run: --name and --dir are mutually exclusive, and one is required")
				e.Hint = "write run NAME -- CMD…, or run --dir DIR -- CMD… for a directory on " +
					"the daemon's machine"
				return e
			}
			t := wire.Target{Session: wire.DefaultSession}
			if name != "" {
				if t, err = wire.ParseTarget(name); err != nil {
					return err
				}
			}
			r, err := f.request(wire.VerbRun)
			if err != nil {
				return err
			}
			if r.Text, err = env.script(args); err != nil {
				return err
			}
			r.Kill, r.Adopt = kill, adopt
			if dir != "" {
				if t.Sandbox, err = env.ensureDir(cmd.Context(), dir); err == nil {
					err = env.call(cmd.Context(), t, r, &f, !f.asJSON)
				}
				return env.unnamed(cmd.Context(), args, err)
			}
			if err := env.ensure(cmd.Context(), lifecycle.NewSpec{Name: t.Sandbox, Reuse: true},
				create); err != nil {
				return err
			}
			return env.call(cmd.Context(), t, r, &f, !f.asJSON)
		},
	}
	f.add(cmd, true)
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox or SANDBOX~SESSION")
	cmd.Flags().BoolVar(&create, "create", false,
		"create a missing sandbox even if its name is similar to that of another")
	cmd.Flags().StringVar(&dir, "dir", "",
		"use the sandbox of this directory on the daemon's machine (default: the current "+
			"directory, without -n)")
	cmd.Flags().BoolVar(&kill, "kill", false,
		"interrupt the command if it still runs after --timeout")
	cmd.Flags().BoolVar(&adopt, "adopt", false,
		"run in the shell behind the program in front, such as ssh")
	return cmd
}

// script returns the shell text for the arguments of run.
func (env *Env) script(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", usage("run: no command: write -- CMD…, or - to read it from standard input")
	case len(args) > 1:
		return text.Quote(args...), nil
	case args[0] != "-":
		if strings.TrimSpace(args[0]) == "" {
			return "", usage(
				"run: empty command: write -- CMD…, or - to read it from standard input")
		}
		return args[0], nil
	}
	script, err := io.ReadAll(io.LimitReader(env.Stdin, maxScript+1))
	if err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	if len(script) > maxScript {
		return "", usage(
			"standard input: longer than %d bytes: copy a file to the sandbox and run that",
			maxScript)
	}
	if strings.TrimSpace(string(script)) == "" {
		return "", usage("standard input: empty, no command to run")
	}
	return strings.TrimRight(string(script), "\n"), nil
}

// call sends a request on the principal's shared attachment and prints its Result: the output as
// text to stdout, messages to stderr. It returns the exit code as an error.
func (env *Env) call(ctx context.Context, t wire.Target, r wire.Request, f *callFlags,
	stream bool) error {
	typed := r.Verb == wire.VerbType || r.Verb == wire.VerbKeys
	party, err := env.Hub.Sessions.Shared(ctx, env.Principal, t,
		attach.JoinOptions{Create: true, Typed: typed})
	if err != nil {
		return env.refused(t, f, err)
	}
	if stream {
		return env.streamed(ctx, t, party, r)
	}
	reply, err := env.request(ctx, party, r)
	if err != nil && reply.Result == nil {
		return env.refused(t, f, err)
	}
	return env.answer(ctx, t, party, r, f, reply.Result)
}

// answer prints the Result of request r of party.
func (env *Env) answer(ctx context.Context, t wire.Target, party *attach.Attachment, r wire.Request,
	f *callFlags, res *wire.Result) error {
	res.Sandbox = t.Sandbox
	defer party.Whole(ctx, res, r.MaxOutput)()
	if f.asJSON {
		if err := env.printJSON(res); err != nil {
			return err
		}
		return exitStatus(res)
	}
	fmt.Fprint(env.Stdout, withNewline(text.Lines(res.Output))) // the guest is not trusted
	env.showScreen(res.Screen)
	return env.report(t, res)
}

// request is Attachment.Request. The caller's ^C interrupts the program in the session.
func (env *Env) request(ctx context.Context, party *attach.Attachment,
	r wire.Request) (wire.Reply, error) {
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-env.Interrupts:
			_, _ = party.Request(ctx, wire.Request{Verb: wire.VerbInterrupt})
		case <-ended:
		}
	}()
	reply, err := party.Request(ctx, r)
	close(ended)
	<-stopped
	hintHold(r, reply, err)
	return reply, err
}

// hintHold adds the hint to use --hold if a call without it failed because a user holds the
// keyboard.
func hintHold(r wire.Request, reply wire.Reply, err error) {
	refused, _ := errors.AsType[*wire.Error](err)
	if refused == nil && reply.Result != nil {
		refused = reply.Result.Error
	}
	if refused != nil && refused.Code == wire.CodeKeyboardHeld && !r.Hold {
		refused.Hint = "to wait for it, add --hold"
	}
}

// refused returns the error of a request that was not sent. With --json it prints a Result, so that
// clients always parse the same object.
func (env *Env) refused(t wire.Target, f *callFlags, err error) error {
	if f == nil || !f.asJSON {
		return err
	}
	why := env.public(err)
	res := wire.RefusedResult(t, why)
	if why.Code == wire.CodeLost && why.Reason != "" {
		res = wire.LostResult(t, why)
	}
	if err := env.printJSON(res); err != nil {
		return err
	}
	return exitStatus(res)
}

// streamed runs a command and prints its output as text, when it arrives.
func (env *Env) streamed(ctx context.Context, t wire.Target, party *attach.Attachment,
	r wire.Request) error {
	type answer struct {
		reply wire.Reply
		err   error
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	answered := make(chan answer, 1)
	go func() {
		reply, err := env.request(ctx, party, r)
		answered <- answer{reply, err}
		stop()
	}()
	out := text.NewStream(env.Stdout)
	lines := &wholeLines{to: out}
	from, began := party.Live().Began(following, r.Op)
	if began == nil {
		lines.at = from
		lines.follow(following, party.Live(), 0)
	}
	a := <-answered
	if a.reply.Result == nil {
		return a.err
	}
	if began == nil {
		lines.follow(ctx, party.Live(), a.reply.Result.To)
		lines.end(a.reply.Result.To)
		if err := out.Close(); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	} else { // its start was not announced here: the Result has the output
		fmt.Fprint(env.Stdout, withNewline(text.Lines(a.reply.Result.Output)))
	}
	env.showScreen(a.reply.Result.Screen)
	if began == nil { // all of it was printed
		a.reply.Result.Notes = slices.DeleteFunc(a.reply.Result.Notes, func(note string) bool {
			return note == wire.NoteTruncated
		})
	}
	return env.report(t, a.reply.Result)
}

// wholeLines copies a log to a writer and holds back the last, unfinished line. That line may be
// the prompt after the command's output, and only the Result tells where the output ends.
type wholeLines struct {
	to   io.Writer
	at   uint64 // offset of the next byte to read
	held []byte // the bytes before it that are not written yet
}

// follow reads until ctx ends or, unless it is 0, end is reached.
func (w *wholeLines) follow(ctx context.Context, l *live.Session, end uint64) {
	buf := make([]byte, 32<<10)
	for end == 0 || w.at < end {
		n, err := l.ReadAt(ctx, w.at, buf)
		var lagged *live.LaggedError
		switch {
		case errors.As(err, &lagged):
			w.flush(len(w.held))
			w.at = lagged.To
			continue
		case err != nil:
			return
		}
		w.at += uint64(n)
		_, _ = w.Write(buf[:n])
	}
}

// Write passes on complete lines. The Close of the writer below returns its errors.
func (w *wholeLines) Write(p []byte) (int, error) {
	w.held = append(w.held, p...)
	if i := bytes.LastIndexByte(w.held, '\n'); i >= 0 {
		w.flush(i + 1)
	} else if len(w.held) > 64<<10 { // longer than any prompt
		w.flush(len(w.held))
	}
	return len(p), nil
}

// end writes the bytes before offset to that were held back.
func (w *wholeLines) end(to uint64) {
	over := w.at - min(w.at, to)
	w.flush(len(w.held) - int(min(over, uint64(len(w.held)))))
}

func (w *wholeLines) flush(n int) {
	_, _ = w.to.Write(w.held[:n]) // its Close returns the error
	w.held = append(w.held[:0], w.held[n:]...)
}

func typeCommand(env *Env) *cobra.Command {
	var f callFlags
	var raw, answer, stdin bool
	cmd := &cobra.Command{
		Use:   "type NAME[~SESSION] [flags] TEXT…",
		Short: "type a line into a session",
		Long: "Type text and Enter into a session, and print the output until the program\n" +
			"asks again, ends, or --timeout passes. Flags come before TEXT. Write -- before\n" +
			"TEXT that begins with -. The exit codes are those of keys.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, args, err := target(args)
			if err != nil {
				return err
			}
			r, err := f.request(wire.VerbType)
			if err != nil {
				return err
			}
			r.Text, r.Raw, r.Answer = strings.Join(args, " "), raw, answer
			if stdin {
				if len(args) > 0 {
					return usage("type: --stdin and TEXT are mutually exclusive")
				}
				if r.Text, err = firstLine(env.Stdin); err != nil {
					return err
				}
			}
			return env.call(cmd.Context(), t, r, &f, false)
		},
	}
	f.add(cmd, true)
	cmd.Flags().BoolVar(&raw, "raw", false, "do not press Enter after TEXT")
	cmd.Flags().BoolVar(&stdin, "stdin", false,
		"type the first line of standard input; hides a password from the process list")
	cmd.Flags().BoolVar(&answer, "answer", false, "fail unless a program waits for input")
	return cmd
}

// maxTyped is the longest line that type reads from standard input, in bytes.
const maxTyped = 64 << 10

// firstLine reads a line and returns it without its end. The last line needs no end.
func firstLine(r io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxTyped+1)).ReadString('\n')
	switch {
	case len(line) > maxTyped:
		return "", usage("type: the line is longer than %d bytes", maxTyped)
	case errors.Is(err, io.EOF) && line == "":
		return "", usage("type: standard input is empty")
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("type: standard input: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func keysCommand(env *Env) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "keys NAME[~SESSION] [flags] KEY…",
		Short: "press keys in a session, such as ^C, Up or Enter",
		Long: "Press keys in a session, and print the output until the program asks again,\n" +
			"ends, or --timeout passes.\n\n" +
			"A KEY is ^C or C-c, M-x, one character, or a name: Enter Tab Escape Space\n" +
			"BSpace Delete Insert Up Down Left Right Home End PageUp PageDown F1 to F12. To\n" +
			"type text, use sandboxd type --raw. Flags come before the first KEY.\n\n" +
			"The exit code is that of a command that the keys end, or 0 if they end none.\n" +
			"As with run, 123 means that a program waits for input.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, args, err := target(args)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return usage("keys: no key: write names such as ^C Up Enter")
			}
			r, err := f.request(wire.VerbKeys)
			if err != nil {
				return err
			}
			r.Keys = args
			return env.call(cmd.Context(), t, r, &f, false)
		},
	}
	f.add(cmd, true)
	return cmd
}

// shared returns the principal's shared attachment to the existing session that args name. args
// must have nothing else.
func (env *Env) shared(ctx context.Context,
	args []string) (wire.Target, *attach.Attachment, error) {
	t, err := onlyTarget(args)
	if err != nil {
		return t, nil, err
	}
	party, err := env.Hub.Sessions.Shared(ctx, env.Principal, t, attach.JoinOptions{})
	return t, party, err
}

func interruptCommand(env *Env) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "interrupt NAME[~SESSION]",
		Short: "interrupt the program that runs in a session",
		Long: "Interrupt the foreground program of a session: with ^C first, then with TERM,\n" +
			"then with KILL, until it ends. Prints what was sent. If ^C was not enough, it\n" +
			"also prints how many processes were signalled, how many of them ended, and how\n" +
			"many remain.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, party, err := env.shared(cmd.Context(), args)
			if err != nil {
				return err
			}
			reply, err := party.Request(cmd.Context(), wire.Request{Verb: wire.VerbInterrupt})
			if err != nil && reply.Result == nil {
				return env.refused(t, &f, err)
			}
			reply.Result.Sandbox = t.Sandbox
			refused := reply.Result.Ended == wire.Refused && reply.Result.Error != nil
			switch {
			case refused && !f.asJSON:
				return reply.Result.Error
			case refused:
				return errors.Join(env.printJSON(reply.Result), exitStatus(reply.Result))
			case f.asJSON:
				return env.printJSON(reply.Result)
			}
			if receipt := reply.Result.Receipt; receipt != nil {
				fmt.Fprintf(env.Stdout, "sent %s",
					text.Line(strings.Join(receipt.Steps, ", "), 200))
				// If ^C was enough, the processes that the terminal sent it to are not known.
				if len(receipt.Signaled)+len(receipt.Left) > 0 {
					fmt.Fprintf(env.Stdout, "; %d signalled, %d ended, %d left",
						len(receipt.Signaled), len(receipt.Died), len(receipt.Left))
				}
				fmt.Fprintln(env.Stdout)
			}
			fmt.Fprintf(env.Stdout, "state of %s: %s\n", t,
				text.Line(string(reply.Result.Phase), 40))
			return nil
		},
	}
	f.add(cmd, false)
	return cmd
}
