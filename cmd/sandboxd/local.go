package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// gatewayAt returns how a client reaches the daemon that has connected to it at reached, without
// files, which are on this machine. If reached is invalid the client is on this machine, too.
func (e endpoint) gatewayAt(reached netip.AddrPort) command.Gateway {
	if !reached.IsValid() {
		return e.gateway()
	}
	return command.Gateway{Host: reached.Addr().String(), Port: strconv.Itoa(int(reached.Port()))}
}

// gatewayOf returns how a client that logged in with a key reaches the daemon. In a pod, a client
// of the loopback address is one of kubectl port-forward, on another machine, unless it has the key
// of the pod's own command line.
func (d *daemon) gatewayOf(key string, reached netip.AddrPort) command.Gateway {
	g := d.address.gatewayAt(reached)
	if inPod() && key != d.own {
		g.KnownHosts, g.Identity = "", ""
	}
	return g
}

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
	return forward(ctx, control, agent.Cmd{Command: text.Quote(words...), Stdout: out,
		Stderr: said})
}

// dialGateway connects to the daemon. If start is set it starts a daemon on this machine if none
// answers. The caller closes the Gateway.
func (c *cli) dialGateway(ctx context.Context, start bool) (*agent.Gateway, error) {
	host, o, err := c.reach(ctx, start)
	if err != nil {
		return nil, err
	}
	g, err := agent.DialGateway(ctx, "ssh://"+host, o)
	return g, c.notReached(err, host, o)
}

// command runs one command on the control host and returns its output. It writes its messages to
// progress, which may be nil.
func (c *cli) command(ctx context.Context, progress io.Writer, words ...string) ([]byte, error) {
	g, err := c.dialGateway(ctx, false)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return g.Command(ctx, progress, words...)
}

// sandboxes returns the user's sandboxes.
func (c *cli) sandboxes(ctx context.Context) ([]agent.Sandbox, error) {
	g, err := c.dialGateway(ctx, false)
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
			"Options before NAME are options of ssh. Those of sandboxd, such as --gateway, come\n" +
			"first.",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true, // options before NAME are options of ssh
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := ownFlags(c, cmd, args)
			if err != nil {
				return err
			}
			if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
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
			return fmt.Errorf("ssh: %w", become(path, words))
		},
	}
	return cmd
}

// ownFlags applies the flags of sandboxd, such as --state, at the beginning of args, and returns
// the rest. ssh(1) has no flags that begin with --.
func ownFlags(c *cli, cmd *cobra.Command, args []string) (rest []string, err error) {
	for len(args) > 0 && len(args[0]) > 2 && strings.HasPrefix(args[0], "--") &&
		args[0] != "--help" {
		name, value, ok := strings.Cut(args[0][2:], "=")
		flag := cmd.InheritedFlags().Lookup(name)
		if flag == nil {
			return nil, usage("ssh: unknown flag --"+name, "options of ssh begin with a single -")
		}
		args = args[1:]
		if !ok {
			if len(args) == 0 {
				return nil, usage("ssh: --"+name+": missing value", "usage: "+cmd.UseLine())
			}
			value, args = args[0], args[1:]
		}
		if err := flag.Value.Set(value); err != nil {
			return nil, usage(fmt.Sprintf("ssh: --%s %q: %v", name, value, err), "")
		}
	}
	return args, c.load()
}

// sshWords returns the command line of ssh(1) that logs in as target, with more options.
func sshWords(ctx context.Context, c *cli, options []string, target string) ([]string, error) {
	path, err := exec.LookPath("ssh")
	if err != nil {
		return nil, &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: "ssh: not found on this machine",
			Hint:    installSSH(),
		}
	}
	address, o, err := c.reach(ctx, true)
	if err != nil {
		return nil, err
	}
	host, login := loginOptions(address, o, "-p")
	return slices.Concat([]string{path}, login, options, []string{target + "@" + host}), nil
}

// loginOptions returns the host and the options with which ssh(1) or scp(1) logs in at address with
// o. port is the program's option for the port.
func loginOptions(address string, o agent.Options, port string) (host string, options []string) {
	if len(o.KnownHosts) > 0 {
		options = append(options, "-o", command.KnownHostsOption(o.KnownHosts[0]), "-o",
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
