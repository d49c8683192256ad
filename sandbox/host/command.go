package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// closeTimeout is how long a machine may take to close a channel that this side closed.
	closeTimeout = 10 * time.Second
	// hangUpTime is how long a command that has printed everything may take to end.
	hangUpTime = time.Second
)

// errExec: the machine runs no commands. A ForceCommand looks different: it runs another command.
var errExec = errors.New("runs no commands")

// channel is a session channel with a command or a subsystem on it.
type channel struct {
	*sshconn.Channel
	conn    *connect.Conn
	closing sync.Once
	heard   chan struct{} // closed when all of the standard error has been read
	ended   chan struct{} // closed after that, when the machine has closed the channel, too

	mu     sync.Mutex
	stderr bytes.Buffer // guarded by mu; only its beginning
}

// open opens a session channel and makes one request on it that starts a program. ctx bounds the
// opening.
func open(ctx context.Context, conn *connect.Conn, request string, payload []byte) (*channel,
	error) {
	c, err := openType(ctx, conn, wire.ChannelSession, nil)
	if err != nil {
		return nil, err
	}
	ok, err := c.Request(ctx, request, payload)
	if err == nil && !ok {
		err = errExec
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openSocket opens a channel to a socket on the machine.
func openSocket(ctx context.Context, conn *connect.Conn, path string) (*channel, error) {
	return openType(ctx, conn, wire.ChannelDirectUnix, wire.Marshal(wire.DirectUnix{Path: path}))
}

func openType(ctx context.Context, conn *connect.Conn, kind string, extra []byte) (*channel,
	error) {
	ch, err := conn.Open(ctx, kind, extra)
	if err != nil {
		return nil, err
	}
	c := &channel{Channel: ch, conn: conn, heard: make(chan struct{}), ended: make(chan struct{})}
	go func() { // ends with the channel
		ch.Drain()
		<-c.heard
		close(c.ended)
	}()
	go func() { // ends with the channel; unread stderr would stall it
		_, _ = io.Copy(c, ch.Stderr())
		close(c.heard)
	}()
	return c, nil
}

// started opens a channel with a command on it. Start-up files of the account may replace the shell
// that runs it with another, which then reads its input; so the command is also sent as input.
func started(ctx context.Context, conn *connect.Conn, command string) (*channel, error) {
	c, err := open(ctx, conn, wire.RequestExec, wire.Marshal(wire.Exec{Command: command}))
	if err != nil {
		return nil, err
	}
	// A command that has already ended may have printed why.
	if err := c.send(ctx, []byte(command+"\n")); err != nil && !errors.Is(err, io.EOF) {
		c.Close()
		return nil, err
	}
	return c, nil
}

// send writes p. A machine may never accept it, so ctx bounds it.
func (c *channel) send(ctx context.Context, p []byte) error {
	return c.within(ctx, func() error {
		_, err := c.Channel.Write(p)
		return err
	})
}

// Write receives the standard error of the command.
func (c *channel) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := min(len(p), 2048-c.stderr.Len()); n > 0 {
		c.stderr.Write(p[:n])
	}
	return len(p), nil
}

// said returns the standard error of the command, in one line.
func (c *channel) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(strings.Fields(c.stderr.String()), " ")
}

// hangUp ends the input of a command that has printed everything, and waits a moment for its end.
// If a channel is closed before its command has ended, Dropbear reports that end on the next
// channel, and closes it.
func (c *channel) hangUp() {
	_ = c.CloseWrite()
	late := time.NewTimer(hangUpTime)
	defer late.Stop()
	select {
	case <-c.ended:
	case <-late.C:
	}
}

// Close closes the channel and returns immediately. If the machine does not confirm in time, Close
// ends the connection.
func (c *channel) Close() error {
	c.closing.Do(func() {
		_ = c.Channel.Close() // an error means that it is closed already
		go func() {           // ends with the channel, or ends the connection
			late := time.NewTimer(closeTimeout)
			defer late.Stop()
			select {
			case <-c.ended:
			case <-late.C:
				c.conn.Close()
			}
		}()
	})
	return nil
}

// until reads the machine's output until one of two lines. After the second, it returns the text
// that follows as the error.
func (c *channel) until(ready, failed string) error {
	var got []byte
	for b := make([]byte, 1); len(got) < maxNoise; {
		if _, err := io.ReadFull(c.Channel, b); err != nil {
			return fmt.Errorf("ended: %s", c.why(got))
		}
		got = append(got, b[0])
		switch {
		case bytes.HasSuffix(got, []byte(ready)):
			return nil
		case b[0] == '\n' && failed != "":
			if at := bytes.LastIndex(got, []byte(failed)); at >= 0 && at+len(failed) < len(got) {
				return errors.New(strings.TrimSpace(string(got[at+len(failed):])))
			}
		}
	}
	return fmt.Errorf("printed %d bytes of other output", maxNoise)
}

// read reads the machine's output up to a line.
func (c *channel) read(end string, limit int) ([]byte, error) {
	got := make([]byte, 0, 4096)
	for !bytes.HasSuffix(got, []byte(end)) {
		if len(got) >= limit {
			return got, fmt.Errorf("printed %d bytes of other output", maxNoise)
		}
		n, err := io.ReadFull(c.Channel, got[len(got):len(got)+1])
		got = got[:len(got)+n]
		if err != nil {
			return got, err
		}
		if len(got) == cap(got) {
			got = append(got, 0)[:len(got)]
		}
	}
	return got, nil
}

// why returns the last output of a failed command, from either stream.
func (c *channel) why(got []byte) string {
	select {
	case <-c.ended:
	case <-time.After(time.Second):
	}
	text := c.said()
	if text == "" {
		text = strings.Join(strings.Fields(string(got[max(0, len(got)-300):])), " ")
	}
	if text == "" {
		text = "no output"
	}
	return text
}

// within runs f, which blocks on c, and closes c if ctx ends first. Then f may continue for a
// while: the caller uses the results of f only if the error is nil.
func (c *channel) within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with the channel
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		c.Close()
		return context.Cause(ctx)
	}
}

// quote quotes a word for any shell: sh, csh and fish agree on single quotes around harmless
// characters.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
