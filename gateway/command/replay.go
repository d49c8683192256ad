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
		Short: "play the recording of a session",
		Long: "Play the recording of a session at its original speed. On a terminal it draws\n" +
			"the screen, elsewhere it prints text.\n\n" +
			"--from and --to are a time since the start such as 12m30s, an offset such as\n" +
			"@4096, or a command such as #3; #-1 is the last one. --cast writes an\n" +
			"asciicast instead: version 2, or 3 with --cast=3.\n\n" +
			"--svg writes an animated SVG instead, for a README or a web page. Below the\n" +
			"terminal it shows who holds the keyboard and what the program waits for.\n\n" +
			"Keys on a terminal:\n\n" +
			"  space              pause\n" +
			"  , . left right     go back or forward 5 s\n" +
			"  [ ]                go to the previous or next command\n" +
			"  - +                change the speed\n" +
			"  q                  quit",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := onlyTarget(args)
			if err != nil {
				return err
			}
			if speed < 0 {
				return usage("--speed %v: must not be negative; 0 means no pauses", speed)
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
					return usage("--cast: writes the whole recording: omit --from and --to")
				}
				return r.Export(env.Stdout, int(castVersion[0]-'0'))
			default:
				return usage("--cast=%s: must be 2 or 3, a version of asciicast", castVersion)
			}
			o := player.Options{Speed: speed, Idle: idle, End: r.End(),
				Keys: "space pause  , . 5 s  [ ] command  - + speed  q quit"}
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
				return usage(
					"--from %s: after the end of the recording, which is %v and %d bytes long",
					from, long, r.End())
			}
			if to != "" && o.End <= start {
				return usage("--to %s: must be after the start of the replay", to)
			}
			if asSVG {
				part := svg.Options{From: start, To: o.End, Speed: speed, Idle: idle}
				return played(cmd.Context(), svgError(svg.Write(cmd.Context(), env.Stdout, r,
					part)))
			}
			if env.Pty == nil || env.Draw == nil {
				out := text.NewStream(env.Stdout)
				return errors.Join(played(cmd.Context(),
					player.NewText(r, out, start, o).Play(cmd.Context(), nil)), out.Close())
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
	cmd.Flags().Float64Var(&speed, "speed", 1, "speed as a factor; 0 means no pauses")
	cmd.Flags().DurationVar(&idle, "idle", idle, "longest pause, at the original speed")
	cmd.Flags().StringVar(&from, "from", "", "position at which to start (default: the start)")
	cmd.Flags().StringVar(&to, "to", "", "position at which to stop (default: the end)")
	cmd.Flags().StringVar(&castVersion, "cast", "",
		"write an asciicast for asciinema: version 2 or 3")
	cmd.Flags().Lookup("cast").NoOptDefVal = "2"
	cmd.Flags().BoolVar(&asSVG, "svg", false, "write an animated SVG")
	cmd.Flags().IntVar(&run, "run", 0,
		"recording to play if the session was started several times; 0 is the latest")
	return cmd
}

// svgError makes a recording that is too long for an SVG a usage error: a shorter part works.
func svgError(err error) error {
	if errors.Is(err, svg.ErrTooLong) {
		return usage("--svg: %v", err)
	}
	return err
}

// played returns the error of a replay: the exit code of an interrupt if the caller ended it.
func played(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return exitError(wire.ExitInterrupt)
	}
	return err
}

// keysFrom returns the keys that the user presses: characters, and left and right. It stops reading
// at the end of stdin, or at the next key after done is closed.
func keysFrom(stdin io.Reader, done <-chan struct{}) <-chan player.Order {
	keys := make(chan player.Order)
	go func() { // ends with stdin, or at the next key after done
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
