package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// Lifetimes of the sandbox in which an image is prepared, if its removal fails.
const (
	prepareTTL    = time.Hour
	prepareDelete = 10 * time.Minute
)

// prepareCommand prints the image that setup commands make, for new --image. If sandboxes are not
// saved as images, with --or-setup it prints the image to begin with, and in "setup" the commands
// that are left to run in each sandbox. It is hidden: only programs use it.
func prepareCommand(env *Env) *cobra.Command {
	var spec lifecycle.NewSpec
	var network string
	var asJSON, orSetup bool
	cmd := &cobra.Command{
		Use:    "prepare --setup CMD [flags]",
		Short:  "print the image that setup commands make; make it if it is missing",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if network != "" {
				var err error
				if spec.Network, spec.Via, err = ParseNetwork(network); err != nil {
					return usage("--network %q: %v", network, err)
				}
			}
			spec.TTL, spec.DeleteAfter = prepareTTL, prepareDelete
			image, err := env.Hub.Prepare(cmd.Context(), env.Principal, spec, env.progress(false))
			switch {
			case errors.Is(err, lifecycle.ErrNoImages) && asJSON && orSetup:
				return env.printJSON(map[string]any{"image": spec.Image, "setup": spec.Setup})
			case err != nil:
				return err
			case asJSON:
				return env.printJSON(map[string]string{"image": image})
			}
			fmt.Fprintln(env.Stdout, image)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&spec.Setup, "setup", nil, "command to run in the sandbox; repeatable")
	f.StringVar(&spec.Image, "image", "", "image to begin with")
	f.StringVar(&network, "network", "", "network mode of the setup")
	f.StringArrayVar(&spec.Allow, "allow", nil, "additional host to allow; repeatable")
	f.BoolVar(&asJSON, "json", false, "print one object")
	f.BoolVar(&orSetup, "or-setup", false, "with --json: print the commands if no image can be saved")
	return cmd
}
