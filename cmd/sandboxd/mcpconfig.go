package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// configFile is one configuration file of an MCP client.
type configFile struct {
	Path string `json:"path"` // relative to the project's directory, or starting with ~
	Why  string `json:"why"`
	Text string `json:"text"`
}

// clientConfigs returns the configuration of each client for an MCP server that command starts.
var clientConfigs = map[string]func(command []string) []configFile{
	"claude": claudeConfig,
	"codex":  codexConfig,
	"gemini": geminiConfig,
	"vscode": vscodeConfig,
}

// clientNames returns the names of the supported clients, sorted.
func clientNames() []string {
	var names []string
	for name := range clientConfigs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func mcpConfigCommand(c *cli) *cobra.Command {
	var name string
	var asJSON, environment bool
	cmd := &cobra.Command{
		Use:       "mcp-config claude|codex|gemini|vscode",
		Short:     "print the configuration of a coding agent for a sandbox",
		ValidArgs: clientNames(),
		Long: "Print the configuration with which a coding agent works in a sandbox: sandboxd\n" +
			"mcp is its MCP server, and its own shell and file tools, which work on this\n" +
			"machine, are denied. Each part begins with the name of its file. Add the part\n" +
			"to a file that exists.\n\n" +
			"--environment uses no MCP server: Codex runs its commands in the sandbox over\n" +
			"ssh. The sandbox needs the program codex, and the directory in which you start\n" +
			"Codex, such as the clone of sandboxd agent codex.",
		Example: "  sandboxd mcp-config claude            # the sandbox of the project\n" +
			"  sandboxd mcp-config codex -n web      # the sandbox web for all projects\n" +
			"  sandboxd mcp-config codex --environment -n web >~/.codex/environments.toml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || clientConfigs[args[0]] == nil {
				return usage("mcp-config: missing or unknown client",
					"use "+strings.Join(clientNames(), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if name != "" {
				if _, err := wire.ParseTarget(name); err != nil {
					return err
				}
			}
			files := clientConfigs[args[0]](c.mcpWords(name))
			if environment {
				f, err := c.codexEnvironment(args[0], name)
				if err != nil {
					return err
				}
				files = []configFile{f}
			}
			if asJSON {
				for _, f := range files {
					if err := text.WriteJSON(os.Stdout, f); err != nil {
						return err
					}
				}
				return nil
			}
			for i, f := range files {
				if i > 0 {
					fmt.Println()
				}
				fmt.Printf("# %s: %s\n%s", f.Path, f.Why, f.Text)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&name, "name", "n", "",
		"sandbox or SANDBOX~SESSION for tool calls that name none (default: the sandbox of the "+
			"project's directory)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per file with path, why and text")
	cmd.Flags().BoolVar(&environment, "environment", false,
		"with codex and --name: print the environment in which Codex runs its commands")
	return cmd
}

// systemPath is the part of PATH that every program has. A PATH that is set in one terminal is not
// known to a client that the desktop starts.
var systemPath = []string{"/usr/local/bin", "/usr/bin", "/bin"}

// mcpWords returns the command with which a client starts this program as its server, with the
// current daemon.
func (c *cli) mcpWords(name string) []string {
	words := []string{ownProgram()}
	if state := string(c.config.State); state != agent.DefaultState() {
		words = append(words, "--state", state)
	}
	if c.configFile != "" {
		words = append(words, "--config", absolute(c.configFile))
	}
	if c.gateway != "" {
		words = append(words, "--gateway", c.gateway)
	}
	words = append(words, "mcp")
	if name != "" {
		words = append(words, "-n", name)
	}
	return words
}

// ownProgram returns this program as clients start it: by name if it is on systemPath.
func ownProgram() string {
	self, err := os.Executable()
	if err != nil {
		return "sandboxd"
	}
	found, err := exec.LookPath("sandboxd")
	if err != nil || !slices.Contains(systemPath, filepath.Dir(found)) || !sameFile(found, self) {
		return self
	}
	return "sandboxd"
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// toolMS is the client's timeout for a tool in milliseconds. It is longer than the largest
// timeout_s.
const toolMS = 660_000

func claudeConfig(command []string) []configFile {
	return []configFile{
		{".mcp.json", "in the project",
			jsonText(map[string]any{
				"mcpServers": map[string]any{"sandboxd": map[string]any{"type": "stdio",
					"command": command[0], "args": command[1:]}}})},
		{".claude/settings.json", "in the project; denies the tools that work on this machine",
			jsonText(map[string]any{
				"enabledMcpjsonServers": []string{"sandboxd"},
				"permissions": map[string]any{"allow": []string{"mcp__sandboxd"},
					"deny": claudeTools},
				"env": map[string]any{"ENABLE_TOOL_SEARCH": "false",
					"MCP_TOOL_TIMEOUT": fmt.Sprint(toolMS), "MCP_TIMEOUT": "60000"},
			})},
	}
}

// claudeTools are the tools of Claude Code that run commands or use files on the client's machine.
var claudeTools = []string{"Bash", "BashOutput", "KillShell", "PowerShell", "Monitor", "Read",
	"Write", "Edit", "NotebookEdit", "Glob", "Grep", "LSP", "EnterWorktree", "ExitWorktree"}

func codexConfig(command []string) []configFile {
	var b strings.Builder
	fmt.Fprintf(&b, "# Shell and patch tools are off; all other built-in tools are read-only.\n")
	fmt.Fprintf(
		&b, "sandbox_mode = \"read-only\"\napproval_policy = \"never\"\n\n[features]\nshell_tool "+
			"= false\nunified_exec = false\napply_patch_freeform = false\n\n")
	fmt.Fprintf(
		&b, "[mcp_servers.sandboxd]\ncommand = %s\nargs = %s\nrequired = true\n"+
			"startup_timeout_sec = 60\ntool_timeout_sec = %d\ndefault_tools_approval_mode = "+
			"\"approve\"\n", tomlText(command[0]), tomlText(command[1:]), toolMS/1000)
	return []configFile{{"~/.codex/config.toml", "or .codex/config.toml in a trusted project",
		b.String()}}
}

// codexEnvironment returns the environments.toml of Codex for a sandbox: Codex starts its
// exec-server there over ssh, and has no environment on this machine.
func (c *cli) codexEnvironment(client, name string) (configFile, error) {
	switch {
	case client != "codex":
		return configFile{}, usage("mcp-config: --environment is only for codex", "omit it")
	case name == "":
		return configFile{}, usage("mcp-config: --environment needs a sandbox",
			"add --name NAME")
	case name == "local", name == "none":
		return configFile{}, usage("mcp-config: Codex reserves the name "+name,
			"use another sandbox")
	}
	if _, err := wire.ParseSandbox(name); err != nil {
		return configFile{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "default = %[1]s\ninclude_local = false\n\n[[environments]]\nid = %[1]s\n"+
		"program = %[2]s\nargs = %[3]s\n", tomlText(name), tomlText(ownProgram()),
		tomlText([]string{"ssh", "-T", name, "codex exec-server --listen stdio"}))
	// Not flags: the command ssh passes them on to ssh(1).
	var env []string
	if state := string(c.config.State); state != agent.DefaultState() {
		env = append(env, "SANDBOXD_STATE = "+tomlText(state))
	}
	if c.configFile != "" {
		env = append(env, "SANDBOXD_CONFIG = "+tomlText(absolute(c.configFile)))
	}
	if c.gateway != "" {
		env = append(env, "SANDBOXD_GATEWAY = "+tomlText(c.gateway))
	}
	if len(env) > 0 {
		fmt.Fprintf(&b, "env = {%s}\n", strings.Join(env, ", "))
	}
	return configFile{"~/.codex/environments.toml",
		"start it with codex --no-daemon --sandbox danger-full-access",
		b.String()}, nil
}

// tomlText returns a string or an array of strings in TOML, which accepts the JSON form.
func tomlText(v any) string {
	text, _ := json.Marshal(v) // strings do not fail
	return string(text)
}

func geminiConfig(command []string) []configFile {
	return []configFile{{".gemini/settings.json",
		"in the project, or ~/.gemini/settings.json; allows no tools that work on this machine",
		jsonText(map[string]any{
			"mcpServers": map[string]any{"sandboxd": map[string]any{"command": command[0],
				"args": command[1:], "timeout": toolMS, "trust": true}},
			"tools": map[string]any{"core": geminiTools},
		})}}
}

// geminiTools are the tools that Gemini CLI may use: ours, and its own that run no command and use
// no file. A list of denied tools would also match ours with the same names.
var geminiTools = []string{"mcp_sandboxd_*", "update_topic", "google_web_search"}

func vscodeConfig(command []string) []configFile {
	return []configFile{
		{".vscode/mcp.json", "in the project",
			jsonText(map[string]any{
				"servers": map[string]any{"sandboxd": map[string]any{"type": "stdio",
					"command": command[0], "args": command[1:], "cwd": "${workspaceFolder}"}}})},
		{filepath.Join(".github", "agents", "sandbox.agent.md"), "in the project; select the agent \"sandbox\" in the chat: it has only these tools", `---
name: sandbox
description: Works in a sandbox and not on this machine.
tools: ['sandboxd/*']
---
Run commands and change files only with the tools of sandboxd. They work in a sandbox with this project's directory.
`},
	}
}

// jsonText returns v as indented JSON.
func jsonText(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // maps and strings do not fail
	return b.String()
}
