package command

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/player/svg"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func replayCommand(env *Env) *cobra.Command {
	var from, to, castVersion string
	var speed float64
	var run int
	var asSVG bool
	idle := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "replay NAME[~SESSION]",
		Short: "play the record of a session",
		Long: "Play the record of a session as it happened. On a terminal it is drawn as people saw it, elsewhere its text is printed.\n" +
			"--from and --to take a time since the beginning, as 12m30s, an offset, as @4096, or a command, as #3; #-1 is the last.\n" +
			"--cast writes an asciicast instead, of version 2, or 3 with --cast=3.\n" +
			"--svg writes an animated SVG instead, for a README or a web page. Below the terminal it shows who has the\n" +
			"keyboard and what the program waits for.\n\n" +
			"Keys on a terminal: space pauses, , and . or the arrows go 5 s back and forth, [ and ] to the command before and after,\n" +
			"- and + change the speed, q ends.",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			if speed < 0 {
				return usage("--speed %v: use a number above 0, or 0 for no pauses", speed)
			}
			if asSVG && castVersion != "" {
				return usage("--svg and --cast are mutually exclusive")
			}
			if asSVG && (speed == 0 || idle <= 0) {
				return usage("--svg needs --speed and --idle above 0")
			}
			r, err := env.Hub.Sessions.OpenRecord(cmd.Context(), env.Principal, t, run)
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
			o := player.Options{Speed: speed, Idle: idle, End: r.End(), Keys: "space pause  , . 5 s  [ ] command  - + speed  q quit"}
			start := uint64(0)
			if from != "" {
				if start, err = place(r, from); err != nil {
					return err
				}
			}
			if to != "" {
				if o.End, err = place(r, to); err != nil {
					return err
				}
			}
			if from != "" && start >= r.End() {
				long := r.Last().Sub(time.UnixMilli(r.Begin().TimeUnix)).Round(time.Second)
				return usage("--from %s is behind the end: the record is %v and %d bytes long", from, long, r.End())
			}
			if to != "" && o.End <= start {
				return usage("--to %s is not behind where the replay begins", to)
			}
			if asSVG {
				part := svg.Options{From: start, To: o.End, Speed: speed, Idle: idle}
				return played(cmd.Context(), svgError(svg.Write(cmd.Context(), env.Stdout, r, part)))
			}
			if env.Pty == nil || env.Draw == nil {
				out := text.NewStream(env.Stdout)
				return errors.Join(played(cmd.Context(), player.NewText(r, out, start, o).Play(cmd.Context(), nil)), out.Close())
			}
			screen, err := env.Draw(r.Begin().Cols, r.Begin().Rows)
			if err != nil {
				return err
			}
			p := player.New(r, screen, o)
			err = p.Seek(cmd.Context(), start)
			if err == nil {
				err = played(cmd.Context(), p.Play(cmd.Context(), keysFrom(env.Stdin, env.done)))
			}
			return errors.Join(err, screen.Close())
		},
	}
	cmd.Flags().Float64Var(&speed, "speed", 1, "how many times as fast; 0 is without pauses")
	cmd.Flags().DurationVar(&idle, "idle", idle, "longest pause, before --speed")
	cmd.Flags().StringVar(&from, "from", "", "where to begin")
	cmd.Flags().StringVar(&to, "to", "", "where to end")
	cmd.Flags().StringVar(&castVersion, "cast", "", "write an asciicast for asciinema, of version 2 or 3")
	cmd.Flags().Lookup("cast").NoOptDefVal = "2"
	cmd.Flags().BoolVar(&asSVG, "svg", false, "write an animated SVG")
	cmd.Flags().IntVar(&run, "run", 0, "which record of a session that was started several times; 0 is the latest")
	return cmd
}

// svgError makes a record that is too long for an SVG an error of usage: a shorter part works.
func svgError(err error) error {
	if errors.Is(err, svg.ErrTooLong) {
		return usage("--svg: %v", err)
	}
	return err
}

// played is how a replay ended: one that its caller ended has an exit code for that.
func played(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return exitError(wire.ExitInterrupt)
	}
	return err
}

// keysFrom returns what a person types at a player: characters, and left and right. Reading ends with stdin, or at the
// next key once done is closed.
func keysFrom(stdin io.Reader, done <-chan struct{}) <-chan player.Order {
	keys := make(chan player.Order)
	go func() { // ends with the caller's terminal, or the command and the next key
		buf := make([]byte, 64)
		for {
			n, err := stdin.Read(buf)
			for _, key := range player.Keys(buf[:n]) {
				select {
				case keys <- player.Order{Key: key}:
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
