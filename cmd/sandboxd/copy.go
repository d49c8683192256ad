package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// copyRest is how long scp's standard error is read when it has ended: a connection that ssh(1) keeps
// for later (ControlPersist) holds it open.
const copyRest = time.Second

func (c *cli) copyCommand() *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use:   "cp [-n NAME] SRC… DST",
		Short: "copy files in and out; NAME:PATH is a path in a sandbox",
		Long: "Copy files and whole directories into a sandbox, out of it, or between two, with the scp of this machine. A path in\n" +
			"a sandbox is NAME:PATH; without a slash in front PATH is below the home directory there. Times and modes are kept.\n\n" +
			"A link such as sandbox:/mnt/data/my%20plot.png, as language models write them, is the path in it, of the sandbox that -n\n" +
			"names; NAME:sandbox:/mnt/data/x is one as well.",
		Example: "  sandboxd cp README.md web:/tmp/\n" +
			"  sandboxd cp web:/var/log .\n" +
			"  sandboxd cp -n python sandbox:/mnt/data/plot.png .",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("cp: name what to copy and where to", "usage: cp SRC… DST; NAME:PATH is a path in a sandbox")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := exec.LookPath("scp")
			if err != nil {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "there is no scp on this machine", Hint: "install openssh-client"}
			}
			link, err := copyOperands(args, of) // before a daemon is started for nothing
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
			said := shownOn(os.Stderr) // ssh(1) prints what the server says beside the files
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
	cmd.Flags().BoolP("recursive", "r", true, "copy whole directories, which it does anyway")
	return cmd
}

// copyOperands says what is wrong with the operands of cp. In place it gives links the sandbox that of names, if any, and it returns one of them.
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
		return "", usage("cp: -n names the sandbox of links such as sandbox:/mnt/data/x, and there is none", "write "+of+":PATH for a path in it")
	}
	if !inside {
		return "", usage("cp: no operand is in a sandbox", "write NAME:PATH for a path in a sandbox")
	}
	return link, nil
}

// isSandbox is an error that says what to do unless there is a sandbox with the name sandbox, to which link may mean a path: a link alone does not
// say of which sandbox it is.
func (c *cli) isSandbox(ctx context.Context, link string) error {
	all, err := c.sandboxes(ctx)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(link, ":")
	if slices.ContainsFunc(all, func(l agent.Sandbox) bool { return l.Name == name }) {
		return nil
	}
	return usage("cp: "+link+" does not say of which sandbox it is", "name it: -n NAME; sandboxd ls lists yours")
}

// notGlob takes the meaning from what scp expands in the path of a source.
var notGlob = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "{", `\{`, "}", `\}`)

// copyOperand turns an operand of cp into one of scp: NAME:PATH is remote, everything else a local path. PATH may be a link, which means one file.
func copyOperand(arg, host string, source bool) (word string, remote bool, err error) {
	name, path, found := strings.Cut(arg, ":")
	if !found || strings.Contains(name, "/") {
		if strings.Contains(arg, ":") || strings.HasPrefix(arg, "-") { // scp would take it for a host, or an option
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
		return "", false, usage("cp: a path has a zero byte", "no file has such a name")
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return name + "@" + host + ":" + path, true, nil
}
