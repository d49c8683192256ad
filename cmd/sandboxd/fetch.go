package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
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
	info, err := c.sandboxNamed(ctx, name)
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
	fetched, err := c.fetch(ctx, record, info, most)
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

// sandboxNamed returns the sandbox with a name.
func (c repositories) sandboxNamed(ctx context.Context, name string) (agent.Sandbox, error) {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return agent.Sandbox{}, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return agent.Sandbox{}, &wire.Error{Code: wire.CodeNotFound,
		Message: "no sandbox " + name + " for you", Hint: "to list your sandboxes: sandboxd ls"}
}

// fetch fetches a clone. A sandbox that is stopped runs only for the fetch.
func (c repositories) fetch(ctx context.Context, r *clone.Clone, info agent.Sandbox,
	most int64) (*clone.Fetched, error) {
	if info.State == agent.SandboxStopped {
		if _, err := c.command(ctx, nil, "start", "--json", "--", info.Name); err != nil {
			return nil, err
		}
		// After an error it runs: nothing is lost by that.
		defer func() { _, _ = c.command(ctx, nil, "stop", "--json", "--", info.Name) }()
	}
	fetched, err := c.fetchNow(ctx, r, info, most)
	// It may have ended just now. The daemon notes that a moment after its connection breaks.
	for range endNoted {
		if err == nil || info.State != agent.SandboxRunning || ctx.Err() != nil {
			break
		}
		now, known := c.sandboxNamed(ctx, info.Name)
		if known == nil && now.ID == info.ID && now.State == agent.SandboxStopped {
			return c.fetch(ctx, r, now, most)
		}
		_ = pause(ctx) // the loop looks at ctx
	}
	return fetched, err
}

// endNoted is how often fetch looks whether a sandbox has ended.
const endNoted = 10

// fetchNow fetches a clone of a sandbox that is running.
func (c repositories) fetchNow(ctx context.Context, r *clone.Clone, info agent.Sandbox,
	most int64) (*clone.Fetched, error) {
	client, err := c.dial(ctx, info.Name, false)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return r.Fetch(ctx, client, most)
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
		fmt.Fprintf(out, "%s  %.10s  %s since the base\n", text.Line(short, 200), r.Commit,
			plural(r.Commits, "commit"))
	}
	if changed == 0 {
		fmt.Fprintf(out, "%s: nothing new\n", f.Sandbox)
	}
	for _, l := range f.Lost {
		fmt.Fprintf(os.Stderr, "note: not saved in %s: %s\n", f.Sandbox, text.Line(l, 60))
	}
	noteSkipped(f)
}

// noteSkipped names the repositories inside a clone.
func noteSkipped(f *clone.Fetched) {
	if len(f.Skipped) > 0 {
		fmt.Fprintf(os.Stderr, "note: not fetched from %s: repositories inside the clone: %s\n",
			f.Sandbox, text.Line(strings.Join(f.Skipped, ", "), 400))
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
	if err == nil {
		return d, nil
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
			o := removeOptions{flagSet(cmd, "force"), flagSet(cmd, "json"), discardHint}
			if err := untilInterrupt(ctx, func(ctx context.Context) error {
				return c.fetchBefore(ctx, o, selected(cmd, all, names))
			}); err != nil {
				return prefixed("rm: ", err)
			}
		}
		err = forwarded(cmd, args)
		c.forget(ctx, all)
		return err
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

// removeOptions are the options of a removal of sandboxes, whose clones are fetched before.
type removeOptions struct {
	force bool   // the sandboxes are removed while programs run
	quiet bool   // print nothing
	hint  string // how to remove a sandbox, NAME, that cannot be fetched
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

// fetchBefore fetches the clones of sandboxes. One that cannot be fetched is an error, before any
// sandbox is removed, and before any program ends.
func (c repositories) fetchBefore(ctx context.Context, o removeOptions,
	sandboxes []agent.Sandbox) error {
	type cloned struct {
		info    agent.Sandbox
		record  *clone.Clone
		fetched *clone.Fetched
	}
	var all []cloned
	for _, info := range sandboxes {
		if info.State == agent.SandboxDeleting {
			continue
		}
		record, err := c.clones().Find(info.ID)
		if err == nil && record == nil {
			continue
		}
		var fetched *clone.Fetched
		if err == nil {
			fetched, err = c.fetch(ctx, record, info, clone.MaxFetch)
		}
		if err != nil {
			return o.notFetched(info.Name, err)
		}
		all = append(all, cloned{info, record, fetched})
	}
	for _, s := range all {
		if o.force && s.info.State != agent.SandboxStopped {
			// Programs may go on to commit until the sandbox is removed. On a host that
			// cannot end them, they do.
			_, err := c.command(ctx, nil, "rescue", "--json", "--", s.info.Name)
			if err == nil {
				if s.fetched, err = c.fetch(ctx, s.record, s.info, clone.MaxFetch); err != nil {
					return o.notFetched(s.info.Name, err)
				}
			}
		}
		if len(s.fetched.Lost) > 0 {
			return &wire.Error{Code: wire.CodeUnavailable,
				Message: fmt.Sprintf("not saved in sandbox %s: %s", s.info.Name,
					strings.Join(s.fetched.Lost, ", ")),
				Hint: strings.ReplaceAll(o.hint, "NAME", s.info.Name)}
		}
		if !o.quiet {
			noteSkipped(s.fetched)
			fmt.Fprintf(os.Stderr, "fetched %s into %s\n", s.info.Name,
				text.Line(s.record.Repository, 200))
		}
	}
	return nil
}

// discardHint is removeOptions.hint of the command rm.
const discardHint = "to remove it without them, add --discard"

// notFetched returns the error for a sandbox that is not removed.
func (o removeOptions) notFetched(name string, err error) error {
	hint := strings.ReplaceAll(o.hint, "NAME", name)
	err = prefixed("commits of sandbox "+name+" cannot be fetched: ", err)
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return &wire.Error{Code: wire.CodeUnavailable, Message: err.Error(), Hint: hint}
	}
	better := *e
	better.Code, better.Hint = wire.CodeUnavailable, hint
	if e.Hint != "" {
		better.Hint = e.Hint + "; or " + hint
	}
	return &better
}

// forking makes the command fork record that the new sandbox has a clone, too.
func (c repositories) forking(cmd *cobra.Command) {
	forwarded := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names := namesOf(cmd, cmd.Flags().Args())
		if !c.clones().Any() || len(names) != 2 {
			return forwarded(cmd, args)
		}
		ctx := cmd.Context()
		from, err := c.sandboxNamed(ctx, names[0])
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
		made, err := c.sandboxNamed(ctx, names[1])
		if err != nil {
			return err
		}
		fork, err := record.Fork(ctx, made.Name, made.ID)
		if err != nil {
			return prefixed("fork: record of the clone: ", err)
		}
		return c.add(ctx, fork)
	}
}

// forget removes the records of those of all that do not exist any more.
func (c repositories) forget(ctx context.Context, all []agent.Sandbox) {
	left, err := c.sandboxes(ctx)
	if err != nil {
		return // a later rm does it
	}
	for _, s := range all {
		if slices.ContainsFunc(left, func(l agent.Sandbox) bool { return l.ID == s.ID }) {
			continue
		}
		if r, err := c.clones().Find(s.ID); err == nil && r != nil {
			if err := c.clones().Remove(ctx, r); err != nil {
				fmt.Fprintf(os.Stderr, "note: record of a clone: %s\n",
					text.Line(err.Error(), 200))
			}
		}
	}
}
