package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func recordCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{logCommand(env), replayCommand(env)}
}

// commandJSON is one command of a session, as log --json prints it.
type commandJSON struct {
	Sandbox   string     `json:"sandbox"`
	Session   string     `json:"session"`
	Command   string     `json:"command"`
	By        string     `json:"by"`
	Started   time.Time  `json:"started"`
	From      uint64     `json:"from"` // its output in the record: [From, To)
	To        uint64     `json:"to"`
	Ended     wire.Ended `json:"ended"` // empty while it runs
	ExitCode  *int       `json:"exit_code"`
	ElapsedMS int64      `json:"elapsed_ms"`
}

func logCommand(env *Env) *cobra.Command {
	var name string
	var raw, asJSON bool
	var run int
	cmd := &cobra.Command{
		Use:   "log NAME[~SESSION]",
		Short: "print what a session printed, and its commands with exit codes",
		Long: "Print what a session printed, as a person would read it, with a line behind each command that says how it ended.\n" +
			"--raw prints the exact bytes instead, --json one object per command.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(name, args)
			if err != nil {
				return err
			}
			if raw && asJSON {
				return usage("log: --raw and --json exclude each other")
			}
			r, err := env.Hub.OpenRecord(cmd.Context(), env.Principal, t, run)
			if err != nil {
				return err
			}
			defer r.Close()
			switch {
			case raw:
				return copyRecord(cmd.Context(), env.Stdout, r, 0, r.End(), nil)
			case asJSON:
				return env.logJSON(t, r)
			}
			return env.logText(cmd.Context(), r)
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the exact bytes")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per command")
	cmd.Flags().IntVar(&run, "run", 0, "which record of a session that was started several times; 0 is the latest")
	return cmd
}

// copyRecord writes bytes [at, end) of a record. missing, if set, is told of stretches that are not there.
func copyRecord(ctx context.Context, w io.Writer, r *record.Reader, at, end uint64, missing func(*record.GapError)) error {
	buf := make([]byte, 64<<10)
	for at < end && ctx.Err() == nil {
		n, err := r.ReadAt(buf[:min(uint64(len(buf)), end-at)], at)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			at += uint64(n)
			continue
		}
		var gap *record.GapError
		switch {
		case errors.As(err, &gap):
			if missing != nil {
				missing(gap)
			}
			at = gap.To
		case err == nil, errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("record: %w", err)
		}
	}
	return context.Cause(ctx)
}

// logText prints rendered output with a line behind each command.
func (env *Env) logText(ctx context.Context, r *record.Reader) error {
	var at uint64
	out := text.NewStream(env.Stdout)
	lines := &wholeLines{to: out} // a command's end is known behind the prompt that follows: that belongs below it
	begun := make(map[string]wire.Event)
	say := func(format string, args ...any) error {
		if err := out.Close(); err != nil {
			return err
		}
		out = text.NewStream(env.Stdout)
		lines.to = out
		_, err := fmt.Fprintf(env.Stdout, "── "+format+"\n", args...)
		return err
	}
	gap := func(g *record.GapError) { _ = say("%d bytes are missing: %s", g.To-g.From, g.Why) }
	for e, err := range r.Events() {
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
		switch e.Kind {
		case wire.EventCommand:
			begun[e.Op] = e
		case wire.EventResult:
			if err := copyRecord(ctx, lines, r, at, e.Offset, gap); err != nil {
				return err
			}
			at = max(at, e.Offset)
			first := begun[e.Op]
			delete(begun, e.Op)
			took := time.Duration(max(e.TimeUnix-first.TimeUnix, 0)) * time.Millisecond
			how := string(e.Why)
			if e.ExitCode != nil {
				how = fmt.Sprintf("exit %d", *e.ExitCode)
			}
			if err := say("%s, %v, %s, %s", how, took, clean(first.By, 80), time.UnixMilli(e.TimeUnix).Format(time.DateTime)); err != nil {
				return err
			}
		}
	}
	if err := copyRecord(ctx, lines, r, at, r.End(), gap); err != nil {
		return err
	}
	lines.flush(len(lines.held))
	return out.Close()
}

// logJSON prints the commands of a record.
func (env *Env) logJSON(t wire.Target, r *record.Reader) error {
	var order []string
	rows := make(map[string]*commandJSON)
	for e, err := range r.Events() {
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
		switch e.Kind {
		case wire.EventCommand:
			order = append(order, e.Op)
			rows[e.Op] = &commandJSON{Sandbox: t.Sandbox, Session: t.Session, Command: e.Text, By: e.By, Started: time.UnixMilli(e.TimeUnix), From: e.Offset, To: e.Offset}
		case wire.EventResult:
			if row := rows[e.Op]; row != nil {
				row.To, row.Ended, row.ExitCode = e.Offset, e.Why, e.ExitCode
				row.ElapsedMS = e.TimeUnix - row.Started.UnixMilli()
			}
		}
	}
	for _, op := range order {
		if err := env.printJSON(rows[op]); err != nil {
			return err
		}
	}
	return nil
}

func replayCommand(env *Env) *cobra.Command {
	var name string
	var speed float64
	var cast bool
	var run int
	idle := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "replay NAME[~SESSION]",
		Short: "play the record of a session",
		Long: "Play the record of a session as it happened. On a terminal it is drawn as people saw it, elsewhere its text is\n" +
			"printed. --cast writes an asciicast (version 2) instead.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(name, args)
			if err != nil {
				return err
			}
			if speed < 0 {
				return usage("--speed %v: use a number above 0, or 0 for no pauses", speed)
			}
			r, err := env.Hub.OpenRecord(cmd.Context(), env.Principal, t, run)
			if err != nil {
				return err
			}
			defer r.Close()
			if cast {
				return r.Export(env.Stdout, 2)
			}
			if env.Pty != nil && env.Draw != nil {
				canvas, err := env.Draw(r.Begin().Cols, r.Begin().Rows)
				if err != nil {
					return err
				}
				return errors.Join(play(cmd.Context(), r, canvas, canvas.Resize, speed, idle), canvas.Close())
			}
			out := text.NewStream(env.Stdout)
			return errors.Join(play(cmd.Context(), r, out, func(int, int) {}, speed, idle), out.Close())
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION")
	cmd.Flags().Float64Var(&speed, "speed", 1, "how many times as fast; 0 is without pauses")
	cmd.Flags().DurationVar(&idle, "idle", idle, "longest pause, before --speed")
	cmd.Flags().BoolVar(&cast, "cast", false, "write an asciicast for asciinema")
	cmd.Flags().IntVar(&run, "run", 0, "which record of a session that was started several times; 0 is the latest")
	return cmd
}

// play writes a record to w with its pauses, none longer than idle, divided by speed.
func play(ctx context.Context, r *record.Reader, w io.Writer, resize func(cols, rows int), speed float64, idle time.Duration) error {
	var at uint64
	last := r.Begin().TimeUnix
	for e, err := range r.Events() {
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
		if pause := min(time.Duration(e.TimeUnix-last)*time.Millisecond, idle); pause > 0 && speed > 0 {
			timer := time.NewTimer(time.Duration(float64(pause) / speed))
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return exitError(wire.ExitInterrupt)
			}
		}
		last = max(last, e.TimeUnix)
		if e.Kind == wire.EventResize {
			resize(e.Cols, e.Rows)
		}
		if e.Offset > at {
			if err := copyRecord(ctx, w, r, at, e.Offset, nil); err != nil {
				return err
			}
			at = e.Offset
		}
	}
	return copyRecord(ctx, w, r, at, r.End(), nil)
}
