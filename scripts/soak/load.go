package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/programs"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// loadResults is what a run of load found.
type loadResults struct {
	Minutes  float64        `json:"minutes"`
	Sessions int            `json:"sessions"`
	Commands map[string]int `json:"commands"` // how often each came to its end
	// Of those, with another exit status than 0 where that is wanted.
	Failed  map[string]int `json:"failed"`
	States  map[string]int `json:"states"`  // reported, by what they were
	Wrong   []sighting     `json:"wrong"`   // waiting, where nobody asks
	Notices []sighting     `json:"notices"` // attention likely, and opaque
	Odd     []string       `json:"odd"`     // calls that ended as they should not
}

// worker plays one lane of jobs in a session of its own.
type worker struct {
	w       *world
	watch   *watcher
	session string
	jobs    []job

	mu  *sync.Mutex
	out *loadResults // guarded by mu
}

// mixedLoad plays all lanes at once for a while, and watches every session.
func mixedLoad(ctx context.Context, w *world, o options) (any, error) {
	if err := w.setUp(ctx, "installing tools", toolSetUp); err != nil {
		return nil, err
	}
	if err := w.setUp(ctx, "making files", dirSetUp); err != nil {
		return nil, err
	}
	watch, err := newWatcher(ctx, w)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	// Not by a deadline: a call comes back before that of its ctx, with the state as it is then.
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(time.Duration(o.minutes*float64(time.Minute)), cancel).Stop()
	r := &loadResults{Commands: make(map[string]int), Failed: make(map[string]int),
		Wrong: []sighting{}, Notices: []sighting{}, Odd: []string{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	var lost error
	all.Go(func() {
		if lost = watch.run(bounded); lost != nil {
			cancel()
		}
	})
	for i, jobs := range lanes() {
		one := &worker{w: w, watch: watch, session: fmt.Sprintf("lane-%d", i), jobs: jobs, mu: &mu,
			out: r}
		r.Sessions++
		all.Go(func() { one.run(bounded) })
	}
	if o.agents {
		r.Sessions++
		all.Go(func() { agentsAtWork(bounded, w, &mu, r) })
	}
	all.Wait()
	if lost == nil {
		lost = ctx.Err()
	}
	if lost != nil {
		return nil, lost
	}
	r.Minutes = time.Since(began).Minutes()
	watch.mu.Lock()
	r.States, r.Wrong, r.Notices = watch.states, append(r.Wrong, watch.wrong...),
		append(r.Notices, watch.notices...)
	watch.mu.Unlock()
	r.print()
	if len(r.Wrong) > 0 {
		return r, fmt.Errorf("%d times: %w", len(r.Wrong), errWrong)
	}
	return r, nil
}

// run plays the jobs in a circle until ctx ends.
func (k *worker) run(ctx context.Context) {
	sh, err := k.w.client.Shell(ctx, k.session)
	if err != nil {
		k.odd(ctx, "attach to "+k.session, err)
		return
	}
	defer sh.Close()
	for i := 0; ctx.Err() == nil; i++ {
		j := k.jobs[i%len(k.jobs)]
		k.watch.runs(k.session, j.String())
		err := k.play(ctx, sh, j)
		if err != nil {
			k.odd(ctx, j.String(), err)
			// Whatever it is that runs: the next one needs the prompt.
			if _, err := sh.Interrupt(ctx); err != nil {
				k.odd(ctx, "interrupt of "+j.String(), err)
				return
			}
		}
	}
}

// jobTime bounds a job that has no time of its own: on a busy machine an installation may take
// long.
const jobTime = 10 * time.Minute

// play runs one job to its end.
func (k *worker) play(ctx context.Context, sh *agent.Shell, j job) error {
	most := j.most
	if most == 0 {
		most = jobTime
	}
	until := time.Now().Add(most)
	res, err := sh.Do(ctx, agent.Call{Command: j.command, Timeout: most})
	for err == nil && res.Ended == agent.EndedAttention && time.Now().Before(until) {
		// It is quiet and listens. It should end, or be reported as waiting after all.
		bounded, cancel := context.WithDeadline(ctx, until)
		last := res
		res, err = sh.Wait(bounded, agent.PhasePrompt, agent.PhaseWaiting, agent.PhaseDead)
		cancel()
		// The session's own word for it came too late.
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			res, err = last, nil
		}
	}
	if err != nil {
		return err
	}
	overtime := res.Ended == agent.EndedDeadline || res.Ended == agent.EndedAttention
	switch {
	case overtime && j.most > 0:
		if res, err = sh.Interrupt(ctx); err != nil {
			return err
		}
		if res.Phase != agent.PhasePrompt {
			return fmt.Errorf("after an interrupt: %s", said(res))
		}
	case res.Ended != agent.EndedDone:
		if res.Ended == agent.EndedWaiting { // the watcher reads meanwhile what makes it so
			_ = daemon.Pause(ctx, time.Second)
		}
		return fmt.Errorf("ended %s: %s", res.Ended, said(res))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.out.Commands[j.name]++
	if j.most == 0 && !j.fails && res.ExitCode != nil && *res.ExitCode != 0 {
		if k.out.Failed[j.name]++; k.out.Failed[j.name] == 1 {
			fmt.Fprintf(os.Stderr, "%s: exit %d: %s\n", j, *res.ExitCode,
				res.Output[max(0, len(res.Output)-300):])
		}
	}
	return nil
}

// odd notes a call that did not end as it should, unless it is that the time is up.
func (k *worker) odd(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	line := fmt.Sprintf("%s: %s: %v", k.session, what, err)
	fmt.Fprintln(os.Stderr, line)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.out.Odd = append(k.out.Odd, line)
}

// agentsAtWork plays the cases in which agent programs answer and think, again and again. They are
// at rest in between: that is attention, and never waiting.
func agentsAtWork(ctx context.Context, w *world, mu *sync.Mutex, r *loadResults) {
	cases := slices.DeleteFunc(programs.Cases(), func(c conformance.Case) bool {
		return !strings.HasSuffix(c.Name, "-answering") && !strings.HasSuffix(c.Name, "-thinking")
	})
	for ctx.Err() == nil {
		_, err := conformance.All(ctx, cases,
			conformance.Options{Client: w.client, Slow: 5, Report: func(out conformance.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				r.Commands[out.Case]++
				if !out.Pass && ctx.Err() == nil {
					r.Odd = append(r.Odd, out.Case+": "+out.Reason)
				}
			}})
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			mu.Lock()
			r.Odd = append(r.Odd, "agent programs: "+err.Error())
			mu.Unlock()
			return
		}
	}
}

func (r *loadResults) print() {
	commands, told := 0, 0
	for _, n := range r.Commands {
		commands += n
	}
	for _, n := range r.States {
		told += n
	}
	fmt.Printf("%.1f minutes, %d sessions, %d commands of %d kinds, %d states reported\n\n",
		r.Minutes,
		r.Sessions, commands, len(r.Commands), told)
	list := func(title string, counts map[string]int) {
		fmt.Printf("%s: ", title)
		var parts []string
		for name, n := range counts {
			parts = append(parts, fmt.Sprintf("%s %d", name, n))
		}
		slices.Sort(parts)
		fmt.Println(strings.Join(parts, "; "))
	}
	list("commands", r.Commands)
	if len(r.Failed) > 0 {
		list("of these failed", r.Failed)
	}
	list("states", r.States)
	by := make(map[string]int)
	for _, s := range r.Notices {
		command, _, _ := strings.Cut(s.Command, " (")
		if s.State.Phase == wire.PhaseOpaque {
			command += " (opaque)"
		}
		by[command]++
	}
	list("attention, and opaque", by)
	for _, line := range r.Odd {
		fmt.Println("odd:", line)
	}
	fmt.Printf("waiting, where nobody asks: %d\n", len(r.Wrong))
}
