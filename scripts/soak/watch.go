package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// watcher notes every state of every session of the sandbox. It waits on each for what must not be,
// so that the session looks at its processes all the time, as it does for any caller who waits.
type watcher struct {
	conn  *ssh.Client
	guest int // this machine's number of the sandbox's PID 1

	mu       sync.Mutex
	states   map[string]int    // guarded by mu; how many states were reported, by what they were
	wrong    []sighting        // guarded by mu
	notices  []sighting        // guarded by mu; attention likely, opaque
	commands map[string]string // guarded by mu; what a session runs, for the report
	seen     map[string]bool   // guarded by mu; sessions that are watched
}

// sighting is a state that was reported, and what ran.
type sighting struct {
	Time    time.Time  `json:"time"`
	Session string     `json:"session"`
	Command string     `json:"command"`
	State   wire.State `json:"state"`
	Facts   string     `json:"facts,omitempty"` // of /proc, a moment later
}

func newWatcher(ctx context.Context, w *world) (*watcher, error) {
	guest, err := w.guestPID(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := w.connect()
	if err != nil {
		return nil, err
	}
	return &watcher{conn: conn, guest: guest, states: make(map[string]int),
		commands: make(map[string]string), seen: make(map[string]bool)}, nil
}

// runs notes what a session is given to do.
func (v *watcher) runs(session, command string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.commands[session] = command
}

// run watches every session until ctx ends, those that appear later, too.
func (v *watcher) run(ctx context.Context) error {
	defer v.conn.Close()
	list, err := v.open(ctx, wire.Attach{}, wire.Handler{})
	if err != nil {
		return err
	}
	defer list.Close()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		reply, err := list.Request(ctx, wire.Request{Verb: wire.VerbList})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list of sessions: %w", err)
		}
		v.mu.Lock()
		for _, s := range reply.Sessions {
			if !v.seen[s.Name] && s.State.Phase != wire.PhaseDead {
				v.seen[s.Name] = true
				all.Go(func() { v.session(ctx, s.Name) })
			}
		}
		v.mu.Unlock()
		if daemon.Pause(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
}

// session watches one session to its end.
func (v *watcher) session(ctx context.Context, name string) {
	defer func() {
		v.mu.Lock()
		delete(v.seen, name)
		v.mu.Unlock()
	}()
	states := make(chan wire.State, 4096)
	stream, err := v.open(ctx, wire.Attach{Session: name, Quiet: true},
		wire.Handler{Event: func(e wire.Event) {
			if e.Kind == wire.EventState && e.State != nil {
				states <- *e.State
			}
		}})
	if err != nil {
		if ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "watching %s: %v\n", name, err)
		}
		return
	}
	defer stream.Close()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	waiting.Go(func() { // keeps the session looking; ends with the stream
		for stream.Err() == nil && ctx.Err() == nil {
			// No session of the load gets to its second prompt.
			_, _ = stream.Request(ctx, wire.Request{Verb: wire.VerbWait,
				For: []wire.Phase{wire.PhaseContinuation}, TimeoutMS: 10_000})
		}
	})
	for {
		select {
		case st := <-states:
			v.note(name, st)
		case <-stream.Done():
			return
		case <-ctx.Done():
			stream.Close()
			return
		}
	}
}

// note counts a state, and keeps it if it is one that must not be.
func (v *watcher) note(session string, st wire.State) {
	word := string(st.Phase)
	if st.Listens {
		word += ", listens"
	}
	if st.Attention == "likely" {
		word += ", attention likely"
	}
	v.mu.Lock()
	v.states[word]++
	s := sighting{Time: time.Now(), Session: session, Command: v.commands[session], State: st}
	v.mu.Unlock()
	if st.Phase != wire.PhaseWaiting {
		if st.Attention == "likely" || st.Phase == wire.PhaseOpaque {
			v.mu.Lock()
			v.notices = append(v.notices, s)
			v.mu.Unlock()
		}
		return
	}
	if st.Foreground != nil {
		s.Facts = procFacts(v.guest, st.Foreground.Pid)
	}
	text, err := json.Marshal(st)
	if err != nil {
		text = fmt.Append(nil, err)
	}
	fmt.Printf("WRONG %s session %s, which runs %q, said: %s\n%s\n", s.Time.Format(time.TimeOnly),
		session, s.Command, text, strings.TrimRight(s.Facts, "\n"))
	v.mu.Lock()
	v.wrong = append(v.wrong, s)
	v.mu.Unlock()
}

// open opens a session stream.
func (v *watcher) open(ctx context.Context, a wire.Attach, h wire.Handler) (*wire.Client, error) {
	ch, reqs, err := v.conn.OpenChannel(wire.ChannelSession, nil)
	if err != nil {
		return nil, err
	}
	go ssh.DiscardRequests(reqs) // ends with the channel
	go func() {                  // the same
		_, _ = io.Copy(io.Discard, ch.Stderr())
	}()
	ok, err := ch.SendRequest(wire.RequestSubsystem, true,
		wire.Marshal(wire.Subsystem{Name: wire.SessionSubsystem}))
	if err == nil && !ok {
		err = fmt.Errorf("subsystem %s is refused", wire.SessionSubsystem)
	}
	if err != nil {
		ch.Close()
		return nil, err
	}
	return wire.Open(ctx, ch, a, h)
}
