package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Kind is the kind of a server that Dial connects to.
type Kind string

const (
	KindGateway Kind = "gateway" // a sandboxd daemon; the user name of the URI is a sandbox
	KindHost    Kind = "host"    // any other SSH server; the user name of the URI is an account
)

// Tiers of a host, best first: how much is known about its terminals. docs/how-to/hosts.md explains
// them.
const (
	// TierGuest means that the guest binary runs on the host: sessions outlive the connection, and
	// processes are inspected.
	TierGuest = "guest"
	// TierMarks means that sessions run in this process and end with the connection. The shell
	// reports its prompt and exit codes.
	TierMarks = "marks"
	// TierScreen means that sessions run in this process and end with the connection. Only the
	// screen is known.
	TierScreen = "screen"
)

// HostOptions configure a host, which is a machine with an SSH server other than a gateway. The
// zero value uses the best tier that the host allows, and logs in as ssh does.
type HostOptions struct {
	// Tier is the best tier to use. Empty means any. With TierGuest, Dial fails if the host does
	// not allow that tier.
	Tier string

	// Prompt is a regular expression that matches the prompt at the end of a line. It is used on
	// tier screen. Empty means a word and one of $ # % > ❯ ».
	Prompt string

	// Accept is the fingerprint (SHA256:…) of a host key to accept although no known_hosts file has
	// it. A changed host key is rejected in any case.
	Accept string

	// Password returns the password of an account, on the host or on a jump host. It is called if
	// no key was accepted and the server allows passwords. It may ask a person; ctx is that of the
	// call that connects. The Client keeps an accepted password in memory for further connections,
	// and does not retry a rejected one. nil means no password.
	Password func(ctx context.Context, user, host string) (string, error)

	// Guest returns the path of the guest binary for an architecture (amd64, arm64). Its error says
	// why there is none; the host then has tier marks. nil looks for sandboxd-guest-linux-ARCH next
	// to this program and next to the sandboxd in $PATH, and then uses that sandboxd itself if it
	// is static.
	Guest func(arch string) (string, error)
}

// Tier returns the tier of a host, and why it has no better one. Both are empty for a sandbox.
func (c *Client) Tier() (tier, why string) {
	if c.machine == nil {
		return "", ""
	}
	return c.machine.tier, c.machine.why
}

// Remove ends all sessions of this library on the host with their programs, removes the files that
// it copied there, and closes the client. Sessions of a daemon on the same host are not affected.
// Remove is an error for a sandbox.
func (c *Client) Remove(ctx context.Context) error {
	if c.machine == nil {
		return &Error{
			Code:    CodeUnavailable,
			Message: c.name + " is a sandbox, not a host",
			Hint:    "remove a sandbox with sandboxd rm",
		}
	}
	return public(errors.Join(c.machine.remove(ctx), c.Close()))
}

// reasonLink is State.Reason of a session that ended with the connection to its host.
const reasonLink = "link"

// linkLost returns the error of a call whose session ended with the connection, nil for all others.
func (s *Shell) linkLost(ended wire.Ended) error {
	if ended != wire.Dead {
		return nil
	}
	if m := s.client.machine; m != nil && m.tier != TierGuest && s.client.life.Err() != nil {
		return context.Cause(s.client.life) // the session ended with the client
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkLostLocked()
}

// linkLostLocked returns the error of a session that ended with the connection, nil for all others.
func (s *Shell) linkLostLocked() error {
	if s.client.machine == nil || s.state.Phase != wire.PhaseDead || s.state.Reason != reasonLink {
		return nil
	}
	return &Error{
		Code: CodeLost,
		Message: fmt.Sprintf(
			"session %s of %s ended with the connection",
			s.attached.Session,
			s.client.name,
		),
		Hint: "the next Run reconnects and starts a new shell; only on tier guest, sessions " +
			"outlive the connection",
	}
}

// dialError is an Error and its cause.
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
