package sshd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/host/files"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// slotTime is the time for a machine to free the slot of a channel that has ended (MaxSessions in
// sshd_config(5)).
const slotTime = 3 * time.Second

// files serves SFTP with commands, on the client's own connection, for a machine that refused SFTP.
func (s *session) files(ctx context.Context, u *upstream) {
	go func() { // until the client has closed the channel
		for q := range s.channel.Requests {
			_ = q.Reply(false, nil)
		}
	}()
	record := s.client.hub().Relay.Recorder(s.client.grant.Principal, s.client.target.Sandbox)
	channel := &begun{Reader: s.input(), Writer: s.channel, Closer: s.channel,
		begin: sync.OnceFunc(s.begin)}
	if err := files.Serve(ctx, channel, u.run); err != nil {
		s.fail(wire.Errorf(wire.CodeUnavailable, "sandbox %s: %s", s.client.target.Sandbox,
			plain(err.Error())))
		return
	}
	s.exit(0)
	record(gateway.ExecEvent{Command: "subsystem " + wire.SubsystemSFTP + " by commands"})
}

// isFiles reports whether the client asks for SFTP.
func (a ask) isFiles() bool {
	return a.kind == wire.RequestSubsystem && a.arg == wire.SubsystemSFTP
}

// greeting checks the first bytes of the answer to an SFTP client, and reports if it is not SFTP.
// On machines with ForceCommand, or with start-up files that print, clients only report a message
// that is too long.
type greeting struct {
	say  func(line string)
	read []byte // the first bytes, until checked
	over bool   // checked
}

func (g *greeting) Write(p []byte) (int, error) {
	if g.over {
		return len(p), nil
	}
	g.read = append(g.read, p...)
	// SSH_FXP_VERSION: length, type, version (draft-ietf-secsh-filexfer-02, sections 3 and 4).
	if len(g.read) < 5 {
		return len(p), nil
	}
	if n := binary.BigEndian.Uint32(g.read); g.read[4] != fxpVersion || n < 5 || n > maxVersion {
		g.say("not an SFTP answer: " + text.Line(string(g.read), 100) +
			"; check for ForceCommand, and for start-up files that print")
	}
	g.over, g.read = true, nil
	return len(p), nil
}

const (
	fxpVersion = 2
	maxVersion = 64 << 10 // for the extensions of a server
)

// begun is a client's channel whose request is granted at the first read.
type begun struct {
	io.Reader
	io.Writer
	io.Closer
	begin func()
}

func (b *begun) Read(p []byte) (int, error) {
	b.begin()
	return b.Reader.Read(p)
}

// run runs a command at the sandbox, without a terminal; see files.Run.
func (u *upstream) run(ctx context.Context, command string, stdin io.Reader, stdout,
	stderr io.Writer) (int, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(slotTime); ; {
		err := connect.Run(ctx, u.conn, connect.Command{Line: command, Stdin: stdin, Stdout: stdout,
			Stderr: stderr})
		if !errors.As(err, new(*ssh.OpenChannelError)) || time.Now().After(late) {
			if exit, ok := errors.AsType[*connect.ExitError](err); ok {
				return exit.Status, nil
			}
			return 0, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
