package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sandboxd/sandboxd/agent"
)

// goal is within how many milliseconds of the question its caller is to have waiting, 99 times of
// 100.
const goal = 3

// asked is what became of one program's questions.
type asked struct {
	Program  string         `json:"program"`
	Listens  bool           `json:"listens"`
	Reported map[string]int `json:"reported"` // the word with which calls ended at a question
	Sample   sample         `json:"latency"`
	Wrong    []string       `json:"wrong,omitempty"`
	waited   []float64      // latencies of those reported as waiting
	noticed  []float64      // and as attention
}

type askResults struct {
	Programs []*asked `json:"programs"`
	Waits    sample   `json:"waits"`    // reported as waiting
	Late     sample   `json:"late"`     // of programs that wait untimed, reported as attention
	Listens  sample   `json:"listens"`  // of programs that listen
	Wrong    int      `json:"wrong"`    // questions, answers and ends that were not as they must be
	GoalMS   float64  `json:"goal_ms"`  // of the 99th percentile of waits
	Reached  bool     `json:"reached"`  //
	Seconds  float64  `json:"duration"` //
}

// asks plays all programs in turns, so that what disturbs the machine disturbs all, until each has
// its share of the questions.
func asks(ctx context.Context, w *world, o options) (any, error) {
	want, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	var chosen []program
	shares := 0 // in fifths
	for _, p := range askers {
		if want.MatchString(p.name) {
			chosen = append(chosen, p)
			shares += p.share()
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no program is called %q", o.only)
	}
	if err := installAskers(ctx, w, chosen); err != nil {
		return nil, err
	}
	sh, err := w.client.Shell(ctx, "asks")
	if err != nil {
		return nil, err
	}
	defer sh.Close()
	began := time.Now()
	a := &asker{sh: sh}
	counts := make([]*asked, len(chosen))
	for i, p := range chosen {
		counts[i] = &asked{Program: p.name, Listens: p.listens, Reported: make(map[string]int)}
	}
	for more := true; more; {
		more = false
		for i, p := range chosen {
			got := counts[i]
			if got.count()*shares >= o.asks*p.share() || len(got.Wrong) >= 5 {
				continue
			}
			more = true
			a.got = got
			if err := a.visit(ctx, p); err != nil {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				got.Wrong = append(got.Wrong, err.Error())
				fmt.Fprintf(os.Stderr, "%s: %v\n", p.name, err)
				if err := a.recover(ctx, w); err != nil {
					return nil, err
				}
			}
		}
	}
	r := &askResults{Programs: counts, GoalMS: goal, Seconds: time.Since(began).Seconds()}
	r.sum()
	r.print()
	if r.Wrong > 0 {
		return r, fmt.Errorf("%d of the visits: %w", r.Wrong, errWrong)
	}
	return r, nil
}

func (a *asked) count() int { return len(a.waited) + len(a.noticed) }

// sum fills in what follows from the values.
func (r *askResults) sum() {
	var waits, late, listens []float64
	for _, p := range r.Programs {
		p.Sample = summarize(slices.Concat(p.waited, p.noticed))
		r.Wrong += len(p.Wrong)
		waits = append(waits, p.waited...)
		if p.Listens {
			listens = append(listens, p.noticed...)
		} else {
			late = append(late, p.noticed...)
		}
	}
	r.Waits, r.Late, r.Listens = summarize(waits), summarize(late), summarize(listens)
	r.Reached = r.Waits.P99 <= r.GoalMS && r.Late.N == 0
}

func (r *askResults) print() {
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "PROGRAM\tASKED\tWAITING\tATTENTION\tMEDIAN\tP95\tP99\tMAX ms\tWRONG\t")
	line := func(name string, waiting, attention int, s sample, wrong int) {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t\n", name, s.N, waiting,
			attention, s.Median, s.P95, s.P99, s.Max, wrong)
	}
	for _, p := range r.Programs {
		line(p.Program, len(p.waited), len(p.noticed), p.Sample, len(p.Wrong))
	}
	line("all that were reported as waiting", r.Waits.N, 0, r.Waits, r.Wrong)
	line("waits untimed, reported as attention", 0, r.Late.N, r.Late, 0)
	line("listens, reported as attention", 0, r.Listens.N, r.Listens, 0)
	_ = t.Flush() // to a terminal or a log
	verdict := "reached"
	if !r.Reached {
		verdict = "MISSED"
	}
	fmt.Printf(
		"\n%d questions in %.0f s; goal: waiting within %.0f ms of the question 99 times of 100: "+
			"%s\n", r.Waits.N+r.Late.N+r.Listens.N, r.Seconds, r.GoalMS, verdict)
}

// share is a program's share of the questions, in fifths of an ordinary one's.
func (p program) share() int {
	if p.slow {
		return 1
	}
	return 5
}

// asker plays programs in one shell.
type asker struct {
	sh  *agent.Shell
	got *asked
	n   int // of the question
}

// callTime bounds one call.
const callTime = 60 * time.Second

// visit starts a program, answers its questions and sees it end.
func (a *asker) visit(ctx context.Context, p program) error {
	a.n++
	for _, s := range p.open {
		if err := a.play(ctx, s, 0); err != nil {
			return err
		}
	}
	for k := range p.times {
		a.n++
		if err := a.play(ctx, p.again, k+1); err != nil {
			return err
		}
	}
	for _, s := range p.end {
		if err := a.play(ctx, s, p.times); err != nil {
			return err
		}
	}
	return nil
}

// play makes one call. A question is timed as its caller sees it: from its bytes, on the shell's
// own stream, to the Result.
func (a *asker) play(ctx context.Context, s step, k int) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	printed := make(chan time.Time, 1)
	question := fill(s.question, a.n, k)
	if question != "" {
		go func() { // ends with the question, or with ctx
			defer close(printed)
			if _, err := a.sh.Expect(ctx, agent.Text(question)); err == nil {
				printed <- time.Now()
			}
		}()
	}
	call := agent.Call{Command: fill(s.run, a.n, k), Text: fill(s.typed, a.n, k), Keys: s.keys}
	res, err := a.sh.Do(ctx, call)
	at := time.Now()
	what := call.Command + call.Text + strings.Join(call.Keys, " ")
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case question == "" && !s.silent && res.Ended != agent.EndedDone,
		(question != "" || s.silent) && res.Ended != agent.EndedWaiting &&
			res.Ended != agent.EndedAttention:
		return fmt.Errorf("%s: ended %s: %s", what, res.Ended, said(res))
	case !strings.Contains(res.Output, fill(s.has, a.n, k)):
		return fmt.Errorf("%s: its output lacks %q: %s", what, fill(s.has, a.n, k), said(res))
	case question == "":
		return nil
	}
	asked, ok := <-printed
	if !ok {
		return fmt.Errorf("%s: %q was not printed: %s", what, question, said(res))
	}
	a.got.Reported[string(res.Ended)]++
	late := float64(at.Sub(asked).Microseconds()) / 1000
	if res.Ended == agent.EndedWaiting {
		a.got.waited = append(a.got.waited, late)
	} else {
		a.got.noticed = append(a.got.noticed, late)
	}
	return nil
}

// recover brings the shell back to its prompt.
func (a *asker) recover(ctx context.Context, w *world) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, err := a.sh.Interrupt(ctx); err != nil {
		return err
	}
	a.sh.Close()
	sh, err := w.client.Attach(ctx, agent.ShellOptions{Session: "new", Fresh: true})
	if err != nil {
		return err
	}
	a.sh = sh
	return nil
}

// said is what matters of a Result.
func said(res agent.Result) string {
	s := fmt.Sprintf("phase %s, want %q, prompt %q, listens %t, attention %s, basis %v", res.Phase,
		res.Want, res.Prompt, res.Listens, res.Attention, res.Basis)
	if res.Foreground != nil {
		s += fmt.Sprintf(", %q", res.Foreground.Argv)
	}
	if res.Error != nil {
		s += ", " + res.Error.Message
	}
	return s + fmt.Sprintf(", output %q", res.Output[max(0, len(res.Output)-300):])
}
