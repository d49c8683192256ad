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
	osuser "os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// gateway is how clients on this machine reach the daemon.
func (e endpoint) gateway() command.Gateway {
	host, port := "localhost", portOf(e.SSH)
	if addr, _, err := net.SplitHostPort(e.SSH); err == nil {
		if ip := net.ParseIP(addr); ip == nil || !ip.IsLoopback() && !ip.IsUnspecified() {
			host = addr
		}
	}
	return command.Gateway{Host: host, Port: port, KnownHosts: e.KnownHosts, Identity: e.Identity}
}

// lobby runs one command of the table.
func (c *cli) lobby(ctx context.Context, out, said io.Writer, words ...string) error {
	lobby, err := c.dial(ctx, wire.Lobby, false)
	if err != nil {
		return err
	}
	defer lobby.Close()
	return forward(ctx, lobby, agent.Cmd{Command: shellquote.Join(words...), Stdout: out, Stderr: said})
}

// dialGateway connects to a daemon that runs. The caller closes the Gateway.
func (c *cli) dialGateway(ctx context.Context) (*agent.Gateway, error) {
	host, o, err := c.reach(ctx, false)
	if err != nil {
		return nil, err
	}
	g, err := agent.DialGateway(ctx, "ssh://"+host, o)
	return g, c.notReached(err, host, o)
}

// command runs one command of the command table and returns what it prints. progress gets what it
// prints for people; nil discards that.
func (c *cli) command(ctx context.Context, progress io.Writer, words ...string) ([]byte, error) {
	g, err := c.dialGateway(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.Command(ctx, progress, words...)
}

// sandboxes lists the user's sandboxes.
func (c *cli) sandboxes(ctx context.Context) ([]agent.Sandbox, error) {
	g, err := c.dialGateway(ctx)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.List(ctx)
}

// runningSandboxes lists names.
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
		Short:      "join a session with ssh, or run a command",
		Aliases:    command.Aliases["ssh"],
		SuggestFor: []string{"connect", "enter", "shell"},
		Long: "Run ssh with what it takes to reach the daemon. Without CMD you join the session that agents work in:\n" +
			"Ctrl-] t takes the keyboard, Ctrl-] g gives it back, Ctrl-] d leaves.",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true, // everything before NAME is ssh's
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("ssh: no sandbox named", "usage: "+cmd.UseLine())
			}
			if args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			path, err := exec.LookPath("ssh")
			if err != nil {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "there is no ssh on this machine", Hint: "install openssh-client"}
			}
			at := firstArgument(args)
			if at == len(args) { // before a daemon is started for nothing
				return usage("ssh: no sandbox named", "usage: "+cmd.UseLine())
			}
			if _, err := wire.ParseTarget(args[at]); err != nil {
				return err
			}
			address, o, err := c.reach(cmd.Context(), true)
			if err != nil {
				return err
			}
			host, login := loginOptions(address, o, "-p")
			words := slices.Concat([]string{"ssh"}, login, args[:at], []string{args[at] + "@" + host}, args[at+1:])
			return fmt.Errorf("ssh: %w", syscall.Exec(path, words, os.Environ()))
		},
	}
	return cmd
}

// loginOptions are what ssh(1) and scp(1) need to log in at address with o, but for the user and the host, which is returned apart. port is what
// the program calls that option.
func loginOptions(address string, o agent.Options, port string) (host string, options []string) {
	if len(o.KnownHosts) > 0 {
		options = append(options, "-o", "UserKnownHostsFile="+o.KnownHosts[0], "-o", "StrictHostKeyChecking=yes")
	}
	if o.Identity != "" {
		options = append(options, "-i", o.Identity)
	}
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		return strings.Trim(address[:i], "[]"), append(options, port, address[i+1:])
	}
	return address, options
}

// firstArgument is the index of the first word that is neither an option of ssh(1) nor an option's argument.
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

// sshConfigName is the alias that the block of ssh-config defines.
const sshConfigName = "sbx"

func (c *cli) sshConfigCommand() *cobra.Command {
	var write, yes bool
	cmd := &cobra.Command{
		Use:   "ssh-config [--write]",
		Short: "print an ssh configuration with which ssh NAME@sbx works",
		Long: "Print a Host block for ssh_config(5): afterwards `ssh demo@sbx` reaches the sandbox demo and `ssh sbx ls` the command\n" +
			"table. --write puts it into a file of its own in the state directory and, after asking, one Include line into\n" +
			"~/.ssh/config.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := readEndpoint(string(c.config.State))
			if err != nil {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "no daemon has run for " + string(c.config.State), Hint: "start it: sandboxd up"}
			}
			block := sshConfigBlock(e)
			if !write {
				fmt.Print(block)
				return nil
			}
			return writeSSHConfig(e, block, yes)
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "write it, and include it from ~/.ssh/config")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// sshConfigBlock names the fast cipher first: the client's order wins, and OpenSSH's own costs half the throughput.
func sshConfigBlock(e endpoint) string {
	g := e.gateway()
	return fmt.Sprintf(`# Written by sandboxd ssh-config. ssh demo@%[1]s is the sandbox demo, ssh %[1]s ls the command table.
Host %[1]s
	HostName %[2]s
	Port %[3]s
	User %[4]s
	UserKnownHostsFile "%[5]s"
	StrictHostKeyChecking yes
	IdentityFile "%[6]s"
	Ciphers ^aes128-gcm@openssh.com
`, sshConfigName, g.Host, g.Port, wire.Lobby, g.KnownHosts, g.Identity)
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
		fmt.Printf("wrote %s; %s includes it already\n", own, user)
		return nil
	}
	if !yes {
		fmt.Printf("  %sPut this line at the top of %s? [y/N] ", include, user)
		answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return usage("nothing was put into "+user, "say --yes, or put the line there yourself: "+strings.TrimSpace(include))
		}
	}
	if err := os.MkdirAll(filepath.Dir(user), 0o700); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	// At the top: an Include inside a Host block would belong to it. Written beside and renamed, so that nothing is lost.
	target, err := filepath.EvalSymlinks(user)
	if err != nil {
		target = user
	}
	if err := os.WriteFile(target+".sandboxd", append([]byte(include), before...), 0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	if err := os.Rename(target+".sandboxd", target); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	fmt.Printf("wrote %s and included it from %s\n  ssh demo@%s\n", own, user, sshConfigName)
	if u, err := osuser.Current(); err == nil && filepath.Join(u.HomeDir, ".ssh", "config") != user {
		// ssh(1) asks the user database for the home directory, as after sudo with HOME kept.
		fmt.Printf("note: ssh reads %s, whatever HOME says; use ssh -F %s\n", filepath.Join(u.HomeDir, ".ssh", "config"), user)
	}
	return nil
}
