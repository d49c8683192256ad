package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/pool"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// startPatience is the longest time until a new daemon listens. It builds no images before.
const startPatience = 30 * time.Second

// upCommand returns the command up with the name use.
func (c *cli) upCommand(use string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   use,
		Short: "start the daemon in the background",
		Long: "Start the daemon in the background, and print how to reach it. If the port is\n" +
			"in use, it uses the next free port. Without --config, it uses the\n" +
			"configuration file of the last daemon. If a daemon runs already, up only\n" +
			"prints how to reach it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, missing := c.daemon()
			started := missing != nil
			if started {
				printWarnings(c.config.Warnings)
				say := os.Stdout
				if asJSON {
					say = os.Stderr
				}
				var err error
				if e, err = c.startDaemon(cmd.Context(), say, true); err != nil {
					return err
				}
			}
			switch {
			case asJSON:
				return text.WriteJSON(os.Stdout, e)
			case started:
				printPaste(os.Stdout, e)
				return nil //nolint:nilerr // the missing daemon was started
			}
			fmt.Printf("sandboxd %s is already running (pid %d)\n", e.Version, e.PID)
			printPaste(os.Stdout, e)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object: addresses, files and process ID")
	return cmd
}

// startDaemon starts a daemon that outlives this program, waits until it listens, and prints that
// it is ready. up is set for the command up: see again.
func (c *cli) startDaemon(ctx context.Context, say io.Writer, up bool) (endpoint, error) {
	var none endpoint
	if err := runsDaemon(); err != nil {
		return none, err
	}
	began := time.Now()
	if err := c.again(up); err != nil {
		return none, err
	}
	state := string(c.config.State)
	if err := makeState(state); err != nil {
		return none, err
	}
	logPath := logFilePath(state)
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return none, fmt.Errorf("daemon log: %w", err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return none, fmt.Errorf("daemon log: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return none, fmt.Errorf("daemon: %w", err)
	}
	args := []string{"serve", "--background", "--state", state}
	if addr, moved := freeAddress(ctx, c.config.SSH); moved {
		fmt.Fprintf(say, "port %s is in use, using %s\n", portOf(c.config.SSH), portOf(addr))
		args = append(args, "--ssh", addr)
	}
	if c.configFile != "" {
		args = append(args, "--config", absolute(c.configFile))
	}
	// outlives this program
	daemon := exec.CommandContext(context.WithoutCancel(ctx), self, args...)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.Dir = "/"
	daemon.SysProcAttr = ownSession() // survives the terminal
	// nohup(1) is meant for this program: a daemon that ignores signals cannot be stopped.
	inherit := signals.DefaultForChildren()
	err = daemon.Start()
	inherit()
	if err != nil {
		return none, fmt.Errorf("daemon: %w", err)
	}
	ended := make(chan struct{})
	go func() { // ends with the daemon, or with this program
		defer close(ended)
		_ = daemon.Wait() // its log has the reason
	}()
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e, err := readEndpoint(state)
			if err != nil || e.PID != daemon.Process.Pid { // written once it listens
				continue
			}
			took := time.Since(began)
			facts, note := engineFacts(ctx, c.config)
			printReady(say, e, facts, note, took)
			return e, nil
		case <-ended:
			return none, &wire.Error{Code: wire.CodeUnavailable,
				Message: "daemon failed to start: " + lastLine(logPath, from), Hint: "see " +
					logPath}
		case <-patience.C:
			return none, &wire.Error{Code: wire.CodeUnavailable,
				Message: fmt.Sprintf("daemon does not listen after %v", startPatience),
				Hint:    "see " + logPath}
		case <-ctx.Done():
			return none, exitCode(wire.ExitInterrupt)
		}
	}
}

// freeAddress returns addr with the first free port of a hundred, and whether that is another port.
func freeAddress(ctx context.Context, addr string) (string, bool) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, false
	}
	first, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil || first == 0 {
		return addr, false
	}
	for p := first; p < first+100 && p < 1<<16; p++ {
		candidate := net.JoinHostPort(host, fmt.Sprint(p))
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", candidate)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err == nil {
			l.Close()
		}
		return candidate, p != first
	}
	return addr, false
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// lastLine returns the last line of a log that was written after offset from.
func lastLine(path string, from int64) string {
	text, err := os.ReadFile(path)
	if int64(len(text)) < from { // it was rotated
		from = 0
	}
	if err != nil || int64(len(text)) == from {
		return "no message in its log"
	}
	lines := strings.Split(strings.TrimSpace(string(text[from:])), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "sandboxd: ")
}

// downCommand returns the command down with the name use.
func (c *cli) downCommand(use string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   use + " [--all]",
		Short: "stop the daemon; sandboxes keep running",
		Long: "Stop the daemon. Sandboxes keep running, and the next daemon finds them. With\n" +
			"--all, sandboxes are stopped first, and the pool is removed. Their files stay.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := c.daemon()
			if err != nil {
				fmt.Println("no daemon runs")
				return nil // the same result
			}
			names, err := c.runningSandboxes(cmd.Context())
			if err != nil {
				return err
			}
			if all && len(names) > 0 {
				if err := c.control(cmd.Context(), os.Stdout, os.Stderr,
					append([]string{"stop"}, names...)...); err != nil {
					return err
				}
			}
			pool, err := c.pool(cmd.Context(), all)
			if err != nil {
				return err
			}
			ready := 0
			for _, i := range pool {
				if i.Use == "" { // pools of an API end with the daemon
					ready += i.Ready
				}
			}
			if err := stopProcess(cmd.Context(), e); err != nil {
				return err
			}
			if ready > 0 {
				defer fmt.Printf(
					"pool: %d sandboxes kept for the next daemon; to remove them: down --all\n",
					ready)
			}
			switch {
			case len(names) == 0:
				fmt.Println("daemon stopped; no sandbox was running")
			case all:
				fmt.Printf("daemon stopped; stopped, with files kept: %s\n",
					strings.Join(names, " "))
			default:
				fmt.Printf("daemon stopped; still running: %s\n", strings.Join(names, " "))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "stop the sandboxes and remove the pool, too")
	return cmd
}

// pool returns the daemon's pool. If drain is set, it removes the pooled sandboxes first.
func (c *cli) pool(ctx context.Context, drain bool) ([]pool.Info, error) {
	words := []string{"pool", "--json"}
	if drain {
		words = append(words, "--drain")
	}
	out, err := c.command(ctx, nil, words...)
	if errors.Is(err, &wire.Error{Code: wire.CodeUsage}) {
		return nil, nil // a daemon of an earlier version without a pool
	}
	if err != nil {
		return nil, err
	}
	var all []pool.Info
	for lines := json.NewDecoder(bytes.NewReader(out)); ; {
		var i pool.Info
		if err := lines.Decode(&i); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("pool: %w", err)
		}
		all = append(all, i)
	}
}

// stopProcess sends SIGTERM to a daemon and waits until it has ended.
func stopProcess(ctx context.Context, e endpoint) error {
	if e.PID <= 1 {
		return fmt.Errorf("endpoint file of %s: no process ID", e.State)
	}
	if err := terminate(e.PID); err != nil {
		return fmt.Errorf("daemon (pid %d): %w", e.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !store.Runs(e.State, e.PID) { // it has removed its endpoint file
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("daemon (pid %d) does not end after %v", e.PID, startPatience)
		}
	}
}
