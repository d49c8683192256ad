package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// idlePlace is how long an unused connection is kept.
const idlePlace = 20 * time.Second

// place is the daemon's state for one sandbox and its owner: an SSH connection, the commands on it,
// and watchers. Commands end with the connection, so it is kept while one runs.
type place struct {
	places *places
	id     string // of the sandbox
	name   string

	opening chan struct{} // semaphore; its holder dials
	looks   *rate.Limiter // limits the entries that watchers read

	mu           sync.Mutex
	link         *link                // guarded by mu; nil while there is none
	visits       int                  // guarded by mu; requests under way
	left         time.Time            // guarded by mu; when the last request ended
	commands     int                  // guarded by mu; processes, including those being started
	processes    map[uint32]*process  // guarded by mu
	watchers     map[string]*watcher  // guarded by mu
	held         int                  // guarded by mu; bytes held by watchers
	streams      int                  // guarded by mu; open streams
	notebooks    map[string]*notebook // guarded by mu; contexts of the code interpreter
	lastTerminal int                  // guarded by mu; highest terminal number so far
	ended        bool                 // guarded by mu; nothing new may start
}

// link is a live connection to a sandbox.
type link struct {
	client *ssh.Client
	done   chan struct{} // closed when the connection has ended

	preparing chan struct{} // semaphore; its holder sets prepared
	// Guarded by preparing; this link with the fields below, nil until needed.
	prepared *link

	files *connect.Files
	// Closed when files has ended, as it does when its server does not answer.
	filesGone chan struct{}
	account   account // that commands run as
}

// maxVisits limits concurrent requests to one sandbox. They wait while it does not answer.
const maxVisits = 1024

// enter counts a request until leave is called.
func (pl *place) enter() (leave func(), err error) {
	return pl.count(&pl.visits, maxVisits,
		"limit of %d concurrent requests to this sandbox reached")
}

// maxStreams limits the concurrent streams of one sandbox.
const maxStreams = 512

// stream counts a stream until leave is called.
func (pl *place) stream() (leave func(), err error) {
	return pl.count(&pl.streams, maxStreams, "limit of %d streams in this sandbox reached")
}

// reserve counts a process until it has ended. It does not use process numbers, which the sandbox
// chooses.
func (pl *place) reserve() (release func(), err error) {
	return pl.count(&pl.commands, maxProcesses, "limit of %d commands in this sandbox reached")
}

// count adds one to n, which pl.mu guards, until done is called. At the limit most it returns an
// error with the format full.
func (pl *place) count(n *int, most int, full string) (done func(), err error) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if *n >= most {
		return nil, &apiError{http.StatusTooManyRequests, fmt.Sprintf(full, most)}
	}
	*n++
	return func() {
		pl.mu.Lock()
		defer pl.mu.Unlock()
		*n--
		pl.left = time.Now()
	}, nil
}

func (pl *place) unused() bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.unusedLocked() && pl.link == nil
}

func (pl *place) unusedLocked() bool {
	return pl.visits == 0 && pl.commands == 0 && len(pl.watchers) == 0 &&
		time.Since(pl.left) > idlePlace
}

// rest closes an unused connection and abandoned watchers. It reports whether the place is unused.
func (pl *place) rest() bool {
	pl.mu.Lock()
	for id, w := range pl.watchers {
		if w.forgotten() {
			delete(pl.watchers, id)
			w.end(nil)
		}
	}
	lk := pl.link
	idle := pl.unusedLocked()
	if idle {
		pl.link = nil
	}
	pl.mu.Unlock()
	if idle && lk != nil {
		lk.client.Close()
	}
	return idle
}

// close ends everything of the place. It cannot be used again.
func (pl *place) close() {
	pl.mu.Lock()
	pl.ended = true
	lk := pl.link
	pl.link = nil
	for id, w := range pl.watchers {
		delete(pl.watchers, id)
		w.end(nil)
	}
	pl.mu.Unlock()
	if lk != nil {
		lk.client.Close()
	}
}

// connection returns the live connection, or opens one.
func (v *visit) connection(ctx context.Context) (*link, error) {
	select {
	case v.opening <- struct{}{}:
		defer func() { <-v.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	v.mu.Lock()
	lk, ended := v.link, v.ended
	v.mu.Unlock()
	if ended {
		return nil, errClosed
	}
	if lk != nil {
		select {
		case <-lk.done:
		default:
			return lk, nil
		}
	}
	lk, err := v.dial(ctx)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		lk.client.Close()
		return nil, errClosed
	}
	v.link = lk
	return lk, nil
}

func (v *visit) dial(ctx context.Context) (*link, error) {
	conn, err := v.places.hub.Relay.Open(ctx, v.who, v.name, nil)
	if err != nil {
		return nil, err
	}
	lk := &link{client: conn.Client(), done: make(chan struct{}), preparing: make(chan struct{}, 1)}
	v.places.start(func() {
		_ = lk.client.Wait()
		close(lk.done)
	})
	return lk, nil
}

// How long a sandbox may take for operations that should be immediate. Then its connection is
// closed, with everything on it.
const (
	openWithin  = time.Minute      // to open a channel
	closeWithin = 10 * time.Second // to confirm the close of a channel
)

// open opens a channel for a command. It returns at the latest when ctx ends.
func (lk *link) open(ctx context.Context) (ssh.Channel, <-chan *ssh.Request, error) {
	type opened struct {
		ch       ssh.Channel
		requests <-chan *ssh.Request
		err      error
	}
	done := make(chan opened, 1)
	go func() { // ends with the connection, which the timer closes
		slow := time.AfterFunc(openWithin, func() { lk.client.Close() })
		defer slow.Stop()
		ch, requests, err := lk.client.OpenChannel(wire.ChannelSession, nil)
		done <- opened{ch, requests, err}
	}()
	select {
	case o := <-done:
		return o.ch, o.requests, o.err
	case <-ctx.Done():
	}
	go func() { // ends when the one above does
		if o := <-done; o.err == nil {
			o.ch.Close()
			ssh.DiscardRequests(o.requests)
		}
	}()
	return nil, nil, context.Cause(ctx)
}

// prepared returns the connection with files and account. Commands that need neither use
// connection, which is faster.
func (v *visit) prepared(ctx context.Context) (*link, error) {
	lk, err := v.connection(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case lk.preparing <- struct{}{}:
		defer func() { <-lk.preparing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p := lk.prepared; p != nil {
		select {
		case <-p.filesGone:
		default:
			return p, nil
		}
	}
	slow := time.AfterFunc(openWithin, func() { lk.client.Close() })
	defer slow.Stop()
	a, err := lk.whoami(ctx)
	var files *connect.Files
	if err == nil {
		files, err = connect.OpenFiles(lk.client, filesOptions...)
	}
	if err != nil {
		return nil, unreachable(v.name, err)
	}
	gone := make(chan struct{})
	v.places.start(func() { // ends with the connection at the latest
		_ = files.Wait()
		close(gone)
	})
	lk.prepared = &link{client: lk.client, done: lk.done, files: files, filesGone: gone, account: a}
	return lk.prepared, nil
}

// asUser returns prepared and the account that the request asks for.
func (v *visit) asUser(ctx context.Context) (*link, account, error) {
	lk, err := v.prepared(ctx)
	if err != nil {
		return nil, account{}, err
	}
	a, err := lk.as(v.user)
	return lk, a, err
}

// unreachable is the error of a running sandbox that failed to answer.
func unreachable(name string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: fmt.Sprintf("sandbox %s does not answer: %.200s", name, err)}
}

// whoami asks the shell of the account for its user, group and home.
func (lk *link) whoami(ctx context.Context) (account, error) {
	text, err := connect.Output(ctx, lk.client,
		`printf '%s\n%s\n' "$HOME" "$PWD"; id -u; id -g; id -un`, 8<<10)
	out := string(text)
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) < 5 {
		return account{}, fmt.Errorf("its shell does not report its user: %w",
			errors.Join(err, errors.New(strings.TrimSpace(out))))
	}
	a := account{home: lines[0], name: lines[4], own: true}
	if _, err := fmt.Sscan(lines[2]+" "+lines[3], &a.uid, &a.gid); err != nil {
		return account{}, fmt.Errorf("its account: %w", err)
	}
	if !strings.HasPrefix(a.home, "/") {
		a.home = lines[1]
	}
	return a, nil
}
