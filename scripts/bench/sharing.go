package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// sharedSession is the session that rows about watchers share.
const sharedSession = "shared"

// shared makes a benchmark of one that works in the shared session.
func shared(f func(context.Context, *bench, *agent.Shell) ([]row, error)) func(context.Context,
	*bench) ([]row, error) {
	return func(ctx context.Context, b *bench) ([]row, error) {
		sh, err := b.client.Shell(ctx, sharedSession)
		if err != nil {
			return nil, err
		}
		defer sh.Close()
		return f(ctx, b, sh)
	}
}

// join opens a person's terminal in the session that the connection's user names.
func join(c *ssh.Client) (*ssh.Session, io.Reader, error) {
	s, err := c.NewSession()
	if err != nil {
		return nil, nil, err
	}
	out, err := s.StdoutPipe()
	if err == nil {
		_, err = s.StdinPipe() // else theirs is empty, and they leave at once
	}
	if err == nil {
		err = s.RequestPty("xterm-256color", 24, 80, ssh.TerminalModes{})
	}
	if err == nil {
		err = s.Shell()
	}
	if err != nil {
		s.Close()
		return nil, nil, fmt.Errorf("join: %w", err)
	}
	return s, out, nil
}

// readUntil reads until all of the texts have come, in whatever pieces; there are no blanks in
// them, which may come as movements. If they do not it ends by closing c.
func readUntil(c io.Closer, out io.Reader, texts ...string) error {
	defer time.AfterFunc(20*time.Second, func() { c.Close() }).Stop()
	var all []byte
	for buf := make([]byte, 64<<10); ; {
		n, err := out.Read(buf)
		all = append(all, buf[:n]...)
		if !slices.ContainsFunc(texts, func(t string) bool {
			return !bytes.Contains(all, []byte(t))
		}) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for %q after %q: %w", texts, all[max(0, len(all)-200):], err)
		}
	}
}

// joinTime: on a live connection, from asking for the terminal to its first whole frame.
func joinTime(ctx context.Context, b *bench, sh *agent.Shell) ([]row, error) {
	if _, err := sh.Run(
		ctx,
		`clear; for i in $(seq 40); do echo "line-$i-of-what-was-there-before"; done; echo the"-last-"line`); err != nil {
		return nil, err
	}
	c, err := b.connect(b.daemon.SSH, "bench~"+sharedSession)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	samples, err := times(ctx, 50, func() error {
		s, out, err := join(c)
		if err != nil {
			return err
		}
		defer s.Close()
		return readUntil(s, out, "line-40-of-what-was-there-before", "the-last-line", "watching")
	})
	if err != nil {
		return nil, err
	}
	return []row{{What: "join on a live connection, until the first whole frame", Unit: "ms",
		Ours: samples[0], Goal: "≤ 20 ms", Passes: samples[0].Median <= 20}}, nil
}

// personEcho: a person's key to the screen at the ssh program, drawn by our renderer, and at
// OpenSSH's server. Once at the pace of a fast typist, which is what a person sees, and
// once each key as soon as the one before is there: what is drawn at most thirty times a second
// shows.
func personEcho(ctx context.Context, b *bench) ([]row, error) {
	ours, end, err := b.personKeys(ctx, b.daemon.SSH, "bench~typed", nil, "", "watching", "\x1dt",
		"cat\r")
	if err != nil {
		return nil, err
	}
	defer end()
	const cat = "echo ready; exec cat"
	peer, endPeer, err := b.personKeys(ctx, b.sshdAddr, "root", nil, cat, "ready")
	if err != nil {
		return nil, err
	}
	defer endPeer()
	jumped, endJumped, err := b.personKeys(ctx, b.sshdAddr, "root", b.jump(), cat, "ready")
	if err != nil {
		return nil, err
	}
	defer endJumped()
	paced, err := turns{of: 1, pause: 50 * time.Millisecond}.times(ctx, 100, ours, peer, jumped)
	if err != nil {
		return nil, err
	}
	fast, err := times(ctx, 100, ours, peer)
	if err != nil {
		return nil, err
	}
	return []row{
		against("a person's key to the screen of a shared session, 20 keys a second", "ms",
			paced[0], paced[1], "OpenSSH", "≤ 1.1 ×", atMost(1.1)),
		against("a person's key to the screen of a shared session, 20 keys a second", "ms",
			paced[0], paced[2], "OpenSSH jump host", "–", always),
		against("a person's key to the screen of a shared session, without a pause", "ms", fast[0],
			fast[1], "OpenSSH", "–", always),
	}, nil
}

// personKeys starts the ssh program on a terminal, waits for a text, presses keys, and returns what
// types a key and sees it echoed.
func (b *bench) personKeys(ctx context.Context, addr, user string, options []string, command,
	first string, keys ...string) (func() error, func(), error) {
	args := append([]string{"-tt"}, b.sshArgs(addr, user, options...)...)
	if command != "" {
		args = append(args, command)
	}
	cmd := exec.CommandContext(ctx, "ssh", args...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		terminal.Close()
	}
	in := bufio.NewReaderSize(terminal, 64<<10)
	until := func(text string) error {
		var all []byte
		for !bytes.HasSuffix(all, []byte(text)) {
			c, err := in.ReadByte()
			if err != nil {
				return fmt.Errorf("%s: waiting for %q after %q: %w", user, text,
					all[max(0, len(all)-200):], err)
			}
			all = append(all, c)
		}
		return nil
	}
	if err := until(first); err != nil {
		end()
		return nil, nil, err
	}
	for _, k := range keys {
		if err := daemon.Pause(ctx, 300*time.Millisecond); err != nil {
			end()
			return nil, nil, err
		}
		if _, err := terminal.WriteString(k); err != nil {
			end()
			return nil, nil, err
		}
	}
	if err := daemon.Pause(ctx, time.Second); err != nil { // until what the keys did is drawn
		end()
		return nil, nil, err
	}
	return func() error {
		// No sequence that the renderer writes has this character, and nothing else on the screen:
		// each one read is a key's.
		if _, err := terminal.WriteString("%"); err != nil {
			return err
		}
		return until("%")
	}, end, nil
}

// watchedFlood: what a watcher gets while the session prints without end.
func watchedFlood(ctx context.Context, b *bench, sh *agent.Shell) ([]row, error) {
	const long = 3 * time.Second
	c, err := b.connect(b.daemon.SSH, "bench~"+sharedSession)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s, out, err := join(c)
	if err != nil {
		return nil, err
	}
	var bytesRead, repaints atomic.Int64
	var reading sync.WaitGroup
	defer reading.Wait()
	defer s.Close()
	reading.Go(func() { // ends with the session
		var last time.Time
		for buf := make([]byte, 64<<10); ; {
			n, err := out.Read(buf)
			if err != nil {
				return
			}
			// A repaint is what comes without a pause: between two of them there are 33 ms.
			if now := time.Now(); now.Sub(last) > 8*time.Millisecond {
				repaints.Add(1)
			}
			last = time.Now()
			bytesRead.Add(int64(n))
		}
	})
	flooded := make(chan error, 1)
	go func() { // ends with the flood
		_, err := sh.Do(ctx, agent.Call{Command: "yes", Timeout: long + time.Second, Kill: true})
		flooded <- err
	}()
	if err := daemon.Pause(ctx, 500*time.Millisecond); err != nil {
		return nil, errors.Join(err, <-flooded)
	}
	began, bytesBefore, repaintsBefore := time.Now(), bytesRead.Load(), repaints.Load()
	err = daemon.Pause(ctx, long)
	took := time.Since(began).Seconds()
	rate, frames := float64(bytesRead.Load()-bytesBefore)/1024/took,
		float64(repaints.Load()-repaintsBefore)/took
	if err := errors.Join(err, <-flooded); err != nil {
		return nil, err
	}
	return []row{
		{What: "a watcher of yes, repaints a second", Unit: "1/s",
			Ours: summarize([]float64{frames}), Goal: "≤ 30", Passes: frames <= 30.5},
		{What: "a watcher of yes, what reaches them", Unit: "KiB/s",
			Ours: summarize([]float64{rate}), Goal: "–", Passes: true},
	}, nil
}

// watchersAtOnce is how many watch in the rows of throughput.
const watchersAtOnce = 20

// watchedBulk: how fast an agent reads what its session prints, alone, beside watchers that read,
// and beside some that have stopped reading. They take turns. That the watchers come and go is not
// what is measured: twenty logins, and the ends of twenty connections that have not been read from,
// keep the daemon busy for longer than a short output takes.
func watchedBulk(ctx context.Context, b *bench, sh *agent.Shell) ([]row, error) {
	const (
		rounds, size = 7, 32 << 20
		settle       = 2 * time.Second
	)
	if _, err := throughput(ctx, sh, size); err != nil { // warms up
		return nil, err
	}
	var alone, read, stuck []float64
	for range rounds {
		for _, m := range []struct {
			values   *[]float64
			watchers int
			stuck    bool
		}{{&alone, 0, false}, {&read, watchersAtOnce, false}, {&stuck, watchersAtOnce, true}} {
			leave, err := b.watchers(ctx, sh, m.watchers, m.stuck)
			if err != nil {
				return nil, err
			}
			var rate float64
			if err = daemon.Pause(ctx, settle); err == nil {
				rate, err = throughput(ctx, sh, size)
			}
			leave()
			if err != nil {
				return nil, err
			}
			*m.values = append(*m.values, rate)
		}
	}
	peer := summarize(alone)
	return []row{
		against(fmt.Sprintf("an agent's bulk output, beside %d watchers that read", watchersAtOnce),
			"MiB/s", summarize(read), peer, "nobody watches", "≥ 0.95 ×", atLeast(0.95)),
		against(fmt.Sprintf("an agent's bulk output, beside %d watchers that are stuck",
			watchersAtOnce), "MiB/s", summarize(stuck), peer, "nobody watches", "≥ 0.95 ×",
			atLeast(0.95)),
	}, nil
}

// throughput is that of a session's output to its agent, in MiB/s from the first byte on.
func throughput(ctx context.Context, sh *agent.Shell, size int) (float64, error) {
	m := &meter{}
	res, err := sh.Do(ctx, agent.Call{Command: fmt.Sprintf("yes %s | head -c %d",
		strings.Repeat("0123456789", 8), size), Stdout: m})
	if err != nil {
		return 0, err
	}
	if res.Ended != agent.EndedDone || m.bytes == 0 {
		return 0, fmt.Errorf("the output ended %s after %d bytes", res.Ended, m.bytes)
	}
	// A reader who is too slow for a session goes on further behind.
	if printed := int(res.To - res.From); m.bytes < printed {
		fmt.Fprintf(os.Stderr, "  %d of %d bytes came: the agent lagged; notes %q\n", m.bytes,
			printed, res.Notes)
	}
	return float64(m.bytes) / (1 << 20) / m.last.Sub(m.first).Seconds(), nil
}

// meter counts what is written to it. What is written ends before its owner reads it.
type meter struct {
	first, last time.Time
	bytes       int
}

func (m *meter) Write(p []byte) (int, error) {
	m.last = time.Now()
	if m.bytes == 0 {
		m.first = m.last
	}
	m.bytes += len(p)
	return len(p), nil
}

// watchers has n people watch the shared session, each on a connection of their own. They read and
// drop what they get, or have stopped reading when watchers returns: nothing more fits between them
// and the daemon. leave ends them.
func (b *bench) watchers(ctx context.Context, sh *agent.Shell, n int, stuck bool) (leave func(),
	err error) {
	var gates []*gate
	var reading sync.WaitGroup
	leave = func() {
		for _, g := range gates {
			g.Close()
		}
		reading.Wait()
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	for range n {
		g, out, err := b.watcher(ctx, stuck)
		if err != nil {
			return leave, err
		}
		gates = append(gates, g)
		reading.Go(func() { // ends with the connection
			_, _ = io.Copy(io.Discard, out)
		})
	}
	if n == 0 || !stuck {
		return leave, nil
	}
	for _, g := range gates {
		g.shut.Store(true)
	}
	// News, until what the daemon has for each of them stays where it is.
	_, port, err := net.SplitHostPort(b.daemon.SSH)
	if err != nil {
		return leave, err
	}
	var before map[string]string
	for range 40 {
		if _, err := sh.Run(ctx, "seq -f '%079.0f' 2000"); err != nil {
			return leave, err
		}
		now, err := unsent(port)
		if err != nil {
			return leave, err
		}
		if !slices.ContainsFunc(gates, func(g *gate) bool {
			_, own, _ := net.SplitHostPort(g.LocalAddr().String())
			return now[own] == "" || now[own] != before[own]
		}) {
			return leave, nil
		}
		before = now
		// Lines of a flood go out once a second.
		if err := daemon.Pause(ctx, time.Second); err != nil {
			return leave, err
		}
	}
	return leave, errors.New("a watcher who reads nothing is sent more and more")
}

// unsent tells how much the other side has not taken yet of what was sent on the TCP connections of
// a server's port, by the other side's port. Connections with nothing are left out.
func unsent(port string) (map[string]string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return nil, err
	}
	found := make(map[string]string)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line) // sl, local, remote, state, tx:rx … (proc_net_tcp.txt)
		if len(f) < 5 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
			continue
		}
		_, hex, _ := strings.Cut(f[2], ":")
		queued, _, _ := strings.Cut(f[4], ":")
		if other, err := strconv.ParseUint(hex, 16, 16); err == nil &&
			strings.Trim(queued, "0") != "" {
			found[strconv.FormatUint(other, 10)] = queued
		}
	}
	return found, nil
}

// watcher joins one person by a connection of their own. With little room it takes few bytes that
// are not read.
func (b *bench) watcher(ctx context.Context, little bool) (*gate, io.Reader, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if little {
		d.Control = func(_, _ string, c syscall.RawConn) error {
			var set error
			err := c.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
			})
			return errors.Join(err, set)
		}
	}
	conn, err := d.DialContext(ctx, "tcp", b.daemon.SSH)
	if err != nil {
		return nil, nil, err
	}
	g := &gate{Conn: conn, closed: make(chan struct{})}
	c, channels, requests, err := ssh.NewClientConn(g, b.daemon.SSH,
		daemon.ClientConfig("bench~"+sharedSession, b.signer))
	if err != nil {
		g.Close()
		return nil, nil, err
	}
	_, out, err := join(ssh.NewClient(c, channels, requests))
	if err == nil {
		err = readUntil(g, out, "watching")
	}
	if err != nil {
		g.Close()
		return nil, nil, err
	}
	return g, out, nil
}

// gate is a connection that, once shut, takes nothing more from its socket, as that of a stopped
// program.
type gate struct {
	net.Conn
	shut   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (g *gate) Read(p []byte) (int, error) {
	// One that is under way when the gate is shut still gets what it waits for.
	n, err := g.Conn.Read(p)
	if g.shut.Load() {
		<-g.closed
		return 0, net.ErrClosed
	}
	return n, err
}

// Close is as Conn's, and ends a Read at the shut gate.
func (g *gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

// watcherMemory: what people who watch cost the daemon beside their connections, which they share
// here: those have a row of their own. Their screen is all but empty. There are so many that the
// two megabytes do not matter which the daemon does not collect until there are more.
func watcherMemory(ctx context.Context, b *bench) ([]row, error) {
	const connections, each = 14, 30
	if err := b.freshDaemon(ctx); err != nil {
		return nil, err
	}
	sh, err := b.client.Shell(ctx, sharedSession)
	if err != nil {
		return nil, err
	}
	defer sh.Close()
	if _, err := sh.Run(ctx, "clear"); err != nil {
		return nil, err
	}
	var clients []*ssh.Client
	var reading sync.WaitGroup
	defer func() {
		for _, c := range clients {
			c.Close()
		}
		reading.Wait()
	}()
	watch := func(c *ssh.Client) error {
		_, out, err := join(c)
		if err == nil {
			err = readUntil(c, out, "watching")
		}
		if err != nil {
			return err
		}
		reading.Go(func() { _, _ = io.Copy(io.Discard, out) })
		return nil
	}
	// The first of each connection has the daemon touch what it needs for any.
	for range connections {
		c, err := b.connect(b.daemon.SSH, "bench~"+sharedSession)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
		if err := watch(c); err != nil {
			return nil, err
		}
	}
	before, err := b.daemonSettled(ctx)
	if err != nil {
		return nil, err
	}
	for range each {
		for _, c := range clients {
			if err := watch(c); err != nil {
				return nil, err
			}
		}
	}
	after, err := b.daemonSettled(ctx)
	if err != nil {
		return nil, err
	}
	kib := float64(after-before) / (connections * each) / (1 << 10)
	return []row{{What: "daemon, per watcher of an empty screen", Unit: "KiB",
		Ours: sample{Median: kib, P99: kib, Min: kib, Max: kib, N: connections * each},
		Goal: "≤ 40", Passes: kib <= 40}}, nil
}
