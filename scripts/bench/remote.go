package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/scripts/daemon"
)

// remote: a daemon whose engine is reached by TCP, and so counts as one on another machine, against
// the daemon that shares files with the same engine.
func remote(ctx context.Context, b *bench) (rows []row, err error) {
	engine, err := b.engineByTCP(ctx)
	if err != nil {
		return nil, err
	}
	defer engine.close()
	away, err := b.launch(ctx, "remote", "DOCKER_HOST=tcp://"+engine.Addr().String())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, away.End(ctx)) }()
	n := 0
	boot := func(at *daemon.Daemon) (one, end func() error, err error) {
		l, err := b.control(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		names := ""
		return func() error {
				n++
				name := fmt.Sprintf("remote-%d", n)
				names += " " + name
				_, err := l.command(ctx, "new "+name)
				if err == nil {
					_, err = l.command(ctx, "exec "+name+" true")
				}
				return err
			}, func() error {
				_, err := l.command(context.WithoutCancel(ctx), "rm -f"+names)
				return errors.Join(err, l.Close())
			}, nil
	}
	far, closeFar, err := boot(away)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeFar()) }()
	near, closeNear, err := boot(b.daemon)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeNear()) }()
	boots, err := times(ctx, 10, far, near)
	if err != nil {
		return nil, err
	}

	there, err := b.connectAs(away, "remote-1")
	if err != nil {
		return nil, err
	}
	defer there.Close()
	here, err := b.gateway()
	if err != nil {
		return nil, err
	}
	defer here.Close()
	execs, err := times(ctx, 100, runTrue(there), runTrue(here))
	if err != nil {
		return nil, err
	}
	login := func(at *daemon.Daemon, user string) func() error {
		return func() error {
			c, err := b.connectAs(at, user)
			if err != nil {
				return err
			}
			defer c.Close()
			return runTrue(c)()
		}
	}
	logins, err := times(ctx, 20, login(away, "remote-1"), login(b.daemon, "bench"))
	if err != nil {
		return nil, err
	}
	const peer = "engine that shares files"
	more := execs[0].Median - execs[1].Median
	live := against("remote engine: exec true on a live connection", "ms", execs[0], execs[1], peer,
		"≤ 3 ms more", always)
	live.Passes = more <= 3
	return []row{
		against("remote engine: create until the first command is done", "ms", boots[0], boots[1],
			peer, "≤ 1.5 ×", atMost(1.5)),
		live,
		against("remote engine: connect, then exec true", "ms", logins[0], logins[1], peer, "",
			always),
	}, nil
}

// connectAs logs in to a sandbox of a daemon.
func (b *bench) connectAs(at *daemon.Daemon, user string) (*ssh.Client, error) {
	signer, err := at.Signer()
	if err != nil {
		return nil, err
	}
	return daemon.Connect(at.SSH, user, signer)
}

// forwarder passes connections of a TCP port on to the engine's socket.
type forwarder struct {
	net.Listener

	wg sync.WaitGroup
}

func (b *bench) engineByTCP(ctx context.Context) (*forwarder, error) {
	socket, isSocket := strings.CutPrefix(b.docker.DaemonHost(), "unix://")
	if !isSocket {
		return nil, fmt.Errorf("the engine at %s has no socket here", b.docker.DaemonHost())
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &forwarder{Listener: l}
	f.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() { pass(in.(*net.TCPConn), socket) })
		}
	})
	return f, nil
}

func (f *forwarder) close() {
	f.Close()
	f.wg.Wait()
}

func pass(in *net.TCPConn, socket string) {
	defer in.Close()
	out, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return
	}
	defer out.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(out, in)
		_ = out.CloseWrite()
	})
	_, _ = io.Copy(in, out)
	_ = in.CloseWrite()
	wg.Wait()
}
