package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// copyRest is how long scp's standard error is read after it has ended: a connection that ssh(1)
// keeps open (ControlPersist) also keeps standard error open.
const copyRest = time.Second

func (c *cli) copyCommand() *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use:   "cp [-n NAME] SRC… DST",
		Short: "copy files in and out; NAME:PATH is a path in a sandbox",
		Long: "Copy files and directories into a sandbox, out of it, or between two\n" +
			"sandboxes, with scp(1). NAME:PATH is a path in a sandbox; a relative PATH is\n" +
			"below the home directory there. Times and modes are kept.\n\n" +
			"A link such as sandbox:/mnt/data/my%20plot.png, as language models write them,\n" +
			"is a path in the sandbox of -n. NAME:sandbox:/mnt/data/x works, too.",
		Example: "  sandboxd cp README.md web:/tmp/\n" +
			"  sandboxd cp web:/var/log .\n" +
			"  sandboxd cp -n python sandbox:/mnt/data/plot.png .",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("cp: needs a source and a destination",
					"usage: cp SRC… DST; NAME:PATH is a path in a sandbox")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := exec.LookPath("scp")
			if err != nil {
				return &wire.Error{Code: wire.CodeUnavailable,
					Message: "cp: scp not found on this machine", Hint: installSSH()}
			}
			link, err := copyOperands(args, of) // check them before starting a daemon
			if err != nil {
				return err
			}
			address, o, err := c.reach(cmd.Context(), true)
			if err != nil {
				return err
			}
			if link != "" && of == "" {
				if err := c.isSandbox(cmd.Context(), link); err != nil {
					return err
				}
			}
			host, login := loginOptions(address, o, "-P")
			words := append([]string{"-rp"}, login...)
			if !isTerminal(os.Stderr) {
				words = append(words, "-q")
			}
			words = append(words, "--")
			for i, arg := range args {
				word, _, err := copyOperand(arg, host, i < len(args)-1)
				if err != nil {
					return err
				}
				words = append(words, word)
			}
			scp := exec.CommandContext(cmd.Context(), path, words...)
			said := shownOn(os.Stderr) // ssh(1) prints messages of the server
			defer said.Close()
			scp.Stdin, scp.Stdout, scp.Stderr = os.Stdin, os.Stdout, said
			scp.WaitDelay = copyRest
			var exit *exec.ExitError
			if err := scp.Run(); errors.As(err, &exit) {
				return exitCode(max(exit.ExitCode(), 1))
			} else if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
				return fmt.Errorf("scp: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&of, "name", "n", "", "sandbox of links such as sandbox:/mnt/data/x")
	cmd.Flags().BoolP("recursive", "r", true, "copy whole directories; always on")
	return cmd
}

// copyOperands checks the operands of cp. It adds the sandbox of, if any, to links in args, and
// returns one of the links.
func copyOperands(args []string, of string) (link string, err error) {
	inside := false
	for i, arg := range args {
		if _, ok := agent.LinkedPath(arg); ok {
			link = arg
			if of != "" {
				args[i] = of + ":" + arg
			}
		}
		_, remote, err := copyOperand(args[i], "", i < len(args)-1)
		if err != nil {
			return "", err
		}
		inside = inside || remote
	}
	if of != "" && link == "" {
		return "", usage("cp: -n needs a link such as sandbox:/mnt/data/x",
			"write "+of+":PATH for a path in the sandbox")
	}
	if !inside {
		return "", usage("cp: no path in a sandbox", "write NAME:PATH for a path in a sandbox")
	}
	return link, nil
}

// isSandbox returns an error unless there is a sandbox with the name sandbox, to which link may be
// a path. A link alone names no sandbox.
func (c *cli) isSandbox(ctx context.Context, link string) error {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(link, ":")
	if slices.ContainsFunc(all, func(l agent.Sandbox) bool { return l.Name == name }) {
		return nil
	}
	return usage("cp: "+link+": missing sandbox",
		"name it with -n NAME; to list your sandboxes: sandboxd ls")
}

// notGlob escapes the characters that scp expands in the path of a source.
var notGlob = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "{", `\{`,
	"}", `\}`)

// copyOperand converts an operand of cp to one of scp. NAME:PATH is remote, everything else is a
// local path. PATH may be a link to one file.
func copyOperand(arg, host string, source bool) (word string, remote bool, err error) {
	if filepath.VolumeName(arg) != "" { // C:\ of Windows, not a sandbox with one letter
		return arg, false, nil
	}
	name, path, found := strings.Cut(arg, ":")
	if !found || strings.Contains(name, "/") {
		// not a host or an option of scp
		if strings.Contains(arg, ":") || strings.HasPrefix(arg, "-") {
			return "./" + strings.TrimPrefix(arg, "./"), false, nil
		}
		return arg, false, nil
	}
	if _, err := wire.ParseLabel("sandbox name", name); err != nil {
		return "", false, err
	}
	if linked, ok := agent.LinkedPath(path); ok {
		if path = linked; source {
			path = notGlob.Replace(path)
		}
	}
	if strings.ContainsRune(path, 0) {
		return "", false, usage("cp: path contains a zero byte", "use another path")
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return name + "@" + host + ":" + path, true, nil
}
