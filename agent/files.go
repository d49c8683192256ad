package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/host/files"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// slotTime is how long a server may take to free the session of a closed channel. MaxSessions of
// sshd_config(5) limits their number.
const slotTime = 3 * time.Second

// Files opens an SFTP connection to the sandbox or host. ctx bounds the call, not the connection.
// The caller closes the connection.
//
// On a host whose SSH server has no SFTP, Files runs a shell command for each request. Bytes, modes
// and times are exact. Files cannot be appended to, and written data arrives when the file is
// closed.
func (c *Client) Files(ctx context.Context) (*sftp.Client, error) {
	f, err := c.BoundedFiles(ctx)
	if err != nil {
		return nil, err
	}
	return f.Client, nil
}

// BoundedFiles is Files for callers that do not trust the sandbox: it bounds the memory and the
// time that a reply can cost. See connect.Files.
func (c *Client) BoundedFiles(ctx context.Context) (*connect.Files, error) {
	f, err := c.files(ctx)
	return f, public(err)
}

func (c *Client) files(ctx context.Context) (*connect.Files, error) {
	ch, err := c.subsystem(ctx, wire.SubsystemSFTP)
	if errors.Is(err, errSubsystem) && c.machine != nil {
		return c.filesByCommands(ctx)
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { ch.Close() })
	client, err := connect.NewFiles(ch, sftp.UseConcurrentWrites(true))
	switch {
	case !stop():
		if err == nil {
			client.Close()
		}
		return nil, fmt.Errorf("files of %s: %w", c.name, context.Cause(ctx))
	case err != nil:
		ch.Close()
		return nil, fmt.Errorf("files of %s: %w", c.name, err)
	}
	return client, nil
}

// filesByCommands serves SFTP in this process for a host without SFTP. It runs shell commands on
// the host.
func (c *Client) filesByCommands(ctx context.Context) (*connect.Files, error) {
	ours, theirs := net.Pipe()
	life, end := context.WithCancelCause(c.life)
	served := make(chan error, 1)
	go func() { // ends with either side of the pipe, or with the client
		defer end(nil)
		served <- files.Serve(life, theirs, c.run)
		theirs.Close()
	}()
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	client, err := connect.NewFiles(ours, sftp.UseConcurrentWrites(true))
	if !stop() && err == nil {
		client.Close()
		err = context.Cause(ctx)
	}
	if err == nil {
		return client, nil
	}
	ours.Close()
	end(err)
	if why := <-served; why != nil {
		err = why
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return nil, fmt.Errorf("files of %s: %w", c.name, err)
}

// run implements files.Run. It retries while the server has no free session.
func (c *Client) run(
	ctx context.Context,
	command string,
	stdin io.Reader,
	stdout, stderr io.Writer,
) (int, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(slotTime); ; {
		exit, err := c.Exec(
			ctx,
			Cmd{Command: command, Stdin: stdin, Stdout: stdout, Stderr: stderr},
		)
		if !errors.As(err, new(*ssh.OpenChannelError)) || time.Now().After(late) {
			return exit.Code, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
