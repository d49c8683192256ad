// Package coding runs coding agents in sandboxes, each on a clone of a repository of this machine.
// [Client.Prepare] and [Launch.Start] create the sandboxes and start the programs, [Client.List]
// says what they do, [Client.Fetch] gets their commits, and [Client.Compare] and [Client.Keep]
// choose among several.
//
// The package knows no command line, asks no questions and prints nothing. Package images/agents
// describes the programs; package clone copies commits in and out.
package coding

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Session is the session in which the program of an agent runs.
const Session = "agent"

// Client works with the sandboxes of a daemon and the clones that this machine has recorded. All
// fields are required. Its methods are safe for concurrent use.
type Client struct {
	// Dial connects to the daemon, and DialSandbox to a sandbox. The Client closes what they
	// return.
	Dial        func(ctx context.Context) (*agent.Gateway, error)
	DialSandbox func(ctx context.Context, name string) (*agent.Client, error)

	// Remote returns the URL at which git(1) reaches a clone.
	Remote func(ctx context.Context, c *clone.Clone) (string, error)

	// Note receives problems that do not end a call, a line each.
	Note func(line string)

	Clones clone.Records
	Own    string // directory with the user's own descriptions of agents; it may be missing
}

func (c *Client) notef(format string, args ...any) { c.Note(fmt.Sprintf(format, args...)) }

// command runs one command of the daemon.
func (c *Client) command(ctx context.Context, words ...string) error {
	g, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer g.Close()
	_, err = g.Command(ctx, nil, words...)
	return err
}

// sandboxes returns the user's sandboxes.
func (c *Client) sandboxes(ctx context.Context) ([]agent.Sandbox, error) {
	g, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.List(ctx)
}

// Named returns the sandbox with a name. An unknown name is an error of code not_found.
func (c *Client) Named(ctx context.Context, name string) (agent.Sandbox, error) {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return agent.Sandbox{}, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return agent.Sandbox{}, &wire.Error{Code: wire.CodeNotFound,
		Message: "no sandbox " + name + " for you", Hint: "to list your sandboxes: sandboxd ls"}
}

// Existing returns those of some that exist, with their current state. Another sandbox may have the
// name of one of them by now.
func (c *Client) Existing(ctx context.Context, some []agent.Sandbox) ([]agent.Sandbox, error) {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s agent.Sandbox) bool {
		return !slices.ContainsFunc(some, func(o agent.Sandbox) bool { return o.ID == s.ID })
	}), nil
}

// Add records a clone, and adds the remote for it to its repository. After an error, neither is
// left.
func (c *Client) Add(ctx context.Context, record *clone.Clone) error {
	remote, err := c.Remote(ctx, record)
	if err != nil {
		return err
	}
	if err = record.AddRemote(ctx, remote); err == nil {
		err = c.Clones.Add(record)
	}
	if err != nil { // without a record, nothing would remove the remote
		_ = c.Clones.Remove(context.WithoutCancel(ctx), record)
	}
	return err
}

// Forget removes the records of those of all that do not exist any more.
func (c *Client) Forget(ctx context.Context, all []agent.Sandbox) {
	left, err := c.Existing(ctx, all)
	if err != nil {
		return // a later rm does it
	}
	for _, s := range all {
		if slices.ContainsFunc(left, func(l agent.Sandbox) bool { return l.ID == s.ID }) {
			continue
		}
		if r, err := c.Clones.Find(s.ID); err == nil && r != nil {
			if err := c.Clones.Remove(ctx, r); err != nil {
				c.notef("record of a clone: %v", err)
			}
		}
	}
}

// Choice returns words as text: a, b or c.
func Choice(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// caused returns why ctx has ended for an error after that, else err.
func caused(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// pollTime is how long pause waits.
const pollTime = 100 * time.Millisecond

// pause waits before something is looked at again, or returns why ctx has ended.
func pause(ctx context.Context) error {
	timer := time.NewTimer(pollTime)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
