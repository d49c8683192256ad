package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// errQuit ends a watch when the user types q.
var errQuit = errors.New("quit")

// watchTable shows the list on the caller's terminal and updates it, until q or ^C.
func (env *Env) watchTable(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the caller's terminal
		buf := make([]byte, 64)
		for {
			n, err := env.Stdin.Read(buf)
			if bytes.ContainsAny(buf[:n], "qQ") {
				cancel(errQuit)
			}
			if err != nil {
				return
			}
		}
	}()
	watch := env.Hub.Sessions.WatchAttention(env.Principal)
	defer watch.Close()
	changed := make(chan error, 1)
	next := func() { changed <- watch.Wait(ctx) } // one at a time: started again after each change
	go next()
	defer func() {
		cancel(nil)
		<-changed //nolint:errcheck // it returns because of cancel
	}()

	s := Sheet{To: env.Stdout, Cols: int(env.Pty.Cols), Rows: int(env.Pty.Rows)}
	if err := s.Enter(); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second) // times on the screen are in seconds
	defer tick.Stop()
	for {
		var err error
		select {
		case err = <-changed:
			go next()
		case size := <-env.Resized:
			s.Resize(int(size.Cols), int(size.Rows))
		case <-tick.C:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err == nil {
			err = env.drawTable(ctx, &s)
		}
		if err != nil {
			s.Leave()
			if errors.Is(context.Cause(ctx), errQuit) {
				return nil
			}
			return ended(ctx, err)
		}
	}
}

func (env *Env) drawTable(ctx context.Context, s *Sheet) error {
	rows, err := env.rows(ctx)
	if err != nil {
		return err
	}
	return s.Draw(tableLines(rows, s.Rows))
}

// tableLines returns at most height lines that show rows. If there is not enough room, it omits
// sandboxes that need no attention first.
func tableLines(rows []row, height int) []string {
	if len(rows) == 0 {
		return []string{noSandboxes, "", "q quits"}
	}
	asking := 0
	for _, r := range rows {
		if r.label() != "" {
			asking++
		}
	}
	room := max(height-2, 1) // without the header and the footer
	left := 0
	if len(rows) > room {
		left = len(rows) - room
	}
	var shown bytes.Buffer
	_ = table(&shown, func(w io.Writer) { // writing to memory does not fail
		fmt.Fprintln(w, "NAME\tSTATE\tNEEDS\tSINCE\tKEYBOARD\tLAST")
		quiet, shown := room-asking, 0
		for _, r := range rows {
			if r.label() == "" {
				if quiet--; quiet < 0 {
					continue
				}
			}
			if shown++; shown > room {
				break
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.State, dash(r.label()),
				gateway.Ago(r.since()), dash(r.need.Keyboard),
				dash(text.Line(r.need.LastLine, 200)))
		}
	})
	lines := strings.Split(strings.TrimRight(shown.String(), "\n"), "\n")
	foot := plural(len(rows), "sandbox")
	switch {
	case asking == 1:
		foot += ", 1 needs attention"
	case asking > 1:
		foot += fmt.Sprintf(", %d need attention", asking)
	}
	if left > 0 {
		foot += fmt.Sprintf(", %d not shown", left)
	}
	return append(lines, foot+"   q quits")
}
