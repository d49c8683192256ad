package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// HookOptions say who is told when what a session needs has changed. The zero value tells nobody.
type HookOptions struct {
	Exec []string // a program and its arguments, run for each change with a Notice on its standard input; no shell is involved
	Env  []string // of that program, on top of the daemon's
	URL  string   // gets each Notice by POST

	Timeout time.Duration // of one call; 0 is 10 s
	Retry   time.Duration // pause before a POST is tried again, doubled each time; 0 is 1 s
}

// Notice is what a hook is told: what a session needs now, and what it needed before.
type Notice struct {
	Need
	Was   Needs     `json:"was"`
	Owner string    `json:"owner"`
	Time  time.Time `json:"time"`
}

const (
	hookTimeout = 10 * time.Second
	hookRetry   = time.Second
	hookTries   = 4   // of a POST
	hookLanes   = 4   // calls at once; a session's are one after the other
	hookWaiting = 256 // notices that wait in a lane
)

// HookCounts are what became of notices since the daemon started.
type HookCounts struct {
	Delivered uint64 // to each of program and URL counts
	Failed    uint64 // given up
	Dropped   uint64 // never tried: the hook was too slow
}

// hook tells the program and the URL of HookOptions. Sessions never wait for it.
type hook struct {
	hub     *Hub
	options HookOptions
	client  *http.Client
	lanes   [hookLanes]chan Notice // nil where nobody is to be told

	delivered, failed, dropped atomic.Uint64
}

func (h *hook) init(hub *Hub) {
	h.hub, h.options = hub, hub.options.Hook
	if h.options.Timeout <= 0 {
		h.options.Timeout = hookTimeout
	}
	if h.options.Retry <= 0 {
		h.options.Retry = hookRetry
	}
	if !h.wanted() {
		return
	}
	for i := range h.lanes {
		h.lanes[i] = make(chan Notice, hookWaiting)
	}
	h.client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone(), //nolint:forcetypeassert // it is one
		// A redirect would take the notice where nobody configured it to go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (h *hook) wanted() bool { return len(h.options.Exec) > 0 || h.options.URL != "" }

// HookCounts returns what became of notices so far.
func (h *Hub) HookCounts() HookCounts {
	return HookCounts{h.hook.delivered.Load(), h.hook.failed.Load(), h.hook.dropped.Load()}
}

// run follows all sessions until ctx ends. Sessions that need something when the daemon starts are told of anew.
func (h *hook) run(ctx context.Context) {
	if !h.wanted() {
		return
	}
	var lanes sync.WaitGroup
	defer h.client.CloseIdleConnections()
	defer lanes.Wait()
	for _, lane := range h.lanes {
		lanes.Go(func() {
			for {
				select {
				case n := <-lane:
					h.tell(ctx, n)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	watch := h.hub.watchNeeds("", true)
	defer watch.Close()
	was := make(map[needKey]Needs) // of sessions that need something
	for {
		changed, err := watch.Next(ctx)
		if err != nil {
			return
		}
		for _, n := range changed {
			key := needKey{n.box, n.Session}
			before := was[key]
			if before == n.Needs {
				continue
			}
			if was[key] = n.Needs; n.Needs == NeedsNothing {
				delete(was, key)
			}
			h.add(n.Target().String(), Notice{Need: n, Was: before, Owner: n.owner, Time: time.Now()})
		}
	}
}

// add puts a notice into its session's lane, or drops it where that is full.
func (h *hook) add(key string, n Notice) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(key)) // never fails
	select {
	case h.lanes[sum.Sum32()%hookLanes] <- n:
	default:
		h.hub.log.Error("hook is too slow: a notice is dropped", "session", key, "needs", n.Needs, "dropped", h.dropped.Add(1))
	}
}

// tell calls the program and the URL with one notice.
func (h *hook) tell(ctx context.Context, n Notice) {
	body, err := json.Marshal(n)
	if err == nil && len(h.options.Exec) > 0 {
		h.count(ctx, "program", n, h.exec(ctx, n, append(body, '\n')))
	}
	if err == nil && h.options.URL != "" {
		h.count(ctx, "url", n, h.post(ctx, body))
	}
	if err != nil {
		h.count(ctx, "notice", n, err)
	}
}

func (h *hook) count(ctx context.Context, to string, n Notice, err error) {
	switch {
	case err == nil:
		h.delivered.Add(1)
	case ctx.Err() == nil: // else the daemon ends
		h.hub.log.Error("hook failed", "hook", to, "session", n.Target().String(), "needs", n.Needs, "err", oneLine(err.Error(), 400), "failed", h.failed.Add(1))
	}
}

// exec runs the program with the notice. What names are made of is checked elsewhere, so the environment holds labels alone;
// text of the session is on standard input only.
func (h *hook) exec(ctx context.Context, n Notice, body []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.options.Timeout, fmt.Errorf("it ran for %v", h.options.Timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, h.options.Exec[0], h.options.Exec[1:]...)
	cmd.Stdin = bytes.NewReader(body)
	var said beginning
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = append(append(os.Environ(), h.options.Env...), "SANDBOXD_HOOK_SANDBOX="+n.Sandbox, "SANDBOXD_HOOK_SESSION="+n.Session,
		"SANDBOXD_HOOK_NEEDS="+string(n.Needs), "SANDBOXD_HOOK_WANT="+string(n.Want), "SANDBOXD_HOOK_WAS="+string(n.Was), "SANDBOXD_HOOK_OWNER="+n.Owner)
	// A group of its own: what it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it ended well, and something that it left running has its output
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err != nil && said.text != "" {
		return fmt.Errorf("%s: %w: %s", h.options.Exec[0], err, said.text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", h.options.Exec[0], err)
	}
	return nil
}

// beginning keeps the beginning of what a program says.
type beginning struct{ text string }

func (w *beginning) Write(p []byte) (int, error) {
	w.text += string(p[:min(len(p), 200-min(len(w.text), 200))])
	return len(p), nil
}

// post sends the notice, again after a failure that may pass.
func (h *hook) post(ctx context.Context, body []byte) error {
	for try, pause := 1, h.options.Retry; ; try, pause = try+1, 2*pause {
		again, err := h.postOnce(ctx, body)
		if err == nil || !again || try == hookTries {
			return err
		}
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

func (h *hook) postOnce(ctx context.Context, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.options.URL, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("post: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sandboxd")
	resp, err := h.client.Do(req)
	if err != nil {
		return true, err // it names the method and the URL
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch {
	case resp.StatusCode/100 == 2:
		return false, nil
	case resp.StatusCode/100 == 5, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout:
		again = true
	}
	return again, errors.New("post: the answer is " + resp.Status)
}
