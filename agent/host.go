package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Kind is what answers where Dial connects to.
type Kind string

const (
	KindGateway Kind = "gateway" // a daemon; the URI's user names a sandbox
	KindHost    Kind = "host"    // any other SSH server; the URI's user is an account there
)

// How well the state of a host's terminals is known, best first; docs/how-to/hosts.md explains the tiers.
const (
	TierGuest  = "guest"  // the guest was copied there: sessions outlive the connection, and processes are looked at
	TierMarks  = "marks"  // sessions are in this process and end with the connection; the shell tells its prompt and exit codes
	TierScreen = "screen" // the same, and what is on the screen is all that is known
)

// HostOptions say how to use a host, a machine that answers SSH and is no gateway. The zero value takes the best tier that it
// allows, and logs in as ssh would.
type HostOptions struct {
	// Tier is the best tier to use. Empty means any; TierGuest makes it an error not to have that.
	Tier string

	// Prompt is a regular expression of the prompt, matched at the end of the line, for tier screen. Empty means a word and
	// one of $ # % > ❯ ».
	Prompt string

	// Accept is the fingerprint (SHA256:…) of a host key to accept although no known_hosts file has it. One that has changed
	// is refused in any case.
	Accept string

	// Password returns the password of an account. It is asked when no key got in and the server takes one, and may ask a
	// person; ctx is that of the call which connects. What got in is kept, in memory, for further connections of the Client;
	// what was refused is not tried again. nil means that there is none. It is asked for the accounts on jump hosts, too, each by
	// its own name and address.
	Password func(ctx context.Context, user, host string) (string, error)

	// Guest returns the path of the guest binary for an architecture (amd64, arm64); an error says why there is none, and
	// leaves the host at tier marks. nil looks for sandboxd-guest-linux-ARCH beside this program and
	// beside sandboxd in $PATH, and takes that sandboxd itself where it is static.
	Guest func(arch string) (string, error)
}

// Tier says how well the state of a host's terminals is known, and in a sentence why no better. Both are empty through a
// gateway: sandboxd describe tells there.
func (c *Client) Tier() (tier, why string) {
	if c.machine == nil {
		return "", ""
	}
	return c.machine.tier, c.machine.why
}

// Remove ends all sessions that this library has on the host, with what runs in them, removes what it copied there, and
// closes the client. Sessions that a daemon has there are not touched. It is an error through a gateway.
func (c *Client) Remove(ctx context.Context) error {
	if c.machine == nil {
		return &Error{Code: CodeUnavailable, Message: c.name + " is behind a gateway", Hint: "the gateway removes sandboxes: sandboxd rm"}
	}
	return public(errors.Join(c.machine.remove(ctx), c.Close()))
}

// reasonLink is State.Reason of a session that ended with the connection to its machine.
const reasonLink = "link"

// linkLost is the error of a call whose session ended with the connection, nil for all others.
func (s *Shell) linkLost(ended wire.Ended) error {
	if ended != wire.Dead {
		return nil
	}
	if m := s.client.machine; m != nil && m.tier != TierGuest && s.client.life.Err() != nil {
		return context.Cause(s.client.life) // it ended with the client
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkLostLocked()
}

// linkLostLocked says that the session ended with the connection, if that is its state.
func (s *Shell) linkLostLocked() error {
	if s.client.machine == nil || s.state.Phase != wire.PhaseDead || s.state.Reason != reasonLink {
		return nil
	}
	return &Error{Code: CodeLost, Message: fmt.Sprintf("session %s of %s ended with the connection", s.attached.Session, s.client.name),
		Hint: "the next Run connects again and starts a new shell; on tier guest sessions outlive the connection"}
}

// dialError is an Error with what it is made of.
type dialError struct {
	what  Error
	cause error
}

func (e *dialError) Error() string {
	if e.what.Hint == "" {
		return e.what.Message
	}
	return e.what.Message + "; " + e.what.Hint
}
func (e *dialError) Unwrap() []error { return []error{&e.what, e.cause} }

func because(cause error, code Code, message, hint string) error {
	return &dialError{Error{Code: code, Message: message, Hint: hint}, cause}
}
