package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// gateway is how clients on this machine reach the daemon.
func (e endpoint) gateway() command.Gateway {
	host, port := "localhost", portOf(e.SSH)
	if addr, _, err := net.SplitHostPort(e.SSH); err == nil {
		if ip := net.ParseIP(addr); ip == nil || !ip.IsLoopback() && !ip.IsUnspecified() {
			host = addr
		}
	}
	return command.Gateway{Host: host, Port: port, KnownHosts: e.KnownHosts, Identity: e.Identity}
}

// lobby runs one command of the table.
func (c *cli) lobby(ctx context.Context, out, said io.Writer, words ...string) error {
	lobby, err := c.dial(ctx, wire.Lobby, false)
	if err != nil {
		return err
	}
	defer lobby.Close()
	return forward(ctx, lobby, agent.Cmd{Command: shellquote.Join(words...), Stdout: out, Stderr: said})
}

// listed is what this program reads of a line of ls --json.
type listed struct{ Name, State string }

// sandboxes lists the user's sandboxes. said gets what the daemon says beside.
func (c *cli) sandboxes(ctx context.Context, said io.Writer) ([]listed, error) {
	var out bytes.Buffer
	if err := c.lobby(ctx, &out, said, "ls", "--json"); err != nil {
		return nil, err
	}
	var all []listed
	for lines := json.NewDecoder(&out); ; {
		var info listed
		if err := lines.Decode(&info); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("ls: %w", err)
		}
		all = append(all, info)
	}
}

// runningSandboxes lists names.
func (c *cli) runningSandboxes(ctx context.Context) ([]string, error) {
	all, err := c.sandboxes(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, info := range all {
		if info.State == "running" {
			names = append(names, info.Name)
		}
	}
	return names, nil
}

func (c *cli) sshCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "ssh [SSH-OPTION…] NAME[~SESSION] [CMD…]",
		Short:      "join a session with ssh, or run a command",
		SuggestFor: []string{"attach", "connect", "enter", "join", "shell"},
		Long: "Run ssh with what it takes to reach the daemon. Without CMD you join the session that agents work in:\n" +
			"Ctrl-] t takes the keyboard, Ctrl-] g gives it back, Ctrl-] d leaves.",
		DisableFlagsInUseLine: true,
		DisableFlagParsing:    true, // everything before NAME is ssh's
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("ssh: no sandbox named", "usage: "+cmd.UseLine())
			}
			if args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			path, err := exec.LookPath("ssh")
			if err != nil {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "there is no ssh on this machine", Hint: "install openssh-client"}
			}
			host, o, err := c.reach(cmd.Context(), true)
			if err != nil {
				return err
			}
			at := firstArgument(args)
			if at == len(args) {
				return usage("ssh: no sandbox named", "usage: "+cmd.UseLine())
			}
			if _, err := wire.ParseTarget(args[at]); err != nil {
				return err
			}
			words := []string{"ssh"}
			if len(o.KnownHosts) > 0 {
				words = append(words, "-o", "UserKnownHostsFile="+o.KnownHosts[0], "-o", "StrictHostKeyChecking=yes")
			}
			if o.Identity != "" {
				words = append(words, "-i", o.Identity)
			}
			name, port := host, ""
			if i := strings.LastIndexByte(host, ':'); i >= 0 {
				name, port = strings.Trim(host[:i], "[]"), host[i+1:]
				words = append(words, "-p", port)
			}
			words = append(words, args[:at]...)
			words = append(append(words, args[at]+"@"+name), args[at+1:]...)
			return fmt.Errorf("ssh: %w", syscall.Exec(path, words, os.Environ()))
		},
	}
	return cmd
}

// firstArgument is the index of the first word that is neither an option of ssh(1) nor an option's argument.
func firstArgument(args []string) int {
	for i := 0; i < len(args); i++ {
		switch {
		case !strings.HasPrefix(args[i], "-"):
			return i
		case len(args[i]) == 2 && strings.Contains("BbcDEeFIiJLlmOoPpQRSWw", args[i][1:]):
			i++
		}
	}
	return len(args)
}

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
			inside, bare := 0, ""
			for i, arg := range args { // before a daemon is started for nothing
				if _, link := agent.LinkedPath(arg); link {
					bare = arg
					if of != "" {
						args[i] = of + ":" + arg
					}
				}
				_, remote, err := copyOperand(args[i], "", i < len(args)-1)
				if err != nil {
					return err
				}
				if remote {
					inside++
				}
			}
			if of != "" && bare == "" {
				return usage("cp: -n names the sandbox of links such as sandbox:/mnt/data/x, and there is none", "write "+of+":PATH for a path in it")
			}
			if inside == 0 {
				return usage("cp: no operand is in a sandbox", "write NAME:PATH for a path in a sandbox")
			}
			host, o, err := c.reach(cmd.Context(), true)
			if err != nil {
				return err
			}
			if bare != "" && of == "" {
				if err := c.isSandbox(cmd.Context(), bare); err != nil {
					return err
				}
			}
			words := []string{"-rp"}
			if len(o.KnownHosts) > 0 {
				words = append(words, "-o", "UserKnownHostsFile="+o.KnownHosts[0], "-o", "StrictHostKeyChecking=yes")
			}
			if o.Identity != "" {
				words = append(words, "-i", o.Identity)
			}
			port := ""
			if i := strings.LastIndexByte(host, ':'); i >= 0 {
				host, port = strings.Trim(host[:i], "[]"), host[i+1:]
				words = append(words, "-P", port)
			}
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
			scp.Stdin, scp.Stdout, scp.Stderr = os.Stdin, os.Stdout, os.Stderr
			var exit *exec.ExitError
			if err := scp.Run(); errors.As(err, &exit) {
				return exitCode(max(exit.ExitCode(), 1))
			} else if err != nil {
				return fmt.Errorf("scp: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&of, "name", "n", "", "sandbox of links such as sandbox:/mnt/data/x")
	cmd.Flags().BoolP("recursive", "r", true, "copy whole directories, which it does anyway")
	return cmd
}

// isSandbox is an error that says what to do unless there is a sandbox with the name sandbox, to which link may mean a path: a link alone does not
// say of which sandbox it is.
func (c *cli) isSandbox(ctx context.Context, link string) error {
	all, err := c.sandboxes(ctx, os.Stderr)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(link, ":")
	if slices.ContainsFunc(all, func(l listed) bool { return l.Name == name }) {
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

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show the configuration",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Sprintf("config: there is no %q", args[0]), "sandboxd config show prints it; to change it, edit its file or set SANDBOXD_KEY")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var origin, asJSON bool
	show := &cobra.Command{
		Use:   "show",
		Short: "print every setting that is in force",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if !asJSON {
				c.config.show(os.Stdout, origin)
				return nil
			}
			for _, s := range c.config {
				if err := text.WriteJSON(os.Stdout, map[string]string{"key": s.key, "value": s.shown(), "origin": s.from}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	show.Flags().BoolVar(&origin, "origin", false, "say where each value comes from")
	show.Flags().BoolVar(&asJSON, "json", false, "print one object per setting")
	cmd.AddCommand(show)
	return cmd
}

// sshConfigName is the alias that the block of ssh-config defines.
const sshConfigName = "sbx"

func (c *cli) sshConfigCommand() *cobra.Command {
	var write, yes bool
	cmd := &cobra.Command{
		Use:   "ssh-config [--write]",
		Short: "print an ssh configuration, so that ssh demo@sbx works",
		Long: "Print a Host block for ssh_config(5): afterwards `ssh demo@sbx` reaches the sandbox demo and `ssh sbx ls` the command\n" +
			"table. --write puts it into a file of its own in the state directory and, after asking, one Include line into\n" +
			"~/.ssh/config.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := readEndpoint(c.config.value("state"))
			if err != nil {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "no daemon has run for " + c.config.value("state"), Hint: "start it: sandboxd up"}
			}
			block := sshConfigBlock(e)
			if !write {
				fmt.Print(block)
				return nil
			}
			return writeSSHConfig(e, block, yes)
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "write it, and include it from ~/.ssh/config")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// sshConfigBlock names the fast cipher first: the client's order wins, and OpenSSH's own costs half the throughput.
func sshConfigBlock(e endpoint) string {
	g := e.gateway()
	return fmt.Sprintf(`# Written by sandboxd ssh-config. ssh demo@%[1]s is the sandbox demo, ssh %[1]s ls the command table.
Host %[1]s
	HostName %[2]s
	Port %[3]s
	User %[4]s
	UserKnownHostsFile "%[5]s"
	StrictHostKeyChecking yes
	IdentityFile "%[6]s"
	Ciphers ^aes128-gcm@openssh.com
`, sshConfigName, g.Host, g.Port, wire.Lobby, g.KnownHosts, g.Identity)
}

func writeSSHConfig(e endpoint, block string, yes bool) error {
	own := sshConfigFile(e)
	if err := os.WriteFile(own, []byte(block), 0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	user, err := userSSHConfig()
	if err != nil {
		return err
	}
	include := includeLine(e)
	before, err := os.ReadFile(user)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("ssh-config: %w", err)
	}
	if bytes.Contains(before, []byte(include)) {
		fmt.Printf("wrote %s; %s includes it already\n", own, user)
		return nil
	}
	if !yes {
		fmt.Printf("  %sPut this line at the top of %s? [y/N] ", include, user)
		answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return usage("nothing was put into "+user, "say --yes, or put the line there yourself: "+strings.TrimSpace(include))
		}
	}
	if err := os.MkdirAll(filepath.Dir(user), 0o700); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	// At the top: an Include inside a Host block would belong to it. Written beside and renamed, so that nothing is lost.
	target, err := filepath.EvalSymlinks(user)
	if err != nil {
		target = user
	}
	if err := os.WriteFile(target+".sandboxd", append([]byte(include), before...), 0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	if err := os.Rename(target+".sandboxd", target); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	fmt.Printf("wrote %s and included it from %s\n  ssh demo@%s\n", own, user, sshConfigName)
	if u, err := osuser.Current(); err == nil && filepath.Join(u.HomeDir, ".ssh", "config") != user {
		// ssh(1) asks the user database for the home directory, as after sudo with HOME kept.
		fmt.Printf("note: ssh reads %s, whatever HOME says; use ssh -F %s\n", filepath.Join(u.HomeDir, ".ssh", "config"), user)
	}
	return nil
}
