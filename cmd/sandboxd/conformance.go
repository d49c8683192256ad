package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/corpus"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// conformanceFlags are the flags of conformance.
type conformanceFlags struct {
	groups     []string
	cases      []string
	tier       string
	privileged string
	slow       float64
	list       bool
	json       bool
}

func (c *cli) conformanceCommand() *cobra.Command {
	var f conformanceFlags
	cmd := &cobra.Command{
		Use:   "conformance TARGET",
		Short: "run the terminal conformance suite in a sandbox",
		Long: "Run the terminal conformance suite in a sandbox over SSH, each case in a new\n" +
			"session. TARGET is the name of a sandbox or an ssh URI. Programs that cases\n" +
			"need are installed in it.\n\n" +
			"The exit code is 0 if all required cases pass. Cases that could not run count\n" +
			"as failed. Cases that cannot pass with the selected tier are not required, and\n" +
			"print why.",
		Args: func(cmd *cobra.Command, args []string) error {
			if f.list != (len(args) == 0) || len(args) > 1 {
				return usage("conformance: name one sandbox, or use --list",
					"usage: "+cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cases, tiers, err := f.choose()
			if err != nil {
				return err
			}
			if f.list {
				return listCases(cases, f.json)
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return c.conformance(ctx, args[0], f, cases, tiers)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.groups, "group", nil, "run only this group of cases; repeatable")
	flags.StringSliceVar(&f.cases, "case", nil,
		"run only this case, written as GROUP/CASE; repeatable")
	flags.StringVar(&f.tier, "tier", string(conformance.Full),
		"evidence that sessions may use: full, no-process, no-marks, neither or all")
	flags.StringVar(&f.privileged, "privileged", "",
		"sandbox created with --sudo, for cases that need setuid programs")
	flags.Float64Var(&f.slow, "slow", 1,
		"multiply all time limits by this factor, for a slow machine")
	flags.BoolVar(&f.list, "list", false,
		"print the cases and run none; with --json all their data")
	flags.BoolVar(&f.json, "json", false, "print one object per case, then the score")
	command.ByName(cmd)
	cmd.AddCommand(captureCommand(c), replayCasesCommand())
	return cmd
}

// choose returns the selected cases and tiers.
func (f conformanceFlags) choose() ([]conformance.Case, []conformance.Tier, error) {
	all := corpus.All()
	groups := corpus.Groups(all)
	for _, g := range f.groups {
		if !slices.Contains(groups, g) {
			return nil, nil, usage(fmt.Sprintf("conformance: unknown group %q", g),
				"groups: "+strings.Join(groups, " "))
		}
	}
	for _, id := range f.cases {
		if !slices.ContainsFunc(all, func(c conformance.Case) bool { return c.ID() == id }) {
			return nil, nil, usage(fmt.Sprintf("conformance: unknown case %q", id),
				"to list the cases: sandboxd conformance --list")
		}
	}
	cases := slices.DeleteFunc(all, func(c conformance.Case) bool {
		return len(f.groups) > 0 && !slices.Contains(f.groups, c.Group) || len(f.cases) > 0 &&
			!slices.Contains(f.cases, c.ID())
	})
	if f.tier == "all" {
		return cases, conformance.Tiers, nil
	}
	if !slices.Contains(conformance.Tiers, conformance.Tier(f.tier)) {
		return nil, nil, usage(fmt.Sprintf("conformance: unknown tier %q", f.tier),
			"tiers: full no-process no-marks neither all")
	}
	return cases, []conformance.Tier{conformance.Tier(f.tier)}, nil
}

// listCases prints the cases, as text or as JSON.
func listCases(cases []conformance.Case, asJSON bool) error {
	if !asJSON {
		for _, c := range cases {
			fmt.Printf("%-40s %s\n", c.ID(), c.About)
		}
		return nil
	}
	for _, c := range cases {
		if err := text.WriteJSON(os.Stdout, c); err != nil {
			return err
		}
	}
	return nil
}

// conformance runs cases and prints their outcomes.
func (c *cli) conformance(ctx context.Context, name string, f conformanceFlags,
	cases []conformance.Case, tiers []conformance.Tier) error {
	o := conformance.Options{Packages: corpus.Packages, Tiers: tiers, Slow: f.slow,
		Dial: func(ctx context.Context) (*agent.Client, error) {
			return c.dialTarget(ctx, name)
		},
		Install: func(what string) {
			fmt.Fprintf(os.Stderr, "installing %s\n", text.Line(what, 200))
		},
		Report: func(out conformance.Outcome) { printOutcome(os.Stdout, out) }}
	if f.json {
		// the score reports a write error
		o.Report = func(out conformance.Outcome) { _ = text.WriteJSON(os.Stdout, out) }
	}
	var err error
	if o.Client, err = c.dialTarget(ctx, name); err != nil {
		return err
	}
	defer o.Client.Close()
	if f.privileged != "" {
		if o.Privileged, err = c.dialTarget(ctx, f.privileged); err != nil {
			return err
		}
		defer o.Privileged.Close()
	}
	all, err := conformance.All(ctx, cases, o)
	if err != nil {
		return err
	}
	score := conformance.ScoreOf(all)
	if f.json {
		err = text.WriteJSON(os.Stdout, map[string]conformance.Score{"score": score})
	} else {
		_, err = fmt.Printf("\n%s", score.Table())
	}
	if err == nil && !score.OK() {
		return exitCode(1)
	}
	return err
}

// dialTarget connects to a sandbox by its name, or to any target by its URI.
func (c *cli) dialTarget(ctx context.Context, name string) (*agent.Client, error) {
	if !strings.Contains(name, "@") && !strings.Contains(name, "://") {
		return c.dial(ctx, name, false)
	}
	return agent.Dial(ctx, name, agent.Options{State: string(c.config.State)})
}

// printOutcome prints the line of one case.
func printOutcome(w io.Writer, out conformance.Outcome) {
	word := "FAIL"
	switch {
	case out.Excused:
		word = "cannot"
	case out.NotRun:
		word = "NOT RUN"
	case out.Pass:
		word = "ok"
	}
	basis := make([]string, len(out.Basis))
	for i, b := range out.Basis {
		basis[i] = string(b)
	}
	fmt.Fprintf(w, "%-8s %-10s %-42s %6d ms  %s", word, out.Tier, out.Group+"/"+out.Case, out.MS,
		strings.Join(basis, "+"))
	if out.Reason != "" {
		fmt.Fprintf(w, "\n         %s", text.Lines(out.Reason))
	}
	fmt.Fprintln(w)
}
