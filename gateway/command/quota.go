package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func quotaCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "show your quota and how much of it is used",
		Long: "Say what your sandboxes have of what they may have together, and by which key of the configuration that is set. Of memory, cores\n" +
			"and disk the limits are added up, not what is used. The daemon's own user is told of all owners' sandboxes, too.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := env.Hub.Allowances(cmd.Context(), env.Principal)
			if err != nil {
				return err
			}
			if asJSON {
				for _, a := range all {
					if err := env.printJSON(a); err != nil {
						return err
					}
				}
				return nil
			}
			return table(env.Stdout, func(w io.Writer) {
				fmt.Fprintln(w, "OF\tWHAT\tHAVE\tMOST\tKEY")
				for _, a := range all {
					have, most := a.Text()
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", a.Of, a.What, have, most, a.Key)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per line of the table")
	return cmd
}
