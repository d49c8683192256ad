package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	osuser "os/user"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// sshConfigName is the Host that ssh-config defines.
const sshConfigName = "sbx"

// sshHosts are the Host blocks of ssh_config(5) for the daemon and its sandboxes.
type sshHosts struct{ *cli }

func (c sshHosts) command() *cobra.Command {
	var write, yes bool
	cmd := &cobra.Command{
		Use:   "ssh-config [--write]",
		Short: "print an ssh configuration for ssh NAME@sbx",
		Long: "Print Host blocks for ssh_config(5). With them, `ssh demo@sbx` attaches to the\n" +
			"sandbox demo, and `ssh sbx ls` runs a command of sandboxd. Each sandbox also has\n" +
			"a host of its own, demo.sbx: editors and other programs list such hosts.\n\n" +
			"--write saves the blocks in the state directory and, after you confirm, adds one\n" +
			"Include line to ~/.ssh/config. Later commands that create or remove sandboxes\n" +
			"update the hosts.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.gateway != "" {
				return c.elsewhere(cmd.Context(), write)
			}
			e, err := readEndpoint(string(c.config.State))
			if err != nil {
				return &wire.Error{
					Code:    wire.CodeUnavailable,
					Message: "no daemon has run for " + string(c.config.State),
					Hint:    "start it: sandboxd up",
				}
			}
			names, err := c.names(cmd.Context())
			if err != nil { // it does not run
				fmt.Fprintf(os.Stderr, "note: the hosts of sandboxes may be old: %s\n",
					text.Line(err.Error(), 200))
				before, _ := os.ReadFile(sshConfigFile(e)) // without one, there are no hosts
				names = listedHosts(string(before))
			}
			block := sshConfigBlock(e.gateway(), names)
			if !write {
				fmt.Print(block)
				return nil
			}
			return writeSSHConfig(e, block, yes)
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "save the block, and include it in ~/.ssh/config")
	cmd.Flags().BoolVar(&yes, "yes", false, "change ~/.ssh/config without confirmation")
	return cmd
}

// elsewhere prints the blocks for a daemon on another machine, with the user's own keys.
func (c sshHosts) elsewhere(ctx context.Context, write bool) error {
	if write {
		return usage("ssh-config: --write is for a daemon on this machine",
			"omit it, and add the output to ~/.ssh/config")
	}
	addr, _, err := c.reach(ctx, false)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return usage("ssh-config: --gateway has no port", "write ssh://HOST:PORT")
	}
	names, err := c.names(ctx)
	if err != nil {
		return err
	}
	fmt.Print(sshConfigBlock(command.Gateway{Host: host, Port: port}, names))
	return nil
}

// names returns the names of the user's sandboxes.
func (c sshHosts) names(ctx context.Context) (names []string, err error) {
	all, err := c.sandboxes(ctx)
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names, err
}

// sshConfigBlock returns the Host blocks: one for the daemon and the sandboxes with these names,
// and before it those with their users, for the first value wins. It puts the fast cipher first,
// because the client's order wins and OpenSSH's default cipher halves the throughput.
func sshConfigBlock(g command.Gateway, sandboxes []string) string {
	var users, hosts strings.Builder
	for _, name := range sandboxes {
		fmt.Fprintf(&users, "Host %s.%s\n\tUser %[1]s\n", name, sshConfigName)
		fmt.Fprintf(&hosts, " %s.%s", name, sshConfigName)
	}
	own := "" // those of a daemon on this machine
	if g.KnownHosts != "" {
		own = fmt.Sprintf("\tUserKnownHostsFile \"%s\"\n\tIdentityFile \"%s\"\n", g.KnownHosts,
			g.Identity)
	}
	return fmt.Sprintf(`# Written by sandboxd ssh-config. ssh demo@%[1]s attaches to the sandbox demo, ssh %[1]s ls lists sandboxes.
%[6]sHost %[1]s%[7]s
	HostName %[2]s
	Port %[3]s
	User %[4]s
%[5]s	StrictHostKeyChecking yes
	Ciphers ^aes128-gcm@openssh.com
`, sshConfigName, g.Host, g.Port, wire.ControlHost, own, users.String(), hosts.String())
}

// hostLine matches the line of a sandbox in the file of ssh-config.
var hostLine = regexp.MustCompile(`(?m)^Host (\S+)\.` + sshConfigName + `$`)

// listedHosts returns the names of the sandboxes in a text of sshConfigBlock.
func listedHosts(block string) (names []string) {
	for _, host := range hostLine.FindAllStringSubmatch(block, -1) {
		names = append(names, host[1])
	}
	return names
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
		fmt.Printf("wrote %s; %s already includes it\n", own, user)
		return nil
	}
	if !yes {
		fmt.Printf("  %sAdd this line at the top of %s? [y/N] ", include, user)
		answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return usage("ssh-config: "+user+" was not changed",
				"use --yes, or add the line yourself: "+strings.TrimSpace(include))
		}
	}
	if err := os.MkdirAll(filepath.Dir(user), 0o700); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	// At the top: an Include inside a Host block would belong to it. The file is replaced by a
	// rename, so that a crash loses nothing.
	target, err := filepath.EvalSymlinks(user)
	if err != nil {
		target = user
	}
	if err := os.WriteFile(target+".sandboxd", append([]byte(include), before...),
		0o600); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	if err := os.Rename(target+".sandboxd", target); err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	fmt.Printf("wrote %s and included it from %s\n  ssh demo@%s\n", own, user, sshConfigName)
	if u, err := osuser.Current(); err == nil && filepath.Join(u.HomeDir, ".ssh",
		"config") != user {
		// ssh(1) takes the home directory from the user database, which differs from HOME after
		// sudo.
		fmt.Printf("note: ssh ignores HOME and reads %s; use ssh -F %s\n",
			filepath.Join(u.HomeDir, ".ssh", "config"), user)
	}
	return nil
}

// sshConfigIncluded reports whether the user's ssh configuration includes the file of ssh-config
// --write.
func sshConfigIncluded(e endpoint) bool {
	user, err := userSSHConfig()
	if err != nil {
		return false
	}
	text, err := os.ReadFile(user)
	return err == nil && bytes.Contains(text, []byte(includeLine(e)))
}

func userSSHConfig() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("ssh-config: %w", err)
	}
	return filepath.Join(home, ".ssh", "config"), nil
}

// sshConfigFile is the file that ssh-config --write creates, and that each daemon updates.
func sshConfigFile(e endpoint) string { return filepath.Join(e.State, "ssh_config") }

func includeLine(e endpoint) string { return fmt.Sprintf("Include %q\n", sshConfigFile(e)) }

// refreshSSHConfig updates the file of ssh-config, if it exists: the daemon's port may have
// changed. The file keeps its sandboxes.
func refreshSSHConfig(e endpoint) error { return updateSSHConfig(e, listedHosts) }

// following makes a command that creates or removes sandboxes update the file of ssh-config.
func (c sshHosts) following(cmd *cobra.Command) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if c.gateway == "" {
			c.update(context.WithoutCancel(cmd.Context()))
		}
		return err
	}
}

// update updates the sandboxes in the file of ssh-config, if it exists.
func (c sshHosts) update(ctx context.Context) {
	e, err := readEndpoint(string(c.config.State))
	if err != nil {
		return // no daemon has run
	}
	err = updateSSHConfig(e, func(before string) []string {
		names, err := c.names(ctx)
		if err != nil {
			return listedHosts(before) // the command has said why; a later one updates them
		}
		return names
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "note: %s\n", text.Line(err.Error(), 200))
	}
}

// updateSSHConfig writes the file of ssh-config, if it exists, with the sandboxes that names
// returns for its present text.
func updateSSHConfig(e endpoint, names func(before string) []string) error {
	path := sshConfigFile(e)
	before, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if block := sshConfigBlock(e.gateway(), names(string(before))); block != string(before) {
			err = writeDurably(path, []byte(block), 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("ssh-config: %w", err)
	}
	return nil
}
