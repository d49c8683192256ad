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
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// startPatience is how long a daemon may take until it listens. Images are not built before.
const startPatience = 30 * time.Second

// upCommand is the command up, or another with the name use that does the same.
func (c *cli) upCommand(use string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   use,
		Short: "start the daemon in the background",
		Long: "Start the daemon in the background, and say how to reach it. One that runs already is left alone. Where the port\n" +
			"is taken, the next free one is used, and said. Without --config it has the file that the last one was started with.",
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
				return nil //nolint:nilerr // it was missing, and was started
			}
			fmt.Printf("sandboxd %s runs already (pid %d)\n", e.Version, e.PID)
			printPaste(os.Stdout, e)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print where it answers as one object, as serve does")
	return cmd
}

// startDaemon starts a daemon that outlives this program, waits until it listens, and says so. up says that nothing else was asked for.
func (c *cli) startDaemon(ctx context.Context, say io.Writer, up bool) (endpoint, error) {
	var none endpoint
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
		fmt.Fprintf(say, "port %s is taken, using %s\n", portOf(c.config.SSH), portOf(addr))
		args = append(args, "--ssh", addr)
	}
	if c.configFile != "" {
		args = append(args, "--config", absolute(c.configFile))
	}
	daemon := exec.CommandContext(context.WithoutCancel(ctx), self, args...) // it outlives us
	daemon.Stdout, daemon.Stderr = log, log
	daemon.Dir = "/"
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal that closes does not take it along
	// nohup(1) is for this program; a daemon that ignores signals cannot be ended by them.
	inherit := signals.DefaultForChildren()
	err = daemon.Start()
	inherit()
	if err != nil {
		return none, fmt.Errorf("daemon: %w", err)
	}
	ended := make(chan struct{})
	go func() { // until the daemon ends or this program does
		defer close(ended)
		_ = daemon.Wait() // its log says why
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
			return none, &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon ended at once: " + lastLine(logPath, from), Hint: "see " + logPath}
		case <-patience.C:
			return none, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("the daemon does not listen after %v", startPatience), Hint: "see " + logPath}
		case <-ctx.Done():
			return none, exitCode(wire.ExitInterrupt)
		}
	}
}

// freeAddress returns addr, or the next of a hundred ports that is free.
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

// lastLine is the last line of a log, from an offset on.
func lastLine(path string, from int64) string {
	text, err := os.ReadFile(path)
	if int64(len(text)) < from { // it was rotated
		from = 0
	}
	if err != nil || int64(len(text)) == from {
		return "it said nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(text[from:])), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "sandboxd: ")
}

// downCommand is the command down, or another with the name use that does the same.
func (c *cli) downCommand(use string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   use + " [--all]",
		Short: "stop the daemon; sandboxes go on",
		Long: "Stop the daemon. Sandboxes and what runs in them go on, and the next daemon finds them again. With --all the\n" +
			"sandboxes are stopped first; their files stay. What stands ready in the pool is removed then.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := c.daemon()
			if err != nil {
				fmt.Println("no daemon runs")
				return nil // which is what was wanted
			}
			names, err := c.runningSandboxes(cmd.Context())
			if err != nil {
				return err
			}
			if all && len(names) > 0 {
				if err := c.control(cmd.Context(), os.Stdout, os.Stderr, append([]string{"stop"}, names...)...); err != nil {
					return err
				}
			}
			pool, err := c.pool(cmd.Context(), all)
			if err != nil {
				return err
			}
			ready := 0
			for _, i := range pool {
				if i.Use == "" { // what is kept for a use ends with the daemon
					ready += i.Ready
				}
			}
			if err := stopProcess(cmd.Context(), e); err != nil {
				return err
			}
			if ready > 0 {
				defer fmt.Printf("still there, and nobody's: %d of the pool, for the next daemon; down --all removes them\n", ready)
			}
			switch {
			case len(names) == 0:
				fmt.Println("daemon stopped; no sandbox was running")
			case all:
				fmt.Printf("daemon stopped; stopped, with files kept: %s\n", strings.Join(names, " "))
			default:
				fmt.Printf("daemon stopped; still running: %s\n", strings.Join(names, " "))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "stop the sandboxes, too")
	return cmd
}

// pool asks the daemon what stands ready; none does any more if it is to be removed.
func (c *cli) pool(ctx context.Context, drain bool) ([]pool.Info, error) {
	words := []string{"pool", "--json"}
	if drain {
		words = append(words, "--drain")
	}
	out, err := c.command(ctx, nil, words...)
	if errors.Is(err, &wire.Error{Code: wire.CodeUsage}) {
		return nil, nil // a daemon of a former version, which has no pool
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

// stopProcess ends a daemon in order and waits until it is gone.
func stopProcess(ctx context.Context, e endpoint) error {
	if e.PID <= 1 {
		return fmt.Errorf("the endpoint file of %s names no process", e.State)
	}
	if err := syscall.Kill(e.PID, syscall.SIGTERM); err != nil {
		return fmt.Errorf("daemon (pid %d): %w", e.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if hasEnded(e.PID) { // its endpoint file is gone earlier than its lock
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("the daemon (pid %d) does not end", e.PID)
		}
	}
}

// hasEnded reports whether a process is gone, or a zombie: that one is there until whoever started it looks.
func hasEnded(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // pid (comm) state …, and comm may hold anything (proc_pid_stat(5))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
