package coding

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// endNoted is how often Fetch looks whether a sandbox has ended.
const endNoted = 10

// Fetch fetches a clone of the sandbox info, of at most most bytes. A sandbox that is stopped runs
// only for the fetch.
func (c *Client) Fetch(ctx context.Context, r *clone.Clone, info agent.Sandbox,
	most int64) (*clone.Fetched, error) {
	if info.State == agent.SandboxStopped {
		if err := c.command(ctx, "start", "--json", "--", info.Name); err != nil {
			return nil, err
		}
		// After an error it runs: nothing is lost by that.
		defer func() { _ = c.command(ctx, "stop", "--json", "--", info.Name) }()
	}
	fetched, err := c.fetchNow(ctx, r, info, most)
	// It may have ended just now. The daemon notes that a moment after its connection breaks.
	for range endNoted {
		if err == nil || info.State != agent.SandboxRunning || ctx.Err() != nil {
			break
		}
		now, known := c.Named(ctx, info.Name)
		if known == nil && now.ID == info.ID && now.State == agent.SandboxStopped {
			return c.Fetch(ctx, r, now, most)
		}
		_ = pause(ctx) // the loop looks at ctx
	}
	return fetched, err
}

// fetchNow fetches a clone of a sandbox that is running.
func (c *Client) fetchNow(ctx context.Context, r *clone.Clone, info agent.Sandbox,
	most int64) (*clone.Fetched, error) {
	client, err := c.DialSandbox(ctx, info.Name)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return c.Clones.Fetch(ctx, r, client, most)
}

// fetchWithin bounds FetchRunning, for a sandbox that does not answer.
const fetchWithin = time.Minute

// FetchRunning fetches the clone of the sandbox info for at most a minute. It starts and resumes no
// sandbox. The result is nil if there is no clone of a repository of this machine, if the sandbox
// does not run, and if sandboxd rm has fetched and removed it.
func (c *Client) FetchRunning(ctx context.Context, info agent.Sandbox) (*clone.Fetched, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchWithin,
		fmt.Errorf("the fetch does not end within %v", fetchWithin))
	defer cancel()
	record, err := c.Clones.Find(info.ID)
	if err != nil || record == nil {
		return nil, err
	}
	now, err := c.Existing(ctx, []agent.Sandbox{info})
	if err != nil {
		return nil, caused(ctx, err)
	}
	if len(now) == 0 || now[0].State != agent.SandboxRunning {
		return nil, nil // another sandbox may have its name
	}
	fetched, err := c.fetchNow(ctx, record, info, clone.MaxFetch)
	if err == nil {
		return fetched, nil
	}
	if left, gone := c.Clones.Find(info.ID); gone == nil && left == nil {
		return nil, nil
	}
	return nil, caused(ctx, err)
}

// Removal is how sandboxes are about to be removed.
type Removal struct {
	Force bool   // while their programs run
	Hint  string // for errors: how to remove a sandbox, NAME, without a fetch
}

// FetchBefore fetches the clones of sandboxes that are about to be removed, and returns what it
// fetched. With Force, it ends their programs and fetches again. A clone that cannot be fetched is
// an error before any program ends.
func (c *Client) FetchBefore(ctx context.Context, o Removal,
	sandboxes []agent.Sandbox) ([]*clone.Fetched, error) {
	type cloned struct {
		info    agent.Sandbox
		record  *clone.Clone
		fetched *clone.Fetched
	}
	var all []cloned
	for _, info := range sandboxes {
		if info.State == agent.SandboxDeleting {
			continue
		}
		record, err := c.Clones.Find(info.ID)
		if err == nil && record == nil {
			continue
		}
		var fetched *clone.Fetched
		if err == nil {
			fetched, err = c.Fetch(ctx, record, info, clone.MaxFetch)
		}
		if err != nil {
			return nil, o.notFetched(info.Name, err)
		}
		all = append(all, cloned{info, record, fetched})
	}
	var done []*clone.Fetched
	for _, s := range all {
		if o.Force && s.info.State != agent.SandboxStopped {
			// Programs may go on to commit until the sandbox is removed. On a host that
			// cannot end them, they do.
			err := c.command(ctx, "rescue", "--json", "--", s.info.Name)
			if err == nil {
				if s.fetched, err = c.Fetch(ctx, s.record, s.info, clone.MaxFetch); err != nil {
					return done, o.notFetched(s.info.Name, err)
				}
			}
		}
		if len(s.fetched.Lost) > 0 {
			return done, &wire.Error{Code: wire.CodeUnavailable,
				Message: fmt.Sprintf("not saved in sandbox %s: %s", s.info.Name,
					strings.Join(s.fetched.Lost, ", ")),
				Hint: strings.ReplaceAll(o.Hint, "NAME", s.info.Name)}
		}
		done = append(done, s.fetched)
	}
	return done, nil
}

// notFetched returns the error for a sandbox that is not removed.
func (o Removal) notFetched(name string, err error) error {
	better := &wire.Error{Code: wire.CodeUnavailable,
		Message: fmt.Sprintf("commits of sandbox %s cannot be fetched: %v", name, err),
		Hint:    strings.ReplaceAll(o.Hint, "NAME", name)}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		better.Reason = e.Reason
		if e.Hint != "" {
			better.Hint = e.Hint + "; or " + better.Hint
		}
	}
	return better
}
