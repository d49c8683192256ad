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

// ParseNetwork reads a network mode that can be asked for, and how it has to be carried: filtered, filtered=tun, filtered=proxy.
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

// Words are the parts of a list in one value: by commas, spaces or both.
func Words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// ParseAllow reads a list of what sandboxes may connect to.
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

// ParseClosed reads a list of ranges that are closed to sandboxes. An empty one means the usual: nil.
func ParseClosed(s string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, word := range Words(s) {
		p, err := netip.ParsePrefix(word)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%q is no range such as 10.0.0.0/8", word)
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
		Long: "Let a sandbox whose network is filtered or allowlist connect to more, now and after every restart. HOST is a name,\n" +
			"*.name for all below one, an address or a range such as 10.1.2.0/24, each with :port or without.\n\n" +
			"A name opens no private address; a range inside of a closed one does, and only for the daemon's own user.\n\n" +
			"--remove takes back what was allowed to this sandbox, as describe lists it; connections that nothing else allows end.",
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
			fmt.Fprintf(env.Stdout, "%s %s connect to %s\n", info.Name, may, strings.Join(args[1:], ", "))
			return nil
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "take it back")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object: all that is allowed beside the defaults")
	return cmd
}

// portCommand is what the lobby can do about a port: the program on the caller's machine listens itself.
func portCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "port NAME PORT",
		Short: "print the ssh command that forwards a local port to a sandbox",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usage("port: %q is not a number from 1 to 65535", args[1])
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

// reportDenied says which connections were refused while a call lasted, and what would open them, where the caller can have that done.
func (env *Env) reportDenied(say func(format string, args ...any), t wire.Target, denied []wire.Denial) {
	const most = 5
	for _, d := range denied[:min(len(denied), most)] {
		say("network refused %s", text.Line(live.DenialText(d), 300))
	}
	if more := len(denied) - most; more > 0 {
		say("network refused %d more: see --json", more)
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
		say("  not yours to allow: %s", text.Line(refused.Message, 300))
	}
}
