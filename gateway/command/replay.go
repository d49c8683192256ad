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

func replayCommand(env *Env) *cobra.Command {
	var name, from, to, castVersion string
	var speed float64
	var run int
	idle := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "replay NAME[~SESSION]",
		Short: "play the record of a session",
		Long: "Play the record of a session as it happened. On a terminal it is drawn as people saw it, elsewhere its text is printed.\n" +
			"--from and --to take a time since the beginning, as 12m30s, an offset, as @4096, or a command, as #3; #-1 is the last.\n" +
			"--cast writes an asciicast instead, of version 2, or 3 with --cast=3.\n\n" +
			"Keys on a terminal: space pauses, , and . or the arrows go 5 s back and forth, [ and ] to the command before and after,\n" +
			"- and + change the speed, q ends.",
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
			switch castVersion {
			case "":
			case "2", "3":
				if from != "" || to != "" {
					return usage("--cast writes the whole record: leave out --from and --to")
				}
				return r.Export(env.Stdout, int(castVersion[0]-'0'))
			default:
				return usage("--cast=%s: asciicast has the versions 2 and 3", castVersion)
			}
			p := &player{r: r, speed: speed, idle: idle, end: r.End(), every: record.KeyframeEvery}
			start := uint64(0)
			if from != "" {
				if start, err = place(r, from); err != nil {
					return err
				}
			}
			if to != "" {
				if p.end, err = place(r, to); err != nil {
					return err
				}
			}
			if from != "" && start >= r.End() {
				long := r.Last().Sub(time.UnixMilli(r.Begin().TimeUnix)).Round(time.Second)
				return usage("--from %s is behind the end: the record is %v and %d bytes long", from, long, r.End())
			}
			if to != "" && p.end <= start {
				return usage("--to %s is not behind where the replay begins", to)
			}
			if env.Pty == nil || env.Draw == nil {
				out := text.NewStream(env.Stdout)
				p.to, p.at = out, start
				return errors.Join(p.play(cmd.Context(), nil), out.Close())
			}
			canvas, err := env.Draw(r.Begin().Cols, r.Begin().Rows)
			if err != nil {
				return err
			}
			p.to, p.canvas, p.commands = canvas, canvas, r.Commands()
			err = p.seek(cmd.Context(), start)
			if err == nil {
				err = p.play(cmd.Context(), env.keys())
			}
			return errors.Join(err, canvas.Close())
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION")
	cmd.Flags().Float64Var(&speed, "speed", 1, "how many times as fast; 0 is without pauses")
	cmd.Flags().DurationVar(&idle, "idle", idle, "longest pause, before --speed")
	cmd.Flags().StringVar(&from, "from", "", "where to begin")
	cmd.Flags().StringVar(&to, "to", "", "where to end")
	cmd.Flags().StringVar(&castVersion, "cast", "", "write an asciicast for asciinema, of version 2 or 3")
	cmd.Flags().Lookup("cast").NoOptDefVal = "2"
	cmd.Flags().IntVar(&run, "run", 0, "which record of a session that was started several times; 0 is the latest")
	return cmd
}

// player plays a record: at is what it has shown.
type player struct {
	r        *record.Reader
	to       io.Writer
	canvas   Canvas // nil for text
	at, end  uint64
	speed    float64
	idle     time.Duration
	paused   bool
	commands []record.Command
	every    uint64 // how far apart keyframes are
}

// skip is how far a key goes back or forth.
const skip = 5 * time.Second

// play goes on from at to end, with the record's pauses, none longer than idle, divided by speed, and does what keys say.
func (p *player) play(ctx context.Context, keys <-chan string) error {
	now := p.now()
	for p.at < p.end || p.paused { // at the end a paused player waits for keys
		to, at, timed := p.r.Next(p.at)
		to = min(to, p.end)
		pause := time.Duration(0)
		if timed && p.speed > 0 {
			pause = time.Duration(float64(max(0, min(at.Sub(now), p.idle))) / p.speed)
		}
		key, err := p.rest(ctx, pause, keys)
		switch {
		case err != nil:
			return err
		case key == "q":
			return nil
		case key != "":
			if err := p.press(ctx, key); err != nil {
				return err
			}
			now = p.now()
			continue
		}
		if err := p.feed(ctx, to, nil); err != nil {
			return err
		}
		if now = at; p.canvas != nil {
			p.canvas.Status(p.status())
		}
	}
	return nil
}

// now is the time of the record at the place that is shown.
func (p *player) now() time.Time {
	if p.at == 0 {
		return time.UnixMilli(p.r.Begin().TimeUnix)
	}
	return p.r.Time(p.at - 1)
}

// rest waits, for ever while it is paused, and returns the key that ended that.
func (p *player) rest(ctx context.Context, pause time.Duration, keys <-chan string) (string, error) {
	if pause == 0 && !p.paused {
		select {
		case key := <-keys:
			return key, nil
		default:
			return "", interruptedBy(ctx)
		}
	}
	var over <-chan time.Time
	if !p.paused {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case key := <-keys:
		return key, nil
	case <-over:
		return "", nil
	case <-ctx.Done():
		return "", exitError(wire.ExitInterrupt)
	}
}

func interruptedBy(ctx context.Context) error {
	if ctx.Err() != nil {
		return exitError(wire.ExitInterrupt)
	}
	return nil
}

// press does what a key is for.
func (p *player) press(ctx context.Context, key string) error {
	switch key {
	case " ":
		p.paused = !p.paused
	case "+", "=":
		p.speed = min(max(2*p.speed, 1), 64)
	case "-":
		if p.speed > 1./8 {
			p.speed /= 2
		}
	case ",", "left":
		to := p.r.At(p.now().Add(-skip))
		if to >= p.at && p.at > 0 {
			to = p.r.At(p.now().Add(-time.Millisecond)) // nothing was printed for so long
		}
		return p.seek(ctx, to)
	case ".", "right":
		to := p.r.At(p.now().Add(skip))
		if to <= p.at {
			to, _, _ = p.r.Next(p.at)
		}
		return p.seek(ctx, to)
	case "[", "]":
		return p.seek(ctx, p.nextCommand(key == "]"))
	}
	p.canvas.Status(p.status())
	return nil
}

// nextCommand is where the command after the place that is shown begins, or the one before.
func (p *player) nextCommand(after bool) uint64 {
	to := uint64(0)
	for _, c := range p.commands {
		switch at := c.Line[0]; {
		case after && at > p.at:
			return at
		case !after && at < p.at:
			to = at
		}
	}
	if after {
		return p.end
	}
	return to
}

// seek shows what the terminal showed when the log was to bytes long. It begins at the last keyframe before.
func (p *player) seek(ctx context.Context, to uint64) error {
	to = min(to, p.r.End())
	if to < p.at || to-p.at > p.every || p.at == 0 {
		begin := p.r.Begin()
		p.at = 0
		if snapshot, at, ok := p.r.Keyframe(to); ok && p.canvas.Jump(snapshot, 0, 0) == nil {
			p.at = at
		} else if err := p.canvas.Jump(nil, begin.Cols, begin.Rows); err != nil {
			return err
		}
	} else {
		p.canvas.Hold()
	}
	keep := func(at uint64) {
		// Without it the next jump takes longer.
		_ = p.r.AddKeyframe(at, p.canvas.Snapshot())
	}
	if err := p.feed(ctx, to, keep); err != nil {
		return err
	}
	p.canvas.Status(p.status())
	return p.canvas.Show()
}

// feed shows bytes up to offset to, with the sizes that the terminal had. keep, if set, is called at every place that should
// have a keyframe and is passed.
func (p *player) feed(ctx context.Context, to uint64, keep func(at uint64)) error {
	for p.at < to {
		stop := to
		if p.canvas != nil {
			size, next := p.r.SizeAt(p.at)
			p.canvas.Resize(size.Cols, size.Rows)
			stop = min(stop, next)
			if frame := (p.at/p.every + 1) * p.every; keep != nil {
				stop = min(stop, frame)
			}
		}
		if err := copyRecord(ctx, p.to, p.r, p.at, stop, p.missing); err != nil {
			return err
		}
		if p.at = stop; keep != nil && stop%p.every == 0 {
			keep(stop)
		}
	}
	if p.canvas != nil {
		size, _ := p.r.SizeAt(p.at)
		p.canvas.Resize(size.Cols, size.Rows)
	}
	return nil
}

// missing says in text what is not there. A canvas shows what comes after it.
func (p *player) missing(g *record.GapError) {
	if p.canvas == nil {
		fmt.Fprintf(p.to, "\r\n%s\r\n", missing(g))
	}
}

// status is the line below what is played.
func (p *player) status() string {
	begin := time.UnixMilli(p.r.Begin().TimeUnix)
	n := 0
	for n < len(p.commands) && p.commands[n].Line[0] < max(p.at, 1) {
		n++
	}
	how := fmt.Sprintf("%gx", p.speed)
	switch {
	case p.paused:
		how = "paused"
	case p.speed == 0:
		how = "no pauses"
	}
	return fmt.Sprintf(" replay %s/%s   command %d/%d   %s   space pause  , . 5 s  [ ] command  - + speed  q quit",
		clock(p.now().Sub(begin)), clock(p.r.Last().Sub(begin)), n, len(p.commands), how)
}

func clock(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// keys are what a person types at a player: characters, and left and right. Reading them ends with the door's input.
func (env *Env) keys() <-chan string {
	keys := make(chan string)
	done := env.done
	go func() { // ends with the caller's terminal, or the command and the next key
		buf := make([]byte, 64)
		for {
			n, err := env.Stdin.Read(buf)
			for p := buf[:n]; len(p) > 0; {
				key := string(p[:1])
				switch {
				case len(p) >= 3 && p[0] == 0x1b && (p[1] == '[' || p[1] == 'O'):
					key = map[byte]string{'C': "right", 'D': "left"}[p[2]]
					p = p[3:]
				default:
					p = p[1:]
				}
				if key == "" { // it would end a pause
					continue
				}
				select {
				case keys <- key:
				case <-done:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}
