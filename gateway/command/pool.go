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
		Short: "show how many pooled sandboxes are ready",
		Long: "Say how many sandboxes were booted before anybody asked for them (keys pool.size and pool.images). They are nobody's until\n" +
			"new, or a login at a new name, takes one: it asks for nothing but a name and one of these images. Those that a door keeps\n" +
			"for somebody's calls (key agentrun.warm) are listed, too.",
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
				fmt.Fprintln(env.Stdout, "no pool: sandboxes are booted when somebody asks (pool.size is 0)")
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
	cmd.Flags().BoolVar(&drain, "drain", false, "remove what stands ready, and boot no more ahead until the daemon is started again")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per image")
	return cmd
}
