package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func poolCommand(env *Env) *cobra.Command {
	var asJSON, drain bool
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "show how many pooled sandboxes are available",
		Long: "Show the sandboxes that are booted in advance (keys pool.size and\n" +
			"pool.images). They have no owner until new, or a login with a new name, takes\n" +
			"one. Only a request for a name and a pooled image, with no other option, takes\n" +
			"one. Sandboxes that an API keeps for an owner (key agentrun.warm) are listed,\n" +
			"too.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if drain {
				if err := env.Hub.Drain(cmd.Context(), env.Principal); err != nil {
					return err
				}
			}
			all := env.Hub.Pool()
			if asJSON {
				for _, i := range all {
					if err := env.printJSON(i); err != nil {
						return err
					}
				}
				return nil
			}
			if len(all) == 0 {
				fmt.Fprintln(env.Stdout,
					"no pool: sandboxes are booted on request (pool.size is 0)")
				return nil
			}
			return table(env.Stdout, func(w io.Writer) {
				fmt.Fprintln(w, "IMAGE\tREADY\tOF\tTROUBLE")
				for _, i := range all {
					image := i.Image
					if i.Use != "" {
						image += " for " + i.Use + " of " + i.Owner
					}
					fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", image, i.Ready, i.Size, dash(i.Trouble))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&drain, "drain", false,
		"remove the pooled sandboxes, and boot no new ones until the daemon restarts")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per image")
	return cmd
}
