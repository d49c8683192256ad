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
	osuser "os/user"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// gateway returns how clients on this machine reach the daemon.
func (e endpoint) gateway() command.Gateway {
	host, port := "localhost", portOf(e.SSH)
	if addr, _, err := net.SplitHostPort(e.SSH); err == nil {
		if ip := net.ParseIP(addr); ip == nil || !ip.IsLoopback() && !ip.IsUnspecified() {
			host = addr
		}
	}
	return command.Gateway{Host: host, Port: port, KnownHosts: e.KnownHosts, Identity: e.Identity}
}

// control runs one command on the control host.
func (c *cli) control(ctx context.Context, out, said io.Writer, words ...string) error {
	control, err := c.dial(ctx, wire.ControlHost, false)
	if err != nil {
		return err
	}
	defer control.Close()
	return forward(ctx, control, agent.Cmd{Command: shellquote.Join(words...), Stdout: out,
		Stderr: said})
}

// dialGateway connects to a running daemon. The caller closes the Gateway.
func (c *cli) dialGateway(ctx context.Context) (*agent.Gateway, error) {
	host, o, err := c.reach(ctx, false)
	if err != nil {
		return nil, err
	}
	g, err := agent.DialGateway(ctx, "ssh://"+host, o)
	return g, c.notReached(err, host, o)
}

// command runs one command on the control host and returns its output. It writes its messages to
// progress, which may be nil.
func (c *cli) command(ctx context.Context, progress io.Writer, words ...string) ([]byte, error) {
	g, err := c.dialGateway(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.Command(ctx, progress, words...)
}

// sandboxes returns the user's sandboxes.
func (c *cli) sandboxes(ctx context.Context) ([]agent.Sandbox, error) {
	g, err := c.dialGateway(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.List(ctx)
}

// runningSandboxes returns the names of the user's running sandboxes.
func (c *cli) runningSandboxes(ctx context.Context) ([]string, error) {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, info := range all {
		if info.State == agent.SandboxRunning {
			names = append(names, info.Name)
		}
	}
	return names, nil
}

func (c *cli) sshCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "ssh [SSH-OPTION…] NAME[~SESSION] [CMD…]",
		Short:      "attach to a session with ssh, or run a command",
		Aliases:    command.Aliases["ssh"],
		SuggestFor: []string{"connect", "enter", "shell"},
		Long: "Attach to a session with ssh(1), or run CMD in the sandbox. The default\n" +
			"session is the one that agents use. Ctrl-] t takes the keyboard, Ctrl-] g\n" +
			"gives it back, Ctrl-] d detaches, Ctrl-] ? shows all keys.\n\n" +
			"Options before NAME are options of ssh.",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true, // options before NAME are options of ssh
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("ssh: missing sandbox name", "usage: "+cmd.UseLine())
			}
			if args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			at := firstArgument(args)
			if at == len(args) { // check it before starting a daemon
				return usage("ssh: missing sandbox name", "usage: "+cmd.UseLine())
			}
			if _, err := wire.ParseTarget(args[at]); err != nil {
				return err
			}
			words, err := sshWords(cmd.Context(), c, args[:at], args[at])
			if err != nil {
				return err
			}
			path := words[0]
			words = append(words, args[at+1:]...)
			words[0] = "ssh"
			return fmt.Errorf("ssh: %w", syscall.Exec(path, words, os.Environ()))
		},
	}
	return cmd
}

// loginOptions returns the host and the options with which ssh(1) or scp(1) logs in at address with
// o. port is the program's option for the port.
func loginOptions(address string, o agent.Options, port string) (host string, options []string) {
	if len(o.KnownHosts) > 0 {
		options = append(options, "-o", "UserKnownHostsFile="+o.KnownHosts[0], "-o",
			"StrictHostKeyChecking=yes")
	}
	if o.Identity != "" {
		options = append(options, "-i", o.Identity)
	}
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		return strings.Trim(address[:i], "[]"), append(options, port, address[i+1:])
	}
	return address, options
}

// firstArgument returns the index of the first word that is neither an option of ssh(1) nor an
// option's argument.
func firstArgument(args []string) int {
	for i := 0; i < len(args); i++ {
		switch {
		case !strings.HasPrefix(args[i], "-"):
			return i
		case len(args[i]) == 2 && strings.Contains("BbcDEeFIiJLlmOoPpQRSWw", args[i][1:]):
			i++
		}
	}
	return len(args)
}

// sshConfigName is the Host that ssh-config defines.
const sshConfigName = "sbx"

func (c *cli) sshConfigCommand() *cobra.Command {
	var write, yes bool
	cmd := &cobra.Command{
		Use:   "ssh-config [--write]",
		Short: "print an ssh configuration for ssh NAME@sbx",
		Long: "Print a Host block for ssh_config(5). With it, `ssh demo@sbx` attaches to the\n" +
			"sandbox demo, and `ssh sbx ls` runs a command of sandboxd. --write saves the\n" +
			"block in the state directory and, after you confirm, adds one Include line to\n" +
			"~/.ssh/config.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := readEndpoint(string(c.config.State))
			if err != nil {
				return &wire.Error{
					Code:    wire.CodeUnavailable,
					Message: "no daemon has run for " + string(c.config.State),
					Hint:    "start it: sandboxd up",
				}
			}
			block := sshConfigBlock(e)
			if !write {
				fmt.Print(block)
				return nil
			}
			return writeSSHConfig(e, block, yes)
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "save the block, and include it in ~/.ssh/config")
	cmd.Flags().BoolVar(&yes, "yes", false, "change ~/.ssh/config without confirmation")
	return cmd
}

// sshConfigBlock returns the Host block. It puts the fast cipher first, because the client's order
// wins and OpenSSH's default cipher halves the throughput.
func sshConfigBlock(e endpoint) string {
	g := e.gateway()
	return fmt.Sprintf(`# Written by sandboxd ssh-config. ssh demo@%[1]s attaches to the sandbox demo, ssh %[1]s ls lists sandboxes.
Host %[1]s
	HostName %[2]s
	Port %[3]s
	User %[4]s
	UserKnownHostsFile "%[5]s"
	StrictHostKeyChecking yes
	IdentityFile "%[6]s"
	Ciphers ^aes128-gcm@openssh.com
`, sshConfigName, g.Host, g.Port, wire.ControlHost, g.KnownHosts, g.Identity)
}

func writeSSHConfig(e endpoint, block string, yes bool) error {
	own := sshConfigFile(e)
	if err := os.WriteFile(own, []byte(block), 0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	user, err := userSSHConfig()
	if err != nil {
		return err
	}
	include := includeLine(e)
	before, err := os.ReadFile(user)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("ssh-config: %w", err)
	}
	if bytes.Contains(before, []byte(include)) {
		fmt.Printf("wrote %s; %s already includes it\n", own, user)
		return nil
	}
	if !yes {
		fmt.Printf("  %sAdd this line at the top of %s? [y/N] ", include, user)
		answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return usage("ssh-config: "+user+" was not changed",
				"use --yes, or add the line yourself: "+strings.TrimSpace(include))
		}
	}
	if err := os.MkdirAll(filepath.Dir(user), 0o700); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	// At the top: an Include inside a Host block would belong to it. The file is replaced by a
	// rename, so that a crash loses nothing.
	target, err := filepath.EvalSymlinks(user)
	if err != nil {
		target = user
	}
	if err := os.WriteFile(target+".sandboxd", append([]byte(include), before...),
		0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	if err := os.Rename(target+".sandboxd", target); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	fmt.Printf("wrote %s and included it from %s\n  ssh demo@%s\n", own, user, sshConfigName)
	if u, err := osuser.Current(); err == nil && filepath.Join(u.HomeDir, ".ssh",
		"config") != user {
		// ssh(1) takes the home directory from the user database, which differs from HOME after
		// sudo.
		fmt.Printf("note: ssh ignores HOME and reads %s; use ssh -F %s\n",
			filepath.Join(u.HomeDir, ".ssh", "config"), user)
	}
	return nil
}
