package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// hostFlags adds the flags for the login to a machine. Files are on the daemon's machine.
func hostFlags(cmd *cobra.Command, h *sandbox.Host) {
	f := cmd.Flags()
	f.StringVar(&h.Identity, "identity", "",
		"private key file on the daemon's machine for the login to the host (default: keys of "+
			"ssh_config and the SSH agent)")
	f.StringVar(&h.PasswordFile, "password-file", "",
		"file on the daemon's machine whose first line is the password of the host")
	f.StringVar(&h.Tier, "tier", "",
		"integration level of the host: guest, marks or screen; fails if not available (default: "+
			"the best available)")
	f.StringVar(&h.Prompt, "prompt", "",
		"regular expression that matches the shell prompt of the host; for tier screen")
	f.StringVar(&h.Accept, "accept", "",
		"accept this host key, a fingerprint (SHA256:…), if no known_hosts file lists it")
}

func addCommand(env *Env) *cobra.Command {
	var spec lifecycle.NewSpec
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "add NAME ssh://[USER@]HOST[:PORT]",
		Short: "use an existing machine as a sandbox, over SSH",
		Long: "Use an existing machine as a sandbox, over SSH. The machine is a URI, or a\n" +
			"Host of the daemon's ssh_config. rm ends the sessions, deletes what sandboxd\n" +
			"copied to the machine, and leaves everything else on it.\n\n" +
			"The host key must be in known_hosts, or match --accept. If the machine accepts\n" +
			"no key and there is no --password-file, you are asked for the password on the\n" +
			"terminal. The daemon keeps it in memory until the daemon ends.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := wire.ParseSandbox(args[0]); err != nil {
				return err
			}
			spec.Name, spec.Host.URI = args[0], args[1]
			began := time.Now()
			info, err := env.Hub.Create(env.asking(cmd.Context(), asJSON), env.Principal, spec,
				env.progress(asJSON))
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
	cmd.Flags().BoolVar(&spec.Reuse, "if-missing", false,
		"return the existing sandbox instead of failing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// added prints that a host was added as a sandbox.
func added(env *Env, info lifecycle.Info, took time.Duration) error {
	_, err := fmt.Fprintf(env.Stdout, "%s added in %.2f s (%s)\n  %s\n",
		info.Name, took.Seconds(), info.Image, env.Gateway.SSHCommand(info.Name))
	return err
}
