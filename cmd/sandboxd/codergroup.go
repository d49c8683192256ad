package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// all creates several sandboxes at once, each with the same prompt. An error of one leaves the
// others.
func (k *codingAgent) all(ctx context.Context, l *coding.Launch) error {
	names := l.Names
	failures := make([]error, len(names))
	var launches sync.WaitGroup
	for i, name := range names {
		launches.Go(func() { _, failures[i] = k.one(ctx, l, name) })
	}
	launches.Wait()
	sshHosts{k.cli}.update(ctx)
	var missing, idle []string
	for i, err := range failures {
		if err == nil {
			continue
		}
		if _, runs := errors.AsType[notEntered](err); runs {
			idle = append(idle, names[i])
		} else {
			missing = append(missing, names[i])
		}
		fmt.Fprintf(os.Stderr, "note: %s: %s\n", names[i], text.Line(err.Error(), 400))
	}
	if len(missing) < len(names) && !k.asJSON {
		fmt.Printf("  to see how they go:   sandboxd agent ls --group %[1]s\n"+
			"  to compare them:      sandboxd agent compare %[1]s\n"+
			"  to keep one:          sandboxd agent keep %[1]s-N\n", k.name)
	}
	var said []string
	if len(missing) > 0 {
		said = append(said, "not created: "+strings.Join(missing, ", "))
	}
	if len(idle) > 0 {
		said = append(said, "without the prompt: "+strings.Join(idle, ", "))
	}
	if len(said) == 0 {
		return nil
	}
	return wire.Errorf(wire.CodeUnavailable, "agent: %s", strings.Join(said, "; "))
}

// checkCell returns the result of a check in a cell of a table.
func checkCell(r *clone.CheckResult) string {
	switch {
	case r == nil:
		return "-"
	case r.ExitCode == 0:
		return "passed"
	}
	return fmt.Sprintf("failed (exit code %d)", r.ExitCode)
}

func (c repositories) compareCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare NAME",
		Short: "compare the work of the agents that --count started",
		Long: "Fetch the commits of the sandboxes NAME-1, NAME-2 and so on, run the command of\n" +
			"agent --check in each clone, and print the results side by side. The check runs\n" +
			"in the directory in which the agent works.",
		Example: "  sandboxd agent claude \"fix it\" -n fix --count 3 --check 'make test'\n" +
			"  sandboxd agent compare fix",
		Args: oneName("agent compare"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				all, err := c.coding().Compare(ctx, args[0])
				if err != nil {
					return prefixed("agent compare: ", err)
				}
				if asJSON {
					for _, each := range all {
						if err := text.WriteJSON(os.Stdout, each); err != nil {
							return err
						}
					}
					return nil
				}
				out := shownOn(os.Stdout)
				defer out.Close()
				return printCandidates(out, all)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per sandbox")
	return cmd
}

// maxFiles is how many files compare prints for people.
const maxFiles = 200

// printCandidates prints the totals of each sandbox, and what each changed in each file.
func printCandidates(out io.Writer, all []*coding.Candidate) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tCHECK\tCOMMITS\tCHANGES")
	header := []string{"FILE"}
	cells := make(map[string][]string) // by path; a cell for each sandbox
	for i, each := range all {
		changes := totalCell(coding.Sum(each.Files))
		if each.Uncommitted {
			changes += ", and uncommitted ones"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", each.Name, each.State, checkCell(each.Check),
			each.Commits, changes)
		header = append(header, each.Name)
		for _, f := range each.Files {
			if cells[f.Path] == nil {
				cells[f.Path] = slices.Repeat([]string{"-"}, len(all))
			}
			cells[f.Path][i] = fmt.Sprintf("+%d −%d", f.Added, f.Deleted)
			if f.Binary {
				cells[f.Path][i] = "binary"
			}
		}
	}
	files := slices.Sorted(maps.Keys(cells))
	if len(files) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(header, "\t"))
	}
	for _, path := range files[:min(len(files), maxFiles)] {
		fmt.Fprintf(w, "%s\t%s\n", text.Line(path, 60), strings.Join(cells[path], "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if n := len(files) - maxFiles; n > 0 {
		fmt.Fprintf(os.Stderr, "note: %s more: see sandboxd diff NAME --stat, or --json\n",
			plural(n, "file"))
	}
	for _, each := range all {
		if each.Moved() {
			fmt.Fprintf(os.Stderr, "note: %s: on branch %s\n", each.Name,
				text.Line(each.Branch, 100))
		}
		if each.Error != "" {
			fmt.Fprintf(os.Stderr, "note: %s: %s\n", each.Name, each.Error)
		}
		if each.Check != nil && each.Check.ExitCode != 0 && each.Check.LastLine != "" {
			fmt.Fprintf(os.Stderr, "note: %s: check: %s\n", each.Name, each.Check.LastLine)
		}
	}
	return nil
}

func (c repositories) keepCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "keep NAME",
		Short: "keep one sandbox of a group and remove the others",
		Long: "Fetch the commits of one of the sandboxes that agent --count started, and\n" +
			"remove the others of its group. Their commits are fetched before.",
		Example: "  sandboxd agent keep fix-3",
		Args:    oneName("agent keep"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				err := c.keep(ctx, args[0], force)
				if _, decided := errors.AsType[exitCode](err); err != nil && !decided {
					err = prefixed("agent keep: ", err)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

// keep fetches the sandbox name and removes the others of its group.
func (c repositories) keep(ctx context.Context, name string, force bool) error {
	k, err := c.coding().Keep(ctx, name)
	if err != nil {
		return err
	}
	printFetched(os.Stdout, k.Fetched)
	var names []string
	for _, s := range k.Others {
		names = append(names, s.Name)
	}
	switch {
	case len(names) == 0:
		fmt.Printf("%s: no other sandbox of its group is left\n", name)
	case !force && (!isTerminal(os.Stdin) || !isTerminal(os.Stdout)):
		return usage("removes "+strings.Join(names, ", ")+", and cannot ask without a terminal",
			"add --force")
	case !force:
		if err := confirm("Remove " + strings.Join(names, ", ") +
			" with their files and recordings?"); err != nil {
			return err
		}
	}
	fetched, removed, err := k.Remove(ctx)
	for _, f := range fetched {
		printSaved(f)
	}
	if len(names) > 0 {
		sshHosts(c).update(ctx)
	}
	if err == nil && len(names) > 0 {
		fmt.Printf("removed %s\n", strings.Join(removed, ", "))
	}
	return err
}
