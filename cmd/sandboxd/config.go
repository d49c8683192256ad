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

// sources returns the sources of the configuration of this invocation.
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

// load reads the configuration. The flags of this invocation override it.
func (c *cli) load() error {
	if c.state != "" {
		c.set("state", absolute(c.state))
	}
	c.config = config.Load(c.sources())
	return c.config.Err()
}

// set makes the next load override key with the value of a flag.
func (c *cli) set(key, value string) {
	if c.settings == nil {
		c.settings = make(map[string]string)
	}
	c.settings[key] = value
}

// environ returns the variable SANDBOXD_name, or else SBX_name.
func environ(name string) string {
	return cmp.Or(os.Getenv("SANDBOXD_"+name), os.Getenv("SBX_"+name))
}

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show or check the configuration",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Sprintf("config: unknown command %q", args[0]),
					"use config show or config check; to change a key, edit the file or set "+
						"SANDBOXD_KEY")
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
		Long: "Print the effective configuration as YAML, with the meaning of each key and\n" +
			"where its value comes from. Secrets are hidden.",
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
	_ = cmd.Flags().MarkHidden("origin") // always on; scripts may set it
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per key")
	return cmd
}

func (c *cli) configCheck() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "check a configuration file",
		Long: "Check FILE, or without FILE the configuration that a daemon would load now.\n" +
			"Print every error and warning, and how to fix it. The exit code is 2 if there\n" +
			"is an error.",
		Example: "  sandboxd config check /etc/sandboxd/config.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArgs(cmd, args[1:])
			}
			return nil
		},
		// It replaces the one of all commands, which fails on the errors that this command prints.
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

// printChecked prints the findings of a check, and returns its exit code as an error.
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
		fmt.Fprintf(os.Stderr, "sandboxd: warning: %s; %s\n", text.Lines(p.Message()),
			text.Lines(p.Fix))
	}
}

func usage(message, hint string) error {
	return &wire.Error{Code: wire.CodeUsage, Message: message, Hint: hint}
}
