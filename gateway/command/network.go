package command

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ParseNetwork parses a network mode and, after =, the device that carries it: filtered,
// filtered=tun, filtered=proxy.
func ParseNetwork(s string) (sandbox.Network, sandbox.Via, error) {
	mode, via, said := strings.Cut(s, "=")
	switch n, v := sandbox.Network(mode), sandbox.Via(via); n {
	case sandbox.NetworkFiltered, sandbox.NetworkAllowlist:
		if said && v != sandbox.ViaTUN && v != sandbox.ViaProxy {
			return "", "", fmt.Errorf("use %s, %s=tun or %s=proxy", mode, mode, mode)
		}
		return n, v, nil
	case sandbox.NetworkNone, sandbox.NetworkBridge:
		if !said {
			return n, "", nil
		}
	}
	return "", "", errors.New("use filtered, allowlist, none or bridge")
}

// Words splits a list at commas and spaces.
func Words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// ParseAllow parses a list of hosts that sandboxes may connect to.
func ParseAllow(s string) ([]string, error) {
	list := Words(s)
	p, err := egress.NewPolicy(egress.Rules{Mode: egress.ModeFiltered, Trusted: list})
	if err != nil {
		return nil, err
	}
	for _, entry := range list {
		if _, err := p.Opens(entry, nil); err != nil {
			return nil, fmt.Errorf("allow %q: %w", entry, err)
		}
	}
	return list, nil
}

// ParseClosed parses a list of address ranges that sandboxes may not connect to. It returns nil,
// the default, for an empty list.
func ParseClosed(s string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, word := range Words(s) {
		p, err := netip.ParsePrefix(word)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%q is not an address range; write one such as 10.0.0.0/8", word)
		}
		list = append(list, p)
	}
	return list, nil
}

func allowCommand(env *Env) *cobra.Command {
	var remove, asJSON bool
	cmd := &cobra.Command{
		Use:   "allow NAME HOST… [--remove]",
		Short: "allow a sandbox to connect to more hosts",
		Long: "Allow a sandbox with the network filtered or allowlist to connect to more\n" +
			"hosts, now and after a restart. HOST is a name, *.NAME for its subdomains, an\n" +
			"address, a range such as 10.1.2.0/24, or '*' for all that network filtered\n" +
			"reaches, each with or without :PORT.\n\n" +
			"A name never opens a private address. Only the admin can open a range inside a\n" +
			"closed one.\n\n" +
			"--remove removes hosts that describe lists for this sandbox, and ends the\n" +
			"connections that nothing else allows.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, may := env.Hub.Allow, "may"
			if remove {
				change, may = env.Hub.Disallow, "may no longer"
			}
			info, err := change(cmd.Context(), env.Principal, args[0], args[1:])
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(struct {
					Name  string   `json:"name"`
					Allow []string `json:"allow"`
				}{info.Name, info.Allow})
			}
			fmt.Fprintf(env.Stdout, "%s %s connect to %s\n", info.Name, may,
				strings.Join(args[1:], ", "))
			return nil
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the hosts instead of adding them")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object with all additional hosts")
	return cmd
}

// portCommand is port on the control host, which cannot listen on the caller's machine. The command
// line tool has its own.
func portCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "port NAME PORT",
		Short: "print the ssh command that forwards a local port to a sandbox",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usage("port %q: must be a number from 1 to 65535", args[1])
			}
			info, err := env.Hub.Get(cmd.Context(), env.Principal, args[0])
			if err != nil {
				return err
			}
			ssh := strings.TrimPrefix(env.Gateway.SSHCommand(info.Name), "ssh ")
			_, err = fmt.Fprintf(env.Stdout, "ssh -N -L %d:localhost:%d %s\n", port, port, ssh)
			return err
		},
	}
}

// reportDenied prints the connections that the network blocked during a call, and the command that
// allows them if the caller may run it.
func (env *Env) reportDenied(say func(format string, args ...any), t wire.Target,
	denied []wire.Denial) {
	const most = 5
	for _, d := range denied[:min(len(denied), most)] {
		say("network blocked %s", text.Line(live.DenialText(d), 300))
	}
	if more := len(denied) - most; more > 0 {
		say("network blocked %d more: see --json", more)
	}
	at := slices.IndexFunc(denied, func(d wire.Denial) bool { return d.Allow != "" })
	if at < 0 {
		return
	}
	err := env.Hub.MayAllow(env.Principal, t.Sandbox, denied[at].Allow)
	switch refused, ok := errors.AsType[*wire.Error](err); {
	case err == nil:
		say("  allow it: sandboxd allow %s %s", t.Sandbox, text.Line(denied[at].Allow, 300))
	case ok:
		say("  you may not allow it: %s", text.Line(refused.Message, 300))
	}
}
