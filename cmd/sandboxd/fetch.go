package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func (c repositories) fetchCommand() *cobra.Command {
	var asJSON bool
	var most string
	cmd := &cobra.Command{
		Use:   "fetch NAME",
		Short: "get the commits of a clone in a sandbox",
		Long: "Fetch the branches of the clone in a sandbox into the repository that it was\n" +
			"made from: refs/sandboxes/NAME/BRANCH. Uncommitted changes, stashes and commits\n" +
			"on no branch go to refs/sandboxd/saved/NAME. Your branches and files stay as\n" +
			"they are, and nothing of the sandbox runs on this machine.\n\n" +
			"A stopped sandbox is started for the time of the fetch.",
		Example: "  sandboxd fetch web\n  git merge sandboxes/web/web",
		Args:    oneName("fetch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			limit := int64(clone.MaxFetch)
			if most != "" {
				var err error
				if limit, err = sandbox.ParseSize(most); err != nil {
					return usage("fetch: --max-size: "+err.Error(),
						"write a size such as 500m or 4g")
				}
			}
			return untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				return c.fetchNamed(ctx, args[0], limit, asJSON)
			})
		},
	}
	cmd.Flags().StringVar(&most, "max-size", "", "most to receive, such as 500m (default 2g)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	command.ByName(cmd)
	return cmd
}

// fetchNamed fetches the clone of a sandbox and prints the result.
func (c repositories) fetchNamed(ctx context.Context, name string, most int64, asJSON bool) error {
	info, err := c.coding().Named(ctx, name)
	if err != nil {
		return prefixed("fetch: ", err)
	}
	record, err := c.clones().Find(info.ID)
	if err != nil {
		return err
	}
	if record == nil {
		return &wire.Error{Code: wire.CodeNotFound,
			Message: "fetch: sandbox " + info.Name +
				" has no clone of a repository of this machine",
			Hint: "create one: sandboxd new NAME --clone"}
	}
	fetched, err := c.coding().Fetch(ctx, record, info, most)
	if err != nil {
		return prefixed("fetch: ", err)
	}
	if asJSON {
		return text.WriteJSON(os.Stdout, fetched)
	}
	printFetched(os.Stdout, fetched)
	return nil
}

// oneName checks that the only argument is the name of a sandbox.
func oneName(verb string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(verb+": needs one sandbox", "usage: sandboxd "+verb+" NAME")
		}
		_, err := wire.ParseSandbox(args[0])
		return err
	}
}

// printFetched lists the refs that have commits of the sandbox.
func printFetched(w *os.File, f *clone.Fetched) {
	out := shownOn(w)
	defer out.Close()
	changed := 0
	for _, r := range f.Refs {
		if r.Before == r.Commit {
			continue
		}
		changed++
		short := strings.TrimPrefix(r.Name, "refs/")
		commits := plural(r.Commits, "commit")
		if r.Commits < 0 {
			commits = "many commits"
		}
		fmt.Fprintf(out, "%s  %.10s  %s since the base\n", text.Line(short, 200), r.Commit, commits)
	}
	if changed == 0 {
		fmt.Fprintf(out, "%s: nothing new\n", f.Sandbox)
	}
	noteLeftOut(f)
}

// printArrivals prints a line on standard error for each ref that changed, branches first.
func printArrivals(f *clone.Fetched) {
	out := shownOn(os.Stderr)
	defer out.Close()
	isSaved := func(r clone.Ref) bool { return strings.HasPrefix(r.Name, "refs/sandboxd/saved/") }
	for _, saved := range []bool{false, true} {
		for _, r := range f.Refs {
			name := text.Line(strings.TrimPrefix(r.Name, "refs/"), 200)
			switch {
			case isSaved(r) != saved, r.Commit == r.Before:
			case r.Before == "" && r.Commit == f.Base: // the branch of a new clone
			case saved && strings.HasSuffix(r.Name, "/wip"):
				fmt.Fprintf(out, "fetched uncommitted changes to %s\n", name)
			case r.New <= 0: // the branch was set to an earlier commit, or has too many
				fmt.Fprintf(out, "fetched %s at %.10s\n", name, r.Commit)
			default:
				fmt.Fprintf(out, "fetched %s to %s\n", plural(r.New, "commit"), name)
			}
		}
	}
}

// silentFetch is how long a fetch that nobody asked for may take without a line about it.
const silentFetch = time.Second

// fetchLast fetches the clone of a sandbox that runs, and prints what came unless quiet is set. An
// error is a note.
func (c repositories) fetchLast(ctx context.Context, info agent.Sandbox, quiet bool) {
	slow := time.AfterFunc(silentFetch, func() {
		if !quiet {
			fmt.Fprintf(os.Stderr, "fetching the commits of %s\n", info.Name)
		}
	})
	f, err := c.coding().FetchRunning(ctx, info)
	slow.Stop()
	switch {
	case err != nil:
		noteUnfetched(info.Name, err)
	case f != nil:
		if !quiet {
			printArrivals(f)
		}
		noteLeftOut(f)
	}
}

func noteUnfetched(name string, err error) {
	hint := ""
	if !errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
		hint = "; to get them: sandboxd fetch " + name
	}
	fmt.Fprintf(os.Stderr, "note: commits of sandbox %s were not fetched: %s%s\n", name,
		text.Line(err.Error(), 400), hint)
}

// noteLeftOut names what could not be saved in the sandbox, and the repositories and work trees
// that were not fetched.
func noteLeftOut(f *clone.Fetched) {
	for _, l := range f.Lost {
		fmt.Fprintf(os.Stderr, "note: not saved in %s: %s\n", f.Sandbox, text.Line(l, 60))
	}
	if len(f.Skipped) > 0 {
		fmt.Fprintf(os.Stderr, "note: not fetched from %s: %s\n", f.Sandbox,
			text.Line(strings.Join(f.Skipped, ", "), 400))
	}
}

func (c repositories) diffCommand() *cobra.Command {
	var asJSON, stat, wip bool
	cmd := &cobra.Command{
		Use:   "diff NAME [BRANCH]",
		Short: "show what a clone in a sandbox changed",
		Long: "Show the difference between the commit that a clone in a sandbox began at and\n" +
			"what sandboxd fetch has fetched of BRANCH. The default is the branch with the\n" +
			"name of the sandbox. It also works after the sandbox was removed, in the\n" +
			"repository that was cloned. No diff programs of git's configuration run.",
		Example: "  sandboxd fetch web && sandboxd diff web --stat\n  sandboxd diff web --wip",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return usage("diff: needs one sandbox", "usage: sandboxd diff NAME [BRANCH]")
			}
			return oneName("diff")(cmd, args[:1])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			branch := strings.Join(args[1:], "")
			if wip && branch != "" {
				return usage("diff: --wip and BRANCH are mutually exclusive", "omit one of them")
			}
			d, err := c.diff(cmd.Context(), args[0], branch, wip)
			if err != nil {
				return prefixed("diff: ", err)
			}
			if asJSON {
				return text.WriteJSON(os.Stdout, d)
			}
			out := shownOn(os.Stdout)
			defer out.Close()
			if d.Wip != "" {
				fmt.Fprintf(os.Stderr, "note: %s also has uncommitted changes; to see them: "+
					"sandboxd diff %[1]s --wip\n", args[0])
			}
			return d.Write(cmd.Context(), out, stat)
		},
	}
	cmd.Flags().BoolVar(&stat, "stat", false, "print a table of the changed files")
	cmd.Flags().BoolVar(&wip, "wip", false, "include what was not committed in the sandbox")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object, with the changed files")
	command.ByName(cmd)
	return cmd
}

// diff looks in the repository of the working directory, then in the one of the sandbox's record.
func (c repositories) diff(ctx context.Context, name, branch string,
	wip bool) (*clone.Diff, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	d, err := clone.NewDiff(ctx, dir, name, branch, wip)
	if err == nil || errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) {
		return d, err
	}
	if r, found := c.clones().Named(name); found == nil && r != nil {
		return clone.NewDiff(ctx, r.Repository, name, branch, wip)
	}
	return nil, err
}

// fetching makes the command rm fetch clones before it removes their sandboxes.
func (c repositories) fetching(cmd *cobra.Command) {
	var discard bool
	cmd.Long += "\n\nIf a sandbox has a clone of a repository of this machine, rm first fetches its\n" +
		"commits. If it cannot, it removes nothing, unless --discard is set."
	cmd.Flags().BoolVar(&discard, "discard", false,
		"do not fetch the commits of clones before removing their sandboxes")
	forwarded := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// Without a record, and with wrong arguments, the command is the daemon's alone.
		args := cmd.Flags().Args()
		names := namesOf(cmd, args)
		if !c.clones().Any() || flagSet(cmd, "all") == (len(names) > 0) {
			return forwarded(cmd, args)
		}
		ctx := cmd.Context()
		all, err := c.sandboxes(ctx)
		if err != nil {
			return err
		}
		if isTerminal(os.Stdin) && isTerminal(os.Stdout) && wantsTerminal(cmd) {
			if err := confirmRemoval(cmd, all, names); err != nil {
				return err
			}
			if all, err = c.sandboxes(ctx); err != nil { // they may be others by now
				return err
			}
		}
		if !discard {
			o := coding.Removal{Force: flagSet(cmd, "force"), Hint: discardHint}
			if err := untilInterrupt(ctx, func(ctx context.Context) error {
				fetched, err := c.coding().FetchBefore(ctx, o, selected(cmd, all, names))
				for _, f := range fetched {
					if !flagSet(cmd, "json") {
						printSaved(f)
					}
				}
				return err
			}); err != nil {
				return prefixed("rm: ", err)
			}
		}
		err = forwarded(cmd, args)
		c.coding().Forget(ctx, all)
		return err
	}
}

// fetchingFirst makes the command stop fetch clones before it stops their sandboxes.
func (c repositories) fetchingFirst(cmd *cobra.Command) {
	var without bool
	cmd.Long = "Stop sandboxes. Their files stay, their programs end.\n\n" +
		"If a running sandbox has a clone of a repository of this machine, stop first\n" +
		"fetches its commits, for at most a minute. If it cannot, a note says so, and it\n" +
		"stops the sandbox: the commits stay in it."
	cmd.Flags().BoolVar(&without, "no-fetch", false, "do not fetch the commits of clones first")
	forwarded := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		args := cmd.Flags().Args()
		names := namesOf(cmd, args)
		if !without && c.clones().Any() && len(names) > 0 {
			if err := untilInterrupt(cmd.Context(), func(ctx context.Context) error {
				c.fetchRunning(ctx, names, flagSet(cmd, "json"))
				return context.Cause(ctx)
			}); err != nil {
				return err
			}
		}
		return forwarded(cmd, args)
	}
}

// fetchRunning fetches the clones of those of names that are running, at the same time.
func (c repositories) fetchRunning(ctx context.Context, names []string, quiet bool) {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return // stop prints it
	}
	var fetches sync.WaitGroup
	defer fetches.Wait()
	for _, info := range all {
		if info.State != agent.SandboxRunning || !slices.Contains(names, info.Name) {
			continue
		}
		fetches.Go(func() { c.fetchLast(ctx, info, quiet) })
	}
}

// confirmRemoval asks as the daemon does before it removes active sandboxes, and sets --force. It
// asks here because nothing may be committed between the fetch and the removal.
func confirmRemoval(cmd *cobra.Command, all []agent.Sandbox, names []string) error {
	var active []string
	for _, s := range selected(cmd, all, names) {
		if s.State == agent.SandboxRunning || s.State == agent.SandboxPaused {
			active = append(active, s.Name)
		}
	}
	if len(active) == 0 {
		return nil
	}
	question := active[0] + " is running. Remove it with its files and recordings?"
	if len(active) > 1 {
		question = strings.Join(active, ", ") +
			" are running. Remove them with their files and recordings?"
	}
	if err := confirm(question); err != nil {
		return err
	}
	return cmd.Flags().Set("force", "true")
}

// confirm asks a question on the terminal before sandboxes are removed. No is an error.
func confirm(question string) error {
	fmt.Fprint(os.Stderr, question+" [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n') // no line is no
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		fmt.Fprintln(os.Stderr, "canceled: no sandbox was removed")
		return exitCode(wire.ExitFailed)
	}
	return nil
}

// selected returns those of all that the command rm names.
func selected(cmd *cobra.Command, all []agent.Sandbox, names []string) (some []agent.Sandbox) {
	for _, s := range all {
		if flagSet(cmd, "all") || slices.Contains(names, s.Name) {
			some = append(some, s)
		}
	}
	return some
}

// printSaved says on standard error that the commits of a sandbox were fetched before its removal.
func printSaved(f *clone.Fetched) {
	noteLeftOut(f)
	fmt.Fprintf(os.Stderr, "fetched %s into %s\n", f.Sandbox, text.Line(f.Repository, 200))
}

// discardHint is coding.Removal.Hint of the command rm.
const discardHint = "to remove it without them, add --discard"

// forking makes the command fork record that the new sandbox has a clone, too.
func (c repositories) forking(cmd *cobra.Command) {
	forwarded := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names := namesOf(cmd, cmd.Flags().Args())
		if !c.clones().Any() || len(names) != 2 {
			return forwarded(cmd, args)
		}
		ctx := cmd.Context()
		from, err := c.coding().Named(ctx, names[0])
		if err != nil {
			return forwarded(cmd, args) // it prints the better error
		}
		record, err := c.clones().Find(from.ID)
		if err != nil {
			return err
		}
		if err := forwarded(cmd, args); err != nil || record == nil {
			return err
		}
		made, err := c.coding().Named(ctx, names[1])
		if err != nil {
			return err
		}
		fork, err := record.Fork(ctx, made.Name, made.ID)
		if fork == nil {
			return prefixed("fork: record of the clone: ", err)
		} else if err != nil { // without a record, rm would not fetch
			return prefixed("fork: record of the clone: ", errors.Join(err, c.clones().Add(fork)))
		}
		return c.coding().Add(ctx, fork)
	}
}
