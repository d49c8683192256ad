package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// totalCell returns the changes of a branch in a cell of a table.
func totalCell(t *coding.Total) string {
	if t == nil {
		return "-"
	}
	return fmt.Sprintf("%s, +%d −%d", plural(t.Files, "file"), t.Added, t.Deleted)
}

func (c repositories) agentListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the sandboxes with coding agents",
		Long: "List the sandboxes that sandboxd agent made on this machine: which agents need\n" +
			"attention, and what the last fetch has of their branches.",
		Example: "  sandboxd agent ls\n  sandboxd agent ls --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.coding().List(cmd.Context())
			if err != nil {
				return prefixed("agent ls: ", err)
			}
			if asJSON {
				for _, i := range all {
					if err := text.WriteJSON(os.Stdout, i); err != nil {
						return err
					}
				}
				return nil
			}
			out := shownOn(os.Stdout)
			defer out.Close()
			w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tAGENT\tSTATE\tATTENTION\tBRANCH\tFETCHED\tLAST LINE")
			for _, i := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, text.Line(i.Agent, 32),
					i.State, i.Attention, text.Line(i.Branch, 64), totalCell(i.Diff),
					text.Line(i.LastLine, 60))
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}
