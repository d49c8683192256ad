package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func (c *cli) portCommand() *cobra.Command {
	var (
		listen string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:     "port NAME PORT",
		Aliases: command.Aliases["port"],
		Short:   "forward a local port to a sandbox",
		Long: "Forward a port of this machine to PORT on the loopback address of a sandbox,\n" +
			"until ^C. It works with every network mode, like ssh -L.",
		Example: "  sandboxd port web 8000\n  sandboxd port web 8000 --listen 127.0.0.1:8080",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("port: needs a sandbox and a port", "usage: sandboxd port NAME PORT")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usage(fmt.Sprintf("port %q: must be a number from 1 to 65535", args[1]),
					"usage: sandboxd port NAME PORT; --listen sets the local address")
			}
			words := []string{"sessions", args[0]} // fails for a wrong name
			if asJSON {
				words = append(words, "--json")
			}
			if err := c.control(cmd.Context(), io.Discard, os.Stderr, words...); err != nil {
				return err
			}
			client, err := c.dial(cmd.Context(), args[0], false)
			if err != nil {
				return err
			}
			defer client.Close()
			l, err := listenFor(cmd.Context(), listen, int(port))
			if err != nil {
				return err
			}
			defer l.Close()
			said := struct {
				Sandbox string `json:"sandbox"`
				Port    int    `json:"port"`
				Listen  string `json:"listen"`
			}{args[0], int(port), l.Addr().String()}
			if asJSON {
				err = text.WriteJSON(os.Stdout, said)
			} else {
				_, err = fmt.Printf("forwarding %s to port %d of %s until ^C\n", said.Listen,
					said.Port, said.Sandbox)
			}
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return carryPort(ctx, client, l, "localhost:"+args[1])
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "",
		"local address (default: 127.0.0.1 with the same port, or a free one if it is in use)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object with sandbox, port and listen")
	command.ByName(cmd)
	return cmd
}

// listenFor listens on address or, if it is empty, on the loopback address: on port if it is free,
// else on any port.
func listenFor(ctx context.Context, address string, port int) (net.Listener, error) {
	var lc net.ListenConfig
	if address != "" {
		l, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, &wire.Error{Code: wire.CodeUnavailable,
				Message: fmt.Sprintf("--listen %s: %v", address, err),
				Hint:    "use a free address such as 127.0.0.1:8080, or 127.0.0.1:0 for any port"}
		}
		return l, nil
	}
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		l, err = lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	return l, err
}

// carryPort forwards connections to target in the sandbox until ctx ends.
func carryPort(ctx context.Context, client *agent.Client, l net.Listener, target string) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		near, err := l.Accept()
		if ctx.Err() != nil {
			return nil // interrupted, its normal end
		}
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer near.Close()
			far, err := client.DialInside(ctx, "tcp", target)
			if err != nil {
				if ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "sandboxd:", text.Line(err.Error(), 400))
				}
				return
			}
			defer far.Close()
			ended := context.AfterFunc(ctx, func() { near.Close(); far.Close() })
			defer ended()
			join(near, far)
		})
	}
}

// join copies in both directions. Each direction ends separately, as in TCP.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // on an error, the other side sees the end
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
}
