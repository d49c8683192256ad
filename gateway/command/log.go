package command

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// commandJSON is one command of a session in log --json.
type commandJSON struct {
	Sandbox   string     `json:"sandbox"`
	Session   string     `json:"session"`
	Number    int        `json:"number"`
	Command   string     `json:"command"`
	Typed     bool       `json:"typed"`
	By        string     `json:"by"`
	Started   time.Time  `json:"started"`
	From      uint64     `json:"from"` // its output in the log: [From, To)
	To        uint64     `json:"to"`
	Ended     wire.Ended `json:"ended"` // empty while it runs
	ExitCode  *int       `json:"exit_code"`
	ElapsedMS int64      `json:"elapsed_ms"`
}

// logFlags select what log prints.
type logFlags struct {
	raw, json bool
	command   int
	last      int
	tail      int
	since     string
	run       int
	part      bool // --from or --to is set: bytes [from, to)
	from, to  uint64
}

// partJSON is a part of a log in log --json with --from or --to.
type partJSON struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`
	End     uint64 `json:"end"`    // of the log
	Output  string `json:"output"` // rendered as text
}

func logCommand(env *Env) *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:   "log NAME[~SESSION]",
		Short: "print the output and the commands of a session",
		Long: "Print the output of a session as text, with a line after each command that\n" +
			"reports its exit code. --raw prints the exact bytes instead, --json one object\n" +
			"per command. Private mode leaves a gap, which is reported with its length.",
		Example: "  sandboxd log web --command -1             # the output of the last command\n" +
			"  sandboxd log web --last 3                 # the last three commands\n" +
			"  sandboxd log web --since 10m --json       # the commands that began in the last " +
			"ten minutes",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			f.part = changed("from") || changed("to")
			if n := count(changed("command"), changed("last"), changed("tail"), changed("since"),
				f.part); n > 1 {
				return usage(
					"log: use only one of --command, --last, --tail, --since, and --from with --to")
			}
			switch {
			case f.raw && f.json:
				return usage("log: --raw and --json are mutually exclusive")
			case changed("last") && f.last <= 0, changed("tail") && f.tail <= 0:
				return usage("log: --last and --tail must be at least 1")
			case changed("command") && f.command == 0:
				return usage("log: --command must not be 0: 1 is the first command, -1 the last")
			case f.tail > 0 && (f.raw || f.json):
				return usage("log: --tail prints text: omit --raw and --json")
			}
			r, err := env.Hub.Sessions.OpenRecord(cmd.Context(), env.Principal, t, f.run)
			if err != nil {
				return err
			}
			defer r.Close()
			p := logPrinter{env: env, target: t, record: r}
			return p.print(cmd.Context(), f)
		},
	}
	cmd.Flags().BoolVar(&f.raw, "raw", false,
		"print the exact bytes; on a terminal, sandboxd log renders them as text")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one object per command")
	cmd.Flags().IntVar(&f.command, "command", 0,
		"print the output of one command: 1 is the first, -1 the last")
	cmd.Flags().IntVar(&f.last, "last", 0, "print only the last N commands")
	cmd.Flags().IntVar(&f.tail, "tail", 0, "print only the last N lines")
	cmd.Flags().StringVar(&f.since, "since", "",
		"print only what is newer than a duration, such as 10m, or a time, such as "+
			"2006-01-02T15:04:05Z")
	cmd.Flags().Uint64Var(&f.from, "from", 0,
		"start at this byte of the log, such as Result.from; with --json, print the part as one "+
			"object")
	cmd.Flags().Uint64Var(&f.to, "to", 0,
		"end before this byte of the log; 0 is the end of the log")
	cmd.Flags().IntVar(&f.run, "run", 0,
		"recording to print if the session was started several times; 0 is the latest")
	return cmd
}

func count(all ...bool) (n int) {
	for _, set := range all {
		if set {
			n++
		}
	}
	return n
}

// logPrinter prints parts of one recording.
type logPrinter struct {
	env    *Env
	target wire.Target
	record *record.Reader
}

// print prints the part that f selects. It reads only that part of the log: the events locate it.
func (p logPrinter) print(ctx context.Context, f logFlags) error {
	r := p.record
	all := r.Commands()
	first, from, to := 0, uint64(0), r.End()
	switch {
	case f.part:
		if f.to > 0 {
			to = min(f.to, to)
		}
		from = min(f.from, to)
		all = nil
	case f.command != 0:
		n, c, err := numbered(r, f.command)
		if err != nil {
			return err
		}
		first, all, from, to = n-1, all[:n], c.From, c.To
	case f.last > 0:
		if first = max(0, len(all)-f.last); first < len(all) && first > 0 {
			from = all[first].Line[0]
		}
	case f.since != "":
		since, err := sinceTime(f.since)
		if err != nil {
			return err
		}
		from = r.At(since)
		for first < len(all) && all[first].Started < since.UnixMilli() {
			first++
		}
	}
	switch {
	case f.raw:
		return record.Copy(ctx, p.env.Stdout, r, from, to, nil)
	case f.json && f.part:
		return p.part(ctx, from, to)
	case f.json:
		return p.commands(ctx, all[first:], first)
	case f.command != 0:
		return p.text(ctx, p.env.Stdout, nil, from, to)
	case f.tail > 0:
		return p.tail(ctx, all, f.tail)
	}
	return p.text(ctx, p.env.Stdout, all, from, to)
}

func sinceTime(s string) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return at, usage(
			"--since %q: write a duration such as 10m, or a time such as 2006-01-02T15:04:05Z", s)
	}
	return at, nil
}

// text prints rendered output of [from, to) to w, with a line after each command that ends there.
func (p logPrinter) text(ctx context.Context, w io.Writer, commands []record.Command, from,
	to uint64) error {
	out := text.NewStream(w)
	say := func(format string, args ...any) error {
		if err := out.Close(); err != nil {
			return err
		}
		out = text.NewStream(w)
		_, err := fmt.Fprintf(w, format+"\n", args...)
		return err
	}
	show := func(end uint64) error {
		var failed error
		err := record.Copy(ctx, writer(func(b []byte) (int, error) {
			return out.Write(b)
		}), p.record, from, end, func(g *record.GapError) {
			failed = errors.Join(failed, say("%s", record.Missing(g)))
		})
		from = max(from, end)
		return errors.Join(err, failed)
	}
	// By their ends: a command that starts a shell lasts while others run in that.
	commands = slices.SortedStableFunc(slices.Values(commands), func(a, b record.Command) int {
		return cmp.Or(cmp.Compare(a.To, b.To), cmp.Compare(b.From, a.From))
	})
	for i := range commands {
		c := &commands[i]
		if c.Ended == 0 || c.To < from || c.To > to {
			continue
		}
		if err := show(c.To); err != nil {
			return err
		}
		how := string(c.Why)
		if c.Exit != nil {
			how = fmt.Sprintf("exit %d", *c.Exit)
		}
		took := time.Duration(max(c.Ended-c.Started, 0)) * time.Millisecond
		if err := say("── %s, %v, %s, %s", how, took, text.Line(c.By, 80),
			time.UnixMilli(c.Ended).Format(time.DateTime)); err != nil {
			return err
		}
	}
	return errors.Join(show(to), out.Close())
}

// writer is a function as an io.Writer.
type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// maxPart is the longest part of a log that is printed as one object, in bytes.
const maxPart = 1 << 20

// part prints [from, to) as one object.
func (p logPrinter) part(ctx context.Context, from, to uint64) error {
	if to-from > maxPart {
		return usage("log: the part is longer than %d bytes: set --to, or omit --json", maxPart)
	}
	var out bytes.Buffer
	if err := p.text(ctx, &out, nil, from, to); err != nil {
		return err
	}
	return p.env.printJSON(partJSON{Sandbox: p.target.Sandbox, Session: p.target.Session,
		From: from, To: to,
		End: p.record.End(), Output: out.String()})
}

// tail prints the last n lines. It reads the log from its end until it has n lines.
func (p logPrinter) tail(ctx context.Context, commands []record.Command, n int) error {
	const step = 256 << 10
	end := p.record.End()
	for back := uint64(step); ; back *= 4 {
		from := end - min(end, back)
		var out bytes.Buffer
		if err := p.text(ctx, &out, commands, from, end); err != nil {
			return err
		}
		lines := strings.SplitAfter(out.String(), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		// The first line may be incomplete.
		if len(lines) > n || from == 0 {
			_, err := io.WriteString(p.env.Stdout, strings.Join(lines[max(0, len(lines)-n):], ""))
			return err
		}
	}
}

// commands prints an object for each command. The first has number before+1.
func (p logPrinter) commands(ctx context.Context, commands []record.Command, before int) error {
	for i := range commands {
		c := &commands[i]
		row := commandJSON{Sandbox: p.target.Sandbox, Session: p.target.Session, Number: before +
			i + 1,
			Command: lineText(ctx, p.record, c), Typed: c.Typed(), By: c.By,
			Started: time.UnixMilli(c.Started), From: c.From, To: c.To, Ended: c.Why,
			ExitCode: c.Exit}
		if c.Ended != 0 {
			row.ElapsedMS = max(c.Ended-c.Started, 0)
		}
		if err := p.env.printJSON(row); err != nil {
			return err
		}
	}
	return nil
}
