package track

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// errReplayed is the error of a look that had one, which traces do not keep.
var errReplayed = errors.New("processes could not be inspected")

// Step is the state after an observation of a trace.
type Step struct {
	Observation *Observation
	At          time.Time
	End         uint64     // end of the log, as far as the trace tells
	State       wire.State // as last reported
	// Asks reports whether a program wants input, as [Tracker.Asks].
	Asks bool
}

// Replay makes new trackers observe a trace, and calls f after each observation. An observation
// that stands for several equal ones is repeated, at even intervals. An error means that the trace
// is not one of [Tracker.Trace].
func Replay(trace Trace, f func(Step)) error {
	_, err := replayed(trace, f)
	return err
}

// Since returns the part of a trace from a time on. It begins with the state of the trackers at
// that time.
func Since(trace Trace, from time.Time) (Trace, error) {
	all, i := trace.Observations, 0
	for i < len(all) && (all[i].At == 0 || all[i].At < from.UnixMicro()) {
		i++
	}
	before := trace
	before.Observations = all[:i]
	r := newReplay(before)
	if err := r.run(before, func(Step) {}); err != nil || i == 0 {
		return trace, err
	}
	part := Trace{State: trace.State, Observations: all[i:]}
	base := newRing(time.UnixMicro(from.UnixMicro()))
	for _, n := range slices.Sorted(maps.Keys(r.all)) {
		if t := r.all[n]; t != r.front {
			part.Seeds = append(part.Seeds, seedOf(t, base))
		}
	}
	part.Seeds = append(part.Seeds, seedOf(r.front, base))
	return part, nil
}

// replayed replays a trace and returns the last tracker in front.
func replayed(trace Trace, f func(Step)) (*Tracker, error) {
	r := newReplay(trace)
	err := r.run(trace, f)
	return r.front, err
}

func newReplay(trace Trace) *replay {
	r := &replay{all: make(map[int]*Tracker)}
	for i := range trace.Seeds {
		s := &trace.Seeds[i]
		r.front = s.tracker()
		r.all[s.Number] = r.front
		if s.ByLine {
			r.front.opt.Prompt = r.prompts
		}
	}
	return r
}

func (r *replay) run(trace Trace, f func(Step)) error {
	for i := range trace.Observations {
		if err := r.repeat(&trace.Observations[i], f); err != nil {
			return fmt.Errorf("observation %d: %s: %w", i+1, trace.Observations[i].Do, err)
		}
	}
	return nil
}

// maxRepeats is the maximal number of equal looks in one observation of a trace.
const maxRepeats = 1 << 20

// repeat makes an observation as often as it was made.
func (r *replay) repeat(o *Observation, f func(Step)) error {
	n := int64(o.More)
	if o.Do == KindOutput && n > 1 { // only the first and the last count
		if t := r.all[int(o.Tracker)]; t != nil {
			t.reads += uint64(n) - 1
		}
		n = 1
	}
	if n > maxRepeats {
		return errTooMany
	}
	for i := range n + 1 {
		at := o.At
		if i > 0 {
			at += (o.To - o.At) / n * i
		}
		if i > 0 && i == n {
			at = o.To
		}
		r.again = i > 0
		m := Moment{Time: timeOf(at), End: o.End, Held: o.held()}
		if err := r.observe(o, m); err != nil {
			return err
		}
		r.end = max(r.end, o.End)
		f(Step{o, m.Time, r.end, r.front.state, Asks(r.front.state)})
	}
	return nil
}

// replay is a running Replay.
type replay struct {
	all   map[int]*Tracker
	front *Tracker
	end   uint64
	again bool // the observation is repeated
	shows bool // what Options.Prompt returns
}

func (r *replay) prompts(string) bool { return r.shows }

var (
	errNoTracker = errors.New("the trace has no such tracker")
	errLacks     = errors.New("a field is missing")
	errTooMany   = errors.New("too many repetitions")
)

// observe makes one observation.
func (r *replay) observe(o *Observation, at Moment) error {
	with := o.With
	if with == nil {
		with = new(With)
	}
	if o.Do == KindRestart {
		return r.restart(int(o.Tracker), with, at)
	}
	t := r.all[int(o.Tracker)]
	if t == nil {
		return errNoTracker
	}
	switch o.Do {
	case KindLeave:
		outer := r.all[with.Other]
		if outer == nil {
			return errNoTracker
		}
		t.Leave(outer, with.Exit, with.Why, at)
		r.front = outer
	case KindKnow:
		t.Know(with.Image)
	case KindOutput:
		t.Printed(at.Time)
	case KindWrites:
		t.Writes()
	case KindExpects:
		t.Typed()
	case KindReader:
		if with.Reader == nil {
			return errLacks
		}
		t.Was(*with.Reader)
	case KindWrote:
		t.Wrote(at.Time)
	case KindInput:
		data := "x"
		if with.Ends {
			data = "\r"
		}
		t.Input([]byte(data), with.Calls, at)
	case KindKey:
		t.Key()
	case KindMark:
		if with.Mark == nil || with.Front == nil {
			return errLacks
		}
		m := with.Mark
		t.Mark(marks.Mark{Kind: m.Kind, Exit: m.Exit, Run: m.Run, Number: m.Number}, *with.Front,
			at)
	case KindTick:
		if with.Front == nil {
			return errLacks
		}
		t.Tick(with.Busy, *with.Front, at)
	case KindGive:
		if with.Command == nil {
			return errLacks
		}
		t.Give(with.Command.command(), with.Basis, at)
	case KindForge:
		t.Forge()
	case KindErased:
		t.Erased()
	case KindLook:
		if o.Look == nil {
			return errLacks
		}
		r.shows = o.Look.Prompts
		l := o.Look.look()
		l.Anew = l.Anew && !r.again
		t.Look(l, at)
	case KindExit:
		t.Exit(with.Exit, with.Signal, "", at)
	case KindClose:
		t.Close("", at)
	default:
		return r.command(t, o)
	}
	return nil
}

// command makes an observation of the command that t was given.
func (r *replay) command(t *Tracker, o *Observation) error {
	switch o.Do {
	case KindTypes, KindWithdraw, KindStart:
	default:
		return errors.New("unknown kind of observation")
	}
	cmd := t.command
	if cmd == nil {
		return nil
	}
	switch o.Do {
	case KindTypes:
		t.Types(cmd)
	case KindWithdraw:
		t.Withdraw(cmd)
	case KindStart:
		t.Start(cmd, o.End)
	}
	return nil
}

// restart makes the tracker number.
func (r *replay) restart(number int, with *With, at Moment) error {
	if with.Options == nil {
		return errLacks
	}
	before := r.all[with.Other]
	if before == nil {
		if with.Other != 0 {
			return errNoTracker
		}
		before = newTracker(at.Time) // the first of the session
	}
	opt := *with.Options
	if with.ByLine {
		opt.Prompt = r.prompts
	}
	t, _ := before.Restart(opt, at)
	t.number = number
	r.all[number], r.front = t, t
	return nil
}
