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
		Long: "Show your quota: what all your sandboxes use together, the most they may use,\n" +
			"and the configuration key that sets it. For memory, CPU and disk the limits of\n" +
			"the sandboxes count, not their usage. The admin also sees the total of all\n" +
			"owners.",
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
