package session

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// idleShell is a Local terminal whose shell has process ID 1, is in the foreground and prints
// nothing.
type idleShell struct {
	Local
	master *os.File
}

func (i idleShell) TTY() TTY            { return TTY{Master: i.master, SessionPID: 1} }
func (i idleShell) Front() (int, error) { return 1, nil }

// readingShell is a Prober that always finds the shell reading, and counts its calls.
type readingShell struct{ asked *atomic.Int64 }

func (r readingShell) Probe(context.Context, TTY) (Facts, error) {
	r.asked.Add(1)
	return Facts{Pid: 1, Foreground: 1, ShellIsForeground: true, Blocked: true}, nil
}

// TestEachCallerConfirms has several callers wait at an idle prompt, one after the other. Probes
// for an earlier caller do not count for the next, which needs as many as the first.
func TestEachCallerConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		master, silent, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		defer silent.Close()
		var asked atomic.Int64
		s := newSession(NewSet(Options{Prober: readingShell{&asked}}), "main", wire.Start{})
		c := &console{s: s, shell: &shell{marked: true, learned: true},
			local: idleShell{master: master}}
		c.stack.c = c
		s.mu.Lock()
		tracker, news := s.track.Restart(c.known(), s.momentLocked(c))
		s.track, c.track, s.console = tracker, tracker, c
		s.reportLocked(c, news)
		c.markedLocked(marks.Mark{Kind: marks.PromptStart})
		c.markedLocked(marks.Mark{Kind: marks.PromptEnd})
		s.mu.Unlock()

		looks := func() int64 {
			before := asked.Load()
			s.mu.Lock()
			known := s.track.Counts().Verdicts
			release := s.waiters.addLocked()
			s.mu.Unlock()
			if err := s.until(t.Context(),
				func() bool { return s.track.Counts().Verdicts > known }); err != nil {
				t.Fatal(err)
			}
			n := asked.Load() - before
			release()
			<-time.After(time.Minute) // synthetic time: the observer ends
			return n
		}
		first := looks()
		if next := looks(); next != first || first < 2 {
			t.Errorf("the first caller's answer took %d looks, the next one's %d", first, next)
		}
		s.cancel(errClosed)
		s.wg.Wait()
	})
}
