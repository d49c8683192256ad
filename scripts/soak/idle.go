package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// idleSessions is how many sessions are idle at once.
const idleSessions = 10

// idleRow is the processor time of one way to be idle, in percent of a core.
type idleRow struct {
	What       string  `json:"what"`
	Sessions   int     `json:"sessions"`
	Guest      float64 `json:"guest_percent"`
	Daemon     float64 `json:"daemon_percent"`
	PerSession float64 `json:"per_session_percent"` // both, for each
	Seconds    float64 `json:"seconds"`
}

// idle measures what sessions in which nothing happens cost.
func idle(ctx context.Context, w *world, o options) (any, error) {
	guest, err := w.guestPID(ctx)
	if err != nil {
		return nil, err
	}
	var rows []idleRow
	measure := func(what string, sessions int) error {
		if err := daemon.Pause(ctx, 3*time.Second); err != nil { // until what led here is over
			return err
		}
		row, err := measureIdle(ctx, guest, w.daemon.Pid(), o.idle)
		if err != nil {
			return err
		}
		row.What, row.Sessions = what, sessions
		if sessions > 0 {
			row.PerSession = (row.Guest + row.Daemon) / float64(sessions)
		}
		rows = append(rows, row)
		return nil
	}
	if err := measure("no session", 0); err != nil {
		return nil, err
	}
	var shells []*agent.Shell
	for i := range idleSessions {
		sh, err := w.client.Shell(ctx, fmt.Sprintf("idle-%d", i))
		if err != nil {
			return nil, err
		}
		defer sh.Close()
		if res, err := sh.Run(ctx, "true"); err != nil || res.Ended != agent.EndedDone {
			return nil, fmt.Errorf("true ended %s: %w", res.Ended, err)
		}
		shells = append(shells, sh)
	}
	// waiters run f for each shell, measure, and end it.
	waiters := func(what string, f func(context.Context, *agent.Shell)) error {
		waiting, cancel := context.WithCancel(ctx)
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		for _, sh := range shells {
			all.Go(func() { f(waiting, sh) })
		}
		return measure(what, len(shells))
	}
	each := func(command string) error {
		for _, sh := range shells {
			if _, err := sh.Do(ctx, agent.Call{Command: command,
				Timeout: time.Second}); err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
		}
		return nil
	}
	stop := func() error {
		for _, sh := range shells {
			if _, err := sh.Interrupt(ctx); err != nil {
				return fmt.Errorf("interrupt: %w", err)
			}
		}
		return nil
	}
	dead := func(ctx context.Context, sh *agent.Shell) {
		ctx, cancel := context.WithTimeout(ctx, o.idle+time.Minute)
		defer cancel()
		_, _ = sh.Wait(ctx, agent.PhaseDead) // it does not end; ctx ends the wait
	}
	if err := measure("at the prompt, nobody waits", len(shells)); err != nil {
		return nil, err
	}
	if err := waiters("at the prompt, a caller waits", dead); err != nil {
		return nil, err
	}
	if err := each("cat"); err != nil {
		return nil, err
	}
	if err := waiters("a program waits for input, a caller waits", dead); err != nil {
		return nil, err
	}
	if err := stop(); err != nil {
		return nil, err
	}
	if err := each("sleep 100000"); err != nil {
		return nil, err
	}
	if err := measure("a program sleeps, nobody waits", len(shells)); err != nil {
		return nil, err
	}
	if err := waiters("a program sleeps, a caller waits", dead); err != nil {
		return nil, err
	}
	if err := stop(); err != nil {
		return nil, err
	}
	fmt.Printf("%d sessions, %.0f s each; %% of a core\n\n", idleSessions, o.idle.Seconds())
	fmt.Printf("%-45s %8s %8s %12s\n", "", "guest", "daemon", "per session")
	for _, r := range rows {
		fmt.Printf("%-45s %8.3f %8.3f %12.4f\n", r.What, r.Guest, r.Daemon, r.PerSession)
	}
	return rows, nil
}

func measureIdle(ctx context.Context, guest, served int, d time.Duration) (idleRow, error) {
	var before, after [2]float64
	read := func(into *[2]float64) (err error) {
		for i, pid := range []int{guest, served} {
			if into[i], err = processorTime(pid); err != nil {
				return err
			}
		}
		return nil
	}
	began := time.Now()
	if err := read(&before); err != nil {
		return idleRow{}, err
	}
	if err := daemon.Pause(ctx, d); err != nil {
		return idleRow{}, err
	}
	if err := read(&after); err != nil {
		return idleRow{}, err
	}
	took := time.Since(began).Seconds()
	return idleRow{Guest: (after[0] - before[0]) / took * 100,
		Daemon: (after[1] - before[1]) / took * 100, Seconds: took}, nil
}

// processorTime is what a process has used, in seconds (proc_pid_stat(5): utime and stime, in
// hundredths).
func processorTime(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name before may have blanks, and our two have no parenthesis.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return float64(ticks) / 100, nil
}
