package python

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Call is code to run, with its options.
type Call struct {
	Code    string
	Timeout time.Duration // 0 means Options.Timeout; Answer restarts it
	NoInput bool          // input() raises StdinNotImplementedError
	Silent  bool          // no execution count and no value

	// Output, if not nil, receives all output in order as it arrives, without Limits. It is not
	// called after the call has returned. Output that arrives while the code waits for input is
	// passed, within Limits, when Answer continues the code. It must not block for long, because
	// the context waits for it.
	Output func(Output)

	// Passing passes output only to Output: Result.Outputs is empty, and Dropped and Omitted count
	// what Output did not receive.
	Passing bool
}

// maxCode bounds code, in bytes.
const maxCode = 8 << 20

// unanswered is how long code waits for input before it is interrupted.
const unanswered = 15 * time.Minute

// grace is how long code may run after an interrupt. On a busy machine, the first traceback of a
// kernel takes seconds; a kernel that ends before it loses its variables.
const grace = 15 * time.Second

// Execute runs code and waits until it ends, asks for input, or reaches the timeout. At the timeout
// it interrupts the code; if the code does not end, it restarts the kernel. The Result has the
// output in any case. A dead kernel is a Result with EndedDead. The next call then has a new kernel
// and sets Fresh.
//
// If ctx ends first, Execute does the same as at the timeout, and returns the cause of ctx with the
// Result.
func (c *Context) Execute(ctx context.Context, call Call) (Result, error) {
	switch {
	case len(call.Code) > maxCode:
		return Result{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "the code is longer than 8 MiB",
			Hint:    "write it to a file, and import or run the file",
		}
	case strings.ContainsRune(call.Code, 0):
		return Result{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "the code has a NUL byte, which Python does not accept",
		}
	case call.Timeout < 0:
		return Result{}, &agent.Error{
			Code:    agent.CodeUsage,
			Message: "python: the timeout is negative",
		}
	}
	r := newRun(call.Output, c.in.o.Limits, c.in.room)
	r.passing = call.Passing
	r.timeout = call.Timeout
	if r.timeout == 0 {
		r.timeout = c.in.o.Timeout
	}
	c.mu.Lock()
	if old := c.run; old != nil && !old.finished() {
		c.mu.Unlock()
		return Result{}, c.busy(old)
	}
	c.run = r
	c.mu.Unlock()
	l, err := c.connected(ctx)
	if err != nil {
		c.detach(r)
		return Result{}, err
	}
	c.mu.Lock()
	r.fresh, c.lost = c.lost, false
	c.mu.Unlock()
	r.listen() // before the first output
	// With stop_on_error, the kernel would reject the next call right after an exception.
	content := map[string]any{
		"code":             call.Code,
		"silent":           call.Silent,
		"store_history":    !call.Silent,
		"user_expressions": struct{}{},
		"allow_stdin":      !call.NoInput,
		"stop_on_error":    false,
	}
	r.send(ctx, l, r.id, "execute_request", "shell", content)
	return c.follow(ctx, r)
}

// Answer sends a line, without a newline, to the code that waits for input, and returns as Execute
// does. If no code waits, the error has code not_waiting.
func (c *Context) Answer(ctx context.Context, line string) (Result, error) {
	c.mu.Lock()
	r, l := c.run, c.link
	c.mu.Unlock()
	if r == nil || l == nil || !r.take() {
		return Result{}, &agent.Error{
			Code:    agent.CodeNotWaiting,
			Message: "context " + c.name + " does not wait for input",
		}
	}
	r.listen()
	r.send(
		ctx,
		l,
		wire.NewOp(),
		"input_reply",
		"stdin",
		map[string]string{"value": line, "status": "ok"},
	)
	return c.follow(ctx, r)
}

// send sends a message of r within r's timeout, because a server may not read.
func (r *run) send(ctx context.Context, l *link, id, kind, channel string, content any) {
	sending, cancel := context.WithTimeout(ctx, min(r.timeout, patience))
	defer cancel()
	if err := l.send(sending, id, kind, channel, content); err != nil && ctx.Err() == nil {
		r.die("the connection to the kernel ended")
	}
}

// follow waits until r ends or asks for input.
func (c *Context) follow(ctx context.Context, r *run) (Result, error) {
	defer r.mute()
	late := time.NewTimer(r.timeout)
	defer late.Stop()
	watched, unwatch := context.WithCancel(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		c.watch(watched, r)
	}()
	defer func() { unwatch(); <-looked }()
	var ended agent.Ended
	var err error
	select {
	case <-r.over:
	case <-r.asked:
		if c.settle(ctx, r); r.finished() {
			break // it ended meanwhile
		}
		r.waitFor(unanswered, func() { // code that receives no answer
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			_ = c.Interrupt(ctx) // on an error, the server's own limit remains
		})
		res := c.result(r)
		res.Ended = agent.EndedWaiting
		return res, nil
	case <-late.C:
		ended = agent.EndedDeadline
	case <-ctx.Done():
		ended, err = agent.EndedInterrupted, context.Cause(ctx)
	}
	restarted := false
	if ended != "" {
		restarted = c.stop(context.WithoutCancel(ctx), r)
	}
	c.detach(r)
	res := c.result(r)
	if ended != "" {
		res.Ended, res.OK, res.Restart = ended, false, restarted || res.Ended == agent.EndedDead
	} else if res.Ended == agent.EndedInterrupted {
		err = context.Cause(ctx) // the code ended as soon as the caller had gone
	}
	return res, err
}

// settle waits until the output before a question has arrived. Questions use another channel than
// output and may overtake it. While code waits, the kernel replies on its control channel, and its
// status follows the earlier output. The wait is bounded for kernels that do not reply.
func (c *Context) settle(ctx context.Context, r *run) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	f := &fence{id: wire.NewOp(), passed: make(chan struct{})}
	c.mu.Lock()
	l := c.link
	c.fence = f
	c.mu.Unlock()
	if l == nil || l.send(ctx, f.id, "kernel_info_request", "control", struct{}{}) != nil {
		return
	}
	select {
	case <-f.passed:
	case <-r.over:
	case <-ctx.Done():
	}
}

// fence is a request whose last message follows all earlier output of the kernel.
type fence struct {
	id     string
	passed chan struct{}
}

// watch polls the kernel's state while its connection is quiet: the server does not report on it
// that another client ended the kernel.
func (c *Context) watch(ctx context.Context, r *run) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.over:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		quiet := time.Since(c.heard)
		c.mu.Unlock()
		if quiet <= 2*time.Second {
			continue
		}
		// A broken connection ends the call elsewhere.
		if state, err := c.state(passive(ctx)); errors.Is(err, errGone) || state == dead {
			c.part(r, "the kernel was ended", false)
			return
		}
	}
}

// stop interrupts code, or else restarts its kernel. It reports whether it restarted the kernel.
func (c *Context) stop(ctx context.Context, r *run) (restarted bool) {
	ctx, cancel := context.WithTimeout(ctx, grace+within)
	defer cancel()
	_ = c.Interrupt(ctx) // on an error, the kernel is restarted
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-r.over:
		return false
	case <-r.asked: // it caught the interrupt and asks for input
	case <-late.C:
	}
	_ = c.Restart(ctx) // on an error, the next call finds the state of the kernel
	c.mu.Lock()
	c.lost = true
	c.mu.Unlock()
	return true
}

// result returns the result of r so far.
func (c *Context) result(r *run) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := Result{
		Context: c.name,
		Ended:   agent.EndedDone,
		Outputs: r.kept.outputs(),
		Fresh:   r.fresh,
		Count:   r.count,
		Omitted: r.kept.omitted,
		Dropped: r.kept.dropped,
		Millis:  millis(r.began),
	}
	for _, o := range res.Outputs {
		if o.Type == Failure {
			res.Error = &Exception{Name: o.Name, Value: o.Value, Traceback: o.Traceback}
		}
	}
	switch {
	case r.dead:
		res.Ended, res.Why = agent.EndedDead, r.why
	case r.asking:
		res.Prompt, res.Password = r.prompt, r.password
	default:
		res.OK = r.status == "ok"
		if r.status == "aborted" || res.Error != nil && res.Error.Name == "KeyboardInterrupt" {
			res.Ended = agent.EndedInterrupted
		}
	}
	return res
}

// run is one call, from its request to its end.
type run struct {
	id      string
	timeout time.Duration
	began   time.Time
	fresh   bool
	output  func(Output)  // may be nil
	passing bool          // Call.Passing
	over    chan struct{} // closed at the end
	asked   chan struct{} // holds a value when input is wanted

	telling sync.Mutex // held while output is called; before mu

	mu       sync.Mutex
	kept     collector   // guarded by mu
	untold   collector   // guarded by mu; output that arrived while output could not be called
	listens  bool        // guarded by mu
	replied  bool        // guarded by mu
	idle     bool        // guarded by mu
	status   string      // guarded by mu
	count    int         // guarded by mu
	asking   bool        // guarded by mu
	prompt   string      // guarded by mu
	password bool        // guarded by mu
	dead     bool        // guarded by mu
	why      string      // guarded by mu
	closed   bool        // guarded by mu; over is closed
	late     *time.Timer // guarded by mu; timeout of a question; nil before the first
}

func newRun(output func(Output), limits Limits, of *room) *run {
	kept := collector{limits: limits, room: place{of: of}}
	return &run{
		id:     wire.NewOp(),
		began:  time.Now(),
		output: output,
		kept:   kept,
		untold: kept,
		over:   make(chan struct{}),
		asked:  make(chan struct{}, 1),
	}
}

func (r *run) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

func (r *run) asks() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asking && !r.closed
}

// take claims the question, and reports whether there was one.
func (r *run) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.asking && !r.closed
	r.asking = false
	if was && r.late != nil {
		r.late.Stop()
	}
	return was
}

// waitFor calls late in a new goroutine after d, unless the question is answered before.
func (r *run) waitFor(d time.Duration, late func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking && !r.closed {
		r.late = time.AfterFunc(d, late)
	}
}

// listen starts calls of output, first with pending output.
func (r *run) listen() {
	r.telling.Lock()
	defer r.telling.Unlock()
	r.mu.Lock()
	missed := r.untold.outputs()
	r.untold.room.leave()
	r.untold = collector{limits: r.untold.limits, room: r.untold.room}
	r.listens = true
	r.mu.Unlock()
	for _, o := range missed {
		r.output(o)
	}
}

// mute stops calls of output. It returns when none runs.
func (r *run) mute() {
	r.telling.Lock()
	defer r.telling.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listens = false
}

func (r *run) print(o Output) {
	r.telling.Lock()
	defer r.telling.Unlock()
	r.mu.Lock()
	if !r.passing && !r.closed {
		r.kept.add(o)
	}
	tell := r.output != nil && r.listens && !r.closed
	if r.output != nil && !r.listens && !r.closed {
		r.untold.add(o)
	}
	r.mu.Unlock()
	if tell {
		r.output(o)
	}
}

// drop counts a dropped message.
func (r *run) drop(size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept.omitted += size
	r.kept.dropped++
}

// lacksStatus reports whether the reply has arrived, and the status idle has not.
func (r *run) lacksStatus() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replied && !r.idle && !r.closed
}

func (r *run) die(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.dead, r.why = true, why
		r.endLocked()
	}
}

func (r *run) endLocked() {
	if !r.closed {
		r.closed = true
		r.kept.room.leave() // the Result belongs to the caller
		r.untold.room.leave()
		if r.late != nil {
			r.late.Stop()
		}
		close(r.over)
	}
}

const maxPrompt = 4 << 10

// handle handles messages other than output. The call ends after the reply and the status idle, in
// either order, because they use different channels.
func (r *run) handle(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m.Header.Type {
	case "execute_reply", "kernel_info_reply":
		var c struct {
			Status string
			Count  int `json:"execution_count"`
		}
		if m.Channel != "shell" || json.Unmarshal(m.Content, &c) != nil {
			return
		}
		r.replied, r.status, r.count = true, c.Status, c.Count
	case "status":
		var c struct {
			State string `json:"execution_state"`
		}
		r.idle = r.idle || json.Unmarshal(m.Content, &c) == nil && c.State == "idle"
	case "input_request":
		var c struct {
			Prompt   string
			Password bool
		}
		if m.Channel != "stdin" || json.Unmarshal(m.Content, &c) != nil || r.asking {
			return
		}
		r.asking, r.prompt, r.password = true, strings.ToValidUTF8(
			c.Prompt[:min(len(c.Prompt), maxPrompt)],
			"",
		), c.Password
		select {
		case r.asked <- struct{}{}:
		default:
		}
	}
	if r.replied && r.idle {
		r.endLocked()
	}
}
