package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/track/corpus"
)

// recorder writes labelled cases of real programs.
type recorder struct {
	w *world

	mu      sync.Mutex
	out     io.Writer                  // guarded by mu
	figures map[string]*corpus.Figures // guarded by mu; by program
	odd     []string                   // guarded by mu
}

// attentionResults is what a recording found. The labels come from the programs' scripts.
type attentionResults struct {
	Cases       int      `json:"cases"`
	Transitions int      `json:"transitions"`
	Precision   float64  `json:"precision"`
	Recall      float64  `json:"recall"`
	Odd         []string `json:"odd"` // visits that did not go as planned, and were not recorded
}

// attention records cases of programs that ask, of work, of full-screen programs and of coding
// agents.
func attention(ctx context.Context, w *world, o options) (any, error) {
	if o.out == "" {
		return nil, errors.New("attention: name the file with -out")
	}
	want, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	f, err := os.Create(o.out + ".new") // a run that fails leaves the file as it was
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	z, _ := gzip.NewWriterLevel(f, gzip.BestCompression) // the level is valid
	rec := &recorder{w: w, out: z, figures: make(map[string]*corpus.Figures)}
	for _, part := range []struct {
		name   string
		record func(context.Context, *regexp.Regexp, options) error
	}{{"questions", rec.questions}, {"jobs", rec.jobs}, {"screens", rec.screens},
		{"agents", rec.agents}} {
		if !strings.Contains(o.parts, part.name) {
			continue
		}
		if err := part.record(ctx, want, o); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if o.only != "." || o.parts != allParts {
		if err := rec.keep(o.out); err != nil {
			return nil, fmt.Errorf("the cases so far: %w", err)
		}
	}
	if err := errors.Join(z.Close(), f.Close(), os.Rename(f.Name(), o.out)); err != nil {
		return nil, err
	}
	rec.print()
	var all corpus.Figures
	r := &attentionResults{Odd: rec.odd}
	for _, f := range rec.figures {
		all.Merge(f)
	}
	r.Cases, r.Transitions = all.Cases, all.Transitions()
	r.Precision, r.Recall = all.Precision(), all.Recall()
	return r, nil
}

// allParts are the parts of a whole recording.
const allParts = "questions,jobs,screens,agents"

// keep copies the cases of programs that were not recorded from the corpus as it is.
func (r *recorder) keep(name string) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return corpus.Read(f, func(c *corpus.Case) error {
		if r.figures[c.Program] != nil {
			return nil
		}
		return c.Write(r.out)
	})
}

// print prints the figures of all programs.
func (r *recorder) print() {
	fmt.Print(corpus.Table(r.figures))
	for _, line := range r.odd {
		fmt.Println("odd:", line)
	}
}

// scene is one program in a session of its own, while it is recorded.
type scene struct {
	r       *recorder
	sh      *agent.Shell
	program string
	class   corpus.Class
	labels  []corpus.Label
	whole   *corpus.Case // what was fetched so far
	upTo    time.Time    // end of that
}

// begin starts a session.
func (r *recorder) begin(ctx context.Context, program string, class corpus.Class) (*scene, error) {
	sh, err := r.w.client.Attach(ctx, agent.ShellOptions{Session: "new", Fresh: true})
	if err != nil {
		return nil, err
	}
	s := &scene{r: r, sh: sh, program: program, class: class}
	s.is(corpus.Working)
	return s, nil
}

// is notes what is right from now on.
func (s *scene) is(v corpus.Verdict) {
	s.labels = append(s.labels, corpus.Label{Is: v, At: time.Now().UnixMicro()})
}

// sends notes what is right as soon as the terminal gets the input that is sent now.
func (s *scene) sends(v corpus.Verdict) {
	s.labels = append(s.labels, corpus.Label{Is: v, At: time.Now().UnixMicro(), Input: true})
}

// asks notes that a person is needed since output reached an offset.
func (s *scene) asks(end uint64) {
	s.labels = append(s.labels, corpus.Label{Is: corpus.NeedsPerson, End: end})
}

// fetch adds what the session observed since the last time. It must be called often enough: the
// session keeps only its last observations.
func (s *scene) fetch(ctx context.Context) error {
	now := time.Now()
	text, err := s.sh.Trace(ctx)
	if err != nil {
		return err
	}
	c, err := corpus.New(text)
	if err != nil {
		return err
	}
	if s.whole == nil {
		s.whole = c
	} else if err := s.whole.Extend(c, s.upTo); err != nil {
		return err
	}
	s.upTo = now
	return nil
}

// end ends the session. The case is written if the visit went as planned.
func (s *scene) end(ctx context.Context, err error) error {
	if err == nil {
		err = s.fetch(ctx)
	}
	ended := s.sh.End(context.WithoutCancel(ctx))
	s.sh.Close()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if err != nil {
		line := s.program + ": " + err.Error()
		fmt.Fprintln(os.Stderr, line)
		s.r.odd = append(s.r.odd, line)
		return nil
	}
	c := s.whole
	c.Program, c.Class, c.Labels = s.program, s.class, s.labels
	c.Is = s.labels[len(s.labels)-1].Is
	all, err := c.Judge()
	if err != nil {
		return err
	}
	f := s.r.figures[s.program]
	if f == nil {
		f = new(corpus.Figures)
		s.r.figures[s.program] = f
	}
	f.Add(all)
	for _, t := range all {
		if t.Wrong > 0 || !t.Found {
			label, _ := json.Marshal(t)
			fmt.Fprintf(os.Stderr, "%s: wrong: %s\n", s.program, label)
		}
	}
	if says, err := c.Replay(); err != nil || says != c.Said {
		fmt.Fprintf(os.Stderr, "%s: the replay says %s, the session said %s: %v\n", s.program, says,
			c.Said, err)
	}
	return errors.Join(c.Write(s.r.out), ended)
}

// questions records programs that ask, in turns.
func (r *recorder) questions(ctx context.Context, want *regexp.Regexp, o options) error {
	chosen := slices.DeleteFunc(slices.Concat(askers, moreAskers),
		func(p program) bool { return !want.MatchString(p.name) })
	if len(chosen) == 0 {
		return nil
	}
	if err := installAskers(ctx, r.w, chosen); err != nil {
		return err
	}
	n := 0 // of the question
	for asked := 0; asked < o.asks; {
		for i, p := range chosen {
			if p.slow && asked > o.asks/2 && i%2 == 0 {
				continue
			}
			if p.name != "git add -p" { // it ends with its last question
				p.times = min(p.times, 6)
			}
			class := corpus.Blocks
			if p.listens {
				class = corpus.Listens
			}
			s, err := r.begin(ctx, p.name, class)
			if err != nil {
				return err
			}
			err = s.visit(ctx, p, &n, &asked)
			if err := s.end(ctx, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// visit plays a program, as asker.visit, but by what it prints and not by what sandboxd says.
func (s *scene) visit(ctx context.Context, p program, n, asked *int) error {
	*n++
	steps := p.open[:len(p.open):len(p.open)]
	for range p.times {
		steps = append(steps, p.again)
	}
	steps = append(steps, p.end...)
	for i, step := range steps {
		k := min(max(i-len(p.open)+1, 0), p.times)
		if k > 0 && i < len(steps)-len(p.end) {
			*n++
		}
		if err := s.play(ctx, step, *n, k); err != nil {
			return err
		}
		if step.question != "" || step.silent {
			*asked++
		}
	}
	return nil
}

// graceTime is how long a call may take to notice a question that is on the terminal. Then it is
// answered all the same.
const graceTime = 2500 * time.Millisecond

// play makes one call. It continues when the program's question is printed and the call has
// returned, or after graceTime.
func (s *scene) play(ctx context.Context, step step, n, k int) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	call := agent.Call{Command: fill(step.run, n, k), Text: fill(step.typed, n, k), Keys: step.keys}
	if step.silent {
		s.sends("") // when it asks is not on the terminal
	} else {
		s.sends(corpus.Working)
	}
	calling, stop := context.WithCancel(ctx)
	defer stop()
	returned := make(chan error, 1)
	go func() { // ends with calling
		_, err := s.sh.Do(calling, call)
		returned <- err
	}()
	what := call.Command + call.Text + strings.Join(call.Keys, " ")
	if question := fill(step.question, n, k); question != "" {
		m, err := s.sh.Expect(ctx, agent.Text(question))
		if err != nil {
			return fmt.Errorf("%s: %q was not printed: %w", what, question, err)
		}
		s.asks(m.To)
	} else if step.silent {
		// By then it runs.
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		s.is(corpus.NeedsPerson)
	} else {
		err := <-returned // the prompt of the shell, by its mark
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
		return err
	}
	select {
	case err := <-returned:
		return err
	case <-time.After(graceTime):
		stop()
		<-returned //nolint:errcheck // the call was ended here
		return nil
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pieceTime is how often the trace of a job is fetched, so that all of it is recorded.
const pieceTime = 1500 * time.Millisecond

// jobs records programs that work and ask nothing.
func (r *recorder) jobs(ctx context.Context, want *regexp.Regexp, _ options) error {
	if err := r.w.setUp(ctx, "installing tools", toolSetUp); err != nil {
		return err
	}
	if err := r.w.setUp(ctx, "making files", dirSetUp); err != nil {
		return err
	}
	for _, lane := range lanes() {
		for _, j := range lane {
			if !want.MatchString(j.name) || j.name == "read -t" { // that asks
				continue
			}
			class := corpus.Blocks
			if j.listens {
				class = corpus.Listens
			}
			s, err := r.begin(ctx, j.name, class)
			if err != nil {
				return err
			}
			if err := s.end(ctx, s.work(ctx, j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// longest bounds a job of the corpus.
const longest = 20 * time.Second

// work plays a job until it ends, or for a while. A call waits for it all the time.
func (s *scene) work(ctx context.Context, j job) error {
	most := longest
	if j.most > 0 {
		most = min(most, j.most)
	}
	calling, stop := context.WithTimeout(ctx, most+callTime)
	defer stop()
	returned := make(chan error, 1)
	go func() { // ends with calling
		until := time.Now().Add(most)
		res, err := s.sh.Do(calling, agent.Call{Command: j.command, Timeout: most})
		for err == nil && res.Ended == agent.EndedAttention && time.Now().Before(until) {
			bounded, cancel := context.WithDeadline(calling, until)
			res, err = s.sh.Wait(bounded, agent.PhasePrompt, agent.PhaseWaiting, agent.PhaseDead)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && calling.Err() == nil {
				err = nil
			}
		}
		returned <- err
	}()
	for {
		select {
		case err := <-returned:
			return err
		case <-time.After(pieceTime):
			if err := s.fetch(ctx); err != nil {
				return err
			}
		}
	}
}
