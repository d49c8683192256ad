package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// hostFlags are how a machine is logged in to. Files are those of the daemon's machine.
func hostFlags(cmd *cobra.Command, h *sandbox.Host) {
	f := cmd.Flags()
	f.StringVar(&h.Identity, "identity", "", "host: private key file, on the daemon's machine (default those of ssh_config and the agent)")
	f.StringVar(&h.PasswordFile, "password-file", "", "host: file with the password in its first line, on the daemon's machine")
	f.StringVar(&h.Tier, "tier", "", "host: at most this: guest, marks or screen (default the best there is)")
	f.StringVar(&h.Prompt, "prompt", "", "host: regular expression of the prompt, for tier screen")
	f.StringVar(&h.Accept, "accept", "", "host: fingerprint (SHA256:…) of a host key that no known_hosts file has")
}

func addCommand(env *Env) *cobra.Command {
	var spec lifecycle.NewSpec
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "add NAME ssh://[USER@]HOST[:PORT]",
		Short: "use a machine that answers SSH as a sandbox",
		Long: "Make a sandbox of a machine that answers SSH: a URI, or a name of the ssh configuration of the daemon's user. Nothing is\n" +
			"booted, and rm only forgets it: our sessions there end, and what was copied there is removed.\n\n" +
			"Its host key comes from known_hosts, or is accepted by its fingerprint. A password that no file has is asked for on the\n" +
			"terminal, once, when the machine takes no key; the daemon keeps it in memory until it ends.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := wire.ParseSandbox(args[0]); err != nil {
				return err
			}
			spec.Name, spec.Host.URI = args[0], args[1]
			began := time.Now()
			info, err := env.Hub.Create(env.asking(cmd.Context(), asJSON), env.Principal, spec, env.progress(asJSON))
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(env.describeJSON(info))
			}
			return added(env, info, time.Since(began))
		},
	}
	hostFlags(cmd, &spec.Host)
	cmd.Flags().BoolVar(&spec.Reuse, "if-missing", false, "a sandbox that has the name already is the answer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// added says that a host is a sandbox now.
func added(env *Env, info lifecycle.Info, took time.Duration) error {
	_, err := fmt.Fprintf(env.Stdout, "%s added in %.2f s (%s)\n  %s\n", info.Name, took.Seconds(), info.Image, env.Gateway.SSHCommand(info.Name))
	return err
}
