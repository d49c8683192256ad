package attention

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// HookOptions say what is called when a session's attention state changes. The zero value calls
// nothing.
type HookOptions struct {
	// Program and arguments, run for each change with a Notice on standard input; not run through a
	// shell.
	Exec []string
	Env  []string // added to the daemon's environment
	// URL receives a POST for each change, in Format; empty is FormatJSON.
	URL    string
	Format string
	Secret string // signs each POST; nothing is posted with one that CheckSecret rejects

	Timeout time.Duration // of one call; 0 is 10 s
	Retry   time.Duration // pause before a POST is repeated, doubled each time; 0 is 1 s
}

// Notice is what a hook receives: what a session needs now, and what it needed before.
type Notice struct {
	Need
	Was   Kind      `json:"was"`
	Owner string    `json:"owner"`
	Time  time.Time `json:"time"`

	message bool // for people only: the need is not new, but the person who was there has left
}

const (
	hookTimeout = 10 * time.Second
	hookRetry   = time.Second
	hookTries   = 4   // of a POST
	hookLanes   = 4   // concurrent calls; those of one session run one after the other
	hookWaiting = 256 // notices that wait in a lane
)

// HookCounts are the outcomes of calls since the hook was made.
type HookCounts struct {
	Delivered uint64 // a notice counts once for the program and once for the URL
	Failed    uint64 // given up
	Dropped   uint64 // not tried: the hook was too slow
}

// Hook calls the program and the URL of HookOptions. It never delays a session.
type Hook struct {
	board   *Board
	log     *slog.Logger
	options HookOptions
	client  *http.Client
	key     []byte                 // of the signatures; nil: none
	lanes   [hookLanes]chan Notice // nil if nothing is called

	mu    sync.Mutex
	shown map[string]string // guarded by mu; by session: the ID of the message that people have

	delivered, failed, dropped atomic.Uint64
}

// NewHook returns a hook that follows the sessions of board once Run is called.
func NewHook(o HookOptions, board *Board, log *slog.Logger) *Hook {
	if o.Timeout <= 0 {
		o.Timeout = hookTimeout
	}
	if o.Retry <= 0 {
		o.Retry = hookRetry
	}
	h := &Hook{board: board, log: log, options: o, shown: make(map[string]string)}
	h.key, _ = CheckSecret(o.Secret) // post fails without it
	if !h.wanted() {
		return h
	}
	for i := range h.lanes {
		h.lanes[i] = make(chan Notice, hookWaiting)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	// A redirect could send the notice to a place that is not configured.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	h.client = &http.Client{Transport: transport, CheckRedirect: stay}
	return h
}

func (h *Hook) wanted() bool { return len(h.options.Exec) > 0 || h.options.URL != "" }

// Counts returns the outcomes so far.
func (h *Hook) Counts() HookCounts {
	return HookCounts{h.delivered.Load(), h.failed.Load(), h.dropped.Load()}
}

// reported is what was last said of a session.
type reported struct {
	needs   Kind
	watched bool // a person was attached, so people got no message
}

// next returns the notice of n, if it is due.
func (t *reported) next(n Need) (notice Notice, ok bool) {
	before, same := t.needs, t.needs == n.Needs
	if same && (n.Watched || !t.watched) {
		return Notice{}, false
	}
	t.needs, t.watched = n.Needs, n.Watched && n.Needs != None
	return Notice{Need: n, Was: before, Owner: n.owner, Time: time.Now(), message: same}, true
}

// Run follows all sessions until ctx or the board ends. It reports anew the sessions that need
// something at the start.
func (h *Hook) Run(ctx context.Context) {
	if !h.wanted() {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var lanes sync.WaitGroup
	defer h.client.CloseIdleConnections()
	defer lanes.Wait()
	defer cancel()
	for _, lane := range h.lanes {
		lanes.Go(func() {
			for {
				select {
				case n := <-lane:
					h.call(ctx, n)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	watch := h.board.Watch("")
	defer watch.Close()
	was := make(map[key]reported) // of sessions that need something
	for {
		changed, err := watch.Next(ctx)
		if err != nil {
			return
		}
		for _, n := range changed {
			k := key{n.id, n.Session}
			last := was[k]
			if notice, ok := last.next(n); ok {
				h.add(n.Target().String(), notice)
			}
			if was[k] = last; n.Needs == None {
				delete(was, k)
			}
		}
	}
}

// add puts a notice into its session's lane, or drops it if that is full.
func (h *Hook) add(session string, n Notice) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(session)) // never fails
	select {
	case h.lanes[sum.Sum32()%hookLanes] <- n:
	default:
		h.log.Error("hook is too slow: a notice is dropped", "session", session, "needs", n.Needs,
			"dropped", h.dropped.Add(1))
	}
}

// call calls the program and the URL with one notice.
func (h *Hook) call(ctx context.Context, n Notice) {
	body, err := json.Marshal(n)
	if err != nil {
		h.count(ctx, "notice", n, err)
		return
	}
	if len(h.options.Exec) > 0 && !n.message {
		h.count(ctx, "program", n, h.exec(ctx, n, append(body, '\n')))
	}
	if err := h.withdraw(ctx, n.Target().String()); err != nil {
		h.log.Debug("hook: a message stays", "session", n.Target().String(),
			"err", text.Line(err.Error(), 400))
	}
	each := h.options.Format == "" || h.options.Format == FormatJSON
	if h.options.URL != "" && (each && !n.message || !each && !silent(n)) {
		h.count(ctx, "url", n, h.post(ctx, n, body))
	}
}

func (h *Hook) count(ctx context.Context, to string, n Notice, err error) {
	switch {
	case err == nil:
		h.delivered.Add(1)
	case ctx.Err() == nil: // else the daemon is ending
		h.log.Error("hook failed", "hook", to, "session", n.Target().String(), "needs", n.Needs,
			"err", text.Line(err.Error(), 400), "failed", h.failed.Add(1))
	}
}

// exec runs the program with the notice. The environment contains only checked names; text of the
// session is only on standard input.
func (h *Hook) exec(ctx context.Context, n Notice, body []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.options.Timeout,
		fmt.Errorf("it ran longer than %v", h.options.Timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, h.options.Exec[0], h.options.Exec[1:]...)
	cmd.Stdin = bytes.NewReader(body)
	printed := text.Head{Limit: 200} // of its output, for the error
	cmd.Stdout, cmd.Stderr = &printed, &printed
	cmd.Env = append(append(os.Environ(), h.options.Env...), "SANDBOXD_HOOK_SANDBOX="+n.Sandbox,
		"SANDBOXD_HOOK_SESSION="+n.Session,
		"SANDBOXD_HOOK_NEEDS="+string(n.Needs), "SANDBOXD_HOOK_WANT="+string(n.Want),
		"SANDBOXD_HOOK_WAS="+string(n.Was),
		"SANDBOXD_HOOK_OWNER="+n.Owner)
	signals.EndTogether(cmd, syscall.SIGKILL)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it ended well; a process that it left running holds its output
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err != nil && len(printed.Bytes()) > 0 {
		return fmt.Errorf("%s: %w: %s", h.options.Exec[0], err, printed.String())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", h.options.Exec[0], err)
	}
	return nil
}
