package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	ref "github.com/distribution/reference"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// completePatience is the longest time that a press of Tab waits.
const completePatience = 2 * time.Second

// flagValues are the values of flags that have few of them, by the flag's name.
var flagValues = map[string][]string{
	"cast": {"2", "3"},
	"for": {string(wire.PhasePrompt), string(wire.PhaseWaiting), string(wire.PhaseContinuation),
		string(wire.PhaseOpaque), string(wire.PhaseDead), "keyboard"},
	"images":    {"auto", "kitty", "iterm2", "sixel", "none"},
	"isolation": {"runc", "crun", "runsc"},
	"network": {string(sandbox.NetworkFiltered), string(sandbox.NetworkAllowlist),
		string(sandbox.NetworkNone),
		string(sandbox.NetworkBridge)},
	"screen": {"auto", "always", "never"},
	"tier":   {"guest", "marks", "screen"},
	"trust":  {string(sandbox.TrustHost), string(sandbox.TrustImage)},
}

// completer completes the values of arguments and flags in a shell.
type completer struct{ *cli }

// addTo registers completion of names of sandboxes and sessions, images, network modes and other
// values of flags. It asks the daemon if one runs, and starts none.
func (c completer) addTo(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch {
		case cmd.Name() == "new", cmd.Name() == "add": // their argument is a new name
		case strings.Contains(cmd.Use, "NAME"), cmd.Name() == "conformance":
			cmd.ValidArgsFunction = c.completeArgument
			// fails if it has no such flag
			_ = cmd.RegisterFlagCompletionFunc("name", c.completeName)
		case cmd.Flags().Lookup("name") != nil:
			_ = cmd.RegisterFlagCompletionFunc("name", c.completeName)
		}
		_ = cmd.RegisterFlagCompletionFunc("image", c.completeImage)
		_ = cmd.RegisterFlagCompletionFunc("docker-option", completeDockerOption)
		for name, values := range flagValues {
			_ = cmd.RegisterFlagCompletionFunc(name,
				cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// completeArgument completes the argument that names a sandbox. Other arguments are not files of
// this machine.
func (c completer) completeArgument(cmd *cobra.Command, args []string, begun string) ([]string,
	cobra.ShellCompDirective) {
	if cmd.DisableFlagParsing { // ssh: its options may come first
		args = args[firstArgument(args):]
	}
	several := slices.Contains([]string{"rm", "stop", "start", "pause", "resume"}, cmd.Name())
	named := cmd.Flags().Lookup("name") != nil && cmd.Flags().Changed("name")
	if (named || len(args) > 0) && !several {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeName(cmd, args, begun)
}

// completeName completes the name of a sandbox and, after its ~, that of a session.
func (c completer) completeName(_ *cobra.Command, _ []string, begun string) ([]string,
	cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	if err := c.load(); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	if name, _, ok := strings.Cut(begun, "~"); ok {
		return c.completeSession(ctx, name, begun)
	}
	infos, err := c.sandboxes(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, info := range infos {
		// shells print completions without escaping them
		if _, err := wire.ParseLabel("sandbox name", info.Name); err == nil &&
			strings.HasPrefix(info.Name, begun) {
			names = append(names, info.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSession completes NAME~SESSION. The sandbox must be running.
func (c completer) completeSession(ctx context.Context, name, begun string) ([]string,
	cobra.ShellCompDirective) {
	if _, err := wire.ParseLabel("sandbox name", name); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	out, err := c.command(ctx, io.Discard, "sessions", "--json", "--", name)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var s struct{ Name string }
		if err := d.Decode(&s); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		target := name + "~" + s.Name
		if _, err := wire.ParseTarget(target); err == nil && strings.HasPrefix(target, begun) {
			names = append(names, target)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeDockerOption completes the name of an allowed option of docker run.
func completeDockerOption(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := docker.OptionNames()
	for i := range names {
		names[i] += "="
	}
	return names, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// completeImage completes the images of the configuration and of existing sandboxes.
func (c completer) completeImage(_ *cobra.Command, _ []string, begun string) ([]string,
	cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	if err := c.load(); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all := []string{sandbox.DefaultImage, c.config.Image, c.config.Python.Image}
	infos, _ := c.sandboxes(ctx) // without a daemon, complete from the configuration alone
	for _, info := range infos {
		all = append(all, info.Image)
	}
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(image string) bool {
		_, err := ref.ParseNormalizedNamed(image) // shells print completions without escaping them
		return err != nil || !strings.HasPrefix(image, begun)
	})
	return all, cobra.ShellCompDirectiveNoFileComp
}
