package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// agentList is one invocation of agent ls.
type agentList struct {
	client *coding.Client
	group  string // empty means all
	asJSON bool
}

// print prints the list once.
func (l agentList) print(ctx context.Context) error {
	all, err := l.client.List(ctx, l.group)
	if err != nil {
		return err
	}
	if l.asJSON {
		for _, i := range all {
			if err := text.WriteJSON(os.Stdout, i); err != nil {
				return err
			}
		}
		return nil
	}
	out := shownOn(os.Stdout)
	defer out.Close()
	return agentTable(out, all)
}

// listEvery is the time between two updates of a list.
const listEvery = 2 * time.Second

// each calls show with the list, and again every listEvery, until ctx ends or show fails. A group
// must have sandboxes at first; later it may have none.
func (l agentList) each(ctx context.Context, show func([]coding.Info) error) error {
	for first := true; ; first = false {
		all, err := l.client.List(ctx, l.group)
		if !first && errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
			err = nil
		}
		if err == nil {
			err = show(all)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(listEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// goneAgent is a line of agent ls --watch --json for a sandbox that was removed.
type goneAgent struct {
	coding.Info
	Gone bool `json:"gone"`
}

// follow prints a line for each sandbox, and one for each change. The last line of a program alone
// is no change: a program that works may show the time.
func (l agentList) follow(ctx context.Context) error {
	shown := make(map[string]coding.Info)
	return l.each(ctx, func(all []coding.Info) error {
		gone := maps.Clone(shown)
		for _, i := range all {
			before, known := shown[i.Name]
			shown[i.Name] = i
			delete(gone, i.Name)
			if known && agentLine(before, false) == agentLine(i, false) {
				continue
			}
			if err := l.line(i, false); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(gone)) {
			delete(shown, name)
			if err := l.line(gone[name], true); err != nil {
				return err
			}
		}
		return nil
	})
}

// line prints one sandbox, which may be gone.
func (l agentList) line(i coding.Info, gone bool) error {
	switch {
	case l.asJSON && gone:
		return text.WriteJSON(os.Stdout, goneAgent{i, true})
	case l.asJSON:
		return text.WriteJSON(os.Stdout, i)
	}
	line := time.Now().Format(time.TimeOnly) + "  " + agentLine(i, gone)
	if !gone {
		line += "  " + text.Line(i.LastLine, 100)
	}
	_, err := fmt.Println(strings.TrimRight(line, " "))
	return err
}

// agentLine returns what follow compares and prints of a sandbox.
func agentLine(i coding.Info, gone bool) string {
	state := string(i.State)
	if gone {
		state = "gone"
	}
	return fmt.Sprintf("%-20s %-8s %-9s %-22s %s", text.Line(i.Name, 64), text.Line(state, 16),
		i.Attention, totalCell(i.Diff), checkCell(i.Check))
}

// errQuit ends a list when the user types q.
var errQuit = errors.New("quit")

// watch shows the list on the terminal and updates it, until q or ^C.
func (l agentList) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(os.Stdin.Fd()), before) }() // fails only if it is gone
	go func() {                                                     // ends with the program
		buf := make([]byte, 64)
		for {
			n, err := os.Stdin.Read(buf)
			switch {
			case bytes.ContainsAny(buf[:n], "qQ"), err != nil:
				cancel(errQuit)
				return
			case bytes.IndexByte(buf[:n], 3) >= 0: // ^C
				cancel(exitCode(wire.ExitInterrupt))
				return
			}
		}
	}()
	l.client.Note = func(string) {} // the list has the screen
	s := command.Sheet{To: os.Stdout}
	if err := s.Enter(); err != nil {
		return err
	}
	defer s.Leave()
	err = l.each(ctx, func(all []coding.Info) error {
		cols, rows, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil {
			return fmt.Errorf("terminal size: %w", err)
		}
		if cols != s.Cols || rows != s.Rows {
			s.Resize(cols, rows)
		}
		return s.Draw(agentLines(all, rows))
	})
	if errors.Is(err, errQuit) {
		return nil
	}
	return err
}

// agentLines returns at most height lines that show the list.
func agentLines(all []coding.Info, height int) []string {
	var table bytes.Buffer
	_ = agentTable(&table, all) // writing to memory does not fail
	lines := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	asking := 0
	for _, i := range all {
		if i.Attention == coding.AttentionWaiting || i.Attention == coding.AttentionLikely {
			asking++
		}
	}
	foot := fmt.Sprintf("%s, %d idle or waiting", plural(len(all), "agent"), asking)
	if room := max(height-1, 1); len(lines) > room {
		foot += fmt.Sprintf(", %d not shown", len(lines)-room)
		lines = lines[:room]
	}
	return append(lines, foot+"   q quits")
}
