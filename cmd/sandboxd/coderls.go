package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// totalCell returns the changes of a branch in a cell of a table.
func totalCell(t *coding.Total) string {
	if t == nil {
		return "-"
	}
	return fmt.Sprintf("%s, +%d −%d", plural(t.Files, "file"), t.Added, t.Deleted)
}

func (c repositories) agentListCommand() *cobra.Command {
	var asJSON, watch bool
	var group string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the sandboxes with coding agents",
		Long: "List the sandboxes that sandboxd agent made on this machine: which agents need\n" +
			"attention, what the last fetch has of their branches, and how the command of\n" +
			"--check ended when agent compare ran it last.\n\n" +
			"--watch updates the list until ^C or q. Without a terminal it prints a line per\n" +
			"sandbox, and one for each change; with --json an object.",
		Example: "  sandboxd agent ls\n  sandboxd agent ls --watch --group fix",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if group != "" {
				if _, err := wire.ParseSandbox(group); err != nil {
					return err
				}
			}
			l := agentList{client: c.coding(), group: group, asJSON: asJSON}
			run := l.print
			switch {
			case watch && (asJSON || !isTerminal(os.Stdin) || !isTerminal(os.Stdout) ||
				os.Getenv("TERM") == "dumb"):
				run = l.follow
			case watch:
				run = l.watch
			}
			err := untilInterrupt(cmd.Context(), run)
			if _, decided := errors.AsType[exitCode](err); err != nil && !decided {
				err = prefixed("agent ls: ", err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep the list up to date until ^C or q")
	cmd.Flags().StringVar(&group, "group", "",
		"only the sandboxes NAME-1, NAME-2 and so on of agent -n NAME --count")
	return cmd
}

// agentTable prints a table of sandboxes.
func agentTable(out io.Writer, all []coding.Info) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tAGENT\tSTATE\tATTENTION\tBRANCH\tFETCHED\tCHECK\tLAST LINE")
	for _, i := range all {
		check := checkCell(i.Check)
		if i.Check != nil && !i.Check.At.IsZero() {
			check += " " + gateway.Ago(i.Check.At) + " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", text.Line(i.Name, 64),
			text.Line(i.Agent, 32), text.Line(string(i.State), 16), i.Attention,
			text.Line(i.Branch, 64), totalCell(i.Diff), check,
			text.Line(i.LastLine, 60))
	}
	return w.Flush()
}
