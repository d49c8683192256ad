package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// sources are what the configuration of this invocation comes from.
func (c *cli) sources() config.Sources {
	return config.Sources{
		Usual: []string{
			"/etc/sandboxd/config.yaml",
			filepath.Join(xdg.ConfigHome, "sandboxd", "config.yaml"),
		},
		File:    c.configFile,
		Environ: os.Environ(),
		Flags:   c.settings,
	}
}

// load reads the configuration, with the flags of this invocation on top.
func (c *cli) load() error {
	if c.state != "" {
		c.set("state", absolute(c.state))
	}
	c.config = config.Load(c.sources())
	return c.config.Err()
}

// set has the next load put the value of a flag on top.
func (c *cli) set(key, value string) {
	if c.settings == nil {
		c.settings = make(map[string]string)
	}
	c.settings[key] = value
}

// environ returns a variable of ours, by either prefix.
func environ(name string) string {
	return cmp.Or(os.Getenv("SANDBOXD_"+name), os.Getenv("SBX_"+name))
}

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show or check the configuration",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Sprintf("config: there is no %q", args[0]),
					"sandboxd config show prints it; to change it, edit its file or set SANDBOXD_KEY")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.configShow(), c.configCheck())
	return cmd
}

func (c *cli) configShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "print the effective configuration, and where each value comes from",
		Long: "Print the effective configuration as YAML, with the meaning of each key and where its\n" +
			"value comes from. Secrets are left out.",
		Example: "  sandboxd config show > config.yaml     # a file to start from\n" +
			"  sandboxd config show --json | jq 'select(.origin != \"default\")'",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			printWarnings(c.config.Warnings)
			if !asJSON {
				return c.config.Write(os.Stdout)
			}
			for _, s := range c.config.Settings() {
				if err := text.WriteJSON(os.Stdout, s); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Bool("origin", true, "")
	_ = cmd.Flags().MarkHidden("origin") // which scripts name
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per key")
	return cmd
}

func (c *cli) configCheck() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "check a configuration file",
		Long: "Check FILE by itself, or everything that a daemon started now would read. Print every\n" +
			"error and warning, with what to write instead. The exit code is 2 if there is an error.",
		Example: "  sandboxd config check /etc/sandboxd/config.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArgs(cmd, args[1:])
			}
			return nil
		},
		// Not that of all commands: what it would refuse is to be printed.
		PersistentPreRunE: func(*cobra.Command, []string) error {
			c.json = asJSON
			if err := c.load(); c.config == nil {
				return err
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			checked := c.config
			if len(args) == 1 {
				checked = config.Load(config.Sources{File: args[0]})
			}
			return printChecked(checked, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per error or warning")
	return cmd
}

// printChecked prints what a check found, and returns its exit code.
func printChecked(c *config.Loaded, asJSON bool) error {
	type finding struct {
		Level string `json:"level"`
		config.Problem
	}
	var all []finding
	for _, p := range c.Errors {
		all = append(all, finding{"error", p})
	}
	for _, p := range c.Warnings {
		all = append(all, finding{"warning", p})
	}
	for _, f := range all {
		if asJSON {
			if err := text.WriteJSON(os.Stdout, f); err != nil {
				return err
			}
			continue
		}
		fmt.Printf("%s: %s; %s\n", f.Level, text.Lines(f.Message()), text.Lines(f.Fix))
	}
	if len(c.Errors) > 0 {
		return exitCode(wire.ExitUsage)
	}
	if len(all) == 0 && !asJSON {
		fmt.Println("no errors")
	}
	return nil
}

func printWarnings(all []config.Problem) {
	for _, p := range all {
		fmt.Fprintf(os.Stderr, "sandboxd: warning: %s; %s\n", text.Lines(p.Message()), text.Lines(p.Fix))
	}
}

func usage(message, hint string) error {
	return &wire.Error{Code: wire.CodeUsage, Message: message, Hint: hint}
}
