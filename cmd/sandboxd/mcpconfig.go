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

// configFile is one file of a client's configuration.
type configFile struct {
	Path string `json:"path"` // in the project's directory, or with ~ in front
	Why  string `json:"why"`
	Text string `json:"text"`
}

// clientConfigs are the configurations of clients for a server that is started by command.
var clientConfigs = map[string]func(command []string) []configFile{
	"claude": claudeConfig,
	"codex":  codexConfig,
	"gemini": geminiConfig,
	"vscode": vscodeConfig,
}

// clientNames are those whose configuration is known, in order.
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
	var asJSON bool
	cmd := &cobra.Command{
		Use:       "mcp-config claude|codex|gemini|vscode",
		Short:     "print the configuration of a coding agent that works in a sandbox",
		ValidArgs: clientNames(),
		Long: "Print what a coding agent has to be configured with so that it works in a sandbox: sandboxd mcp as its server, and its own\n" +
			"shell and file tools denied, which would work on this machine. Each part is headed by the file that it belongs into; where that\n" +
			"file exists, add to it what is missing.",
		Example: "  sandboxd mcp-config claude            # for the project that it is started in\n" +
			"  sandboxd mcp-config codex -n web      # for one sandbox, wherever it is started",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || clientConfigs[args[0]] == nil {
				return usage("mcp-config: name one client", "use "+strings.Join(clientNames(), ", "))
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
	cmd.Flags().StringVarP(&name, "name", "n", "", "sandbox, or SANDBOX~SESSION, of calls that name none (default that of the directory that the client is started in)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per file: path, why, text")
	return cmd
}

// everybodysPath is where programs are found whatever a client was started from. A PATH that was set in one terminal ends with it, and a
// client that was started from a desktop never had it.
var everybodysPath = []string{"/usr/local/bin", "/usr/bin", "/bin"}

// mcpWords is the command by which a client starts this program as its server: found as it is now, with the daemon that is meant now.
func (c *cli) mcpWords(name string) []string {
	words := []string{"sandboxd"}
	if self, err := os.Executable(); err == nil {
		found, err := exec.LookPath("sandboxd")
		if err != nil || !slices.Contains(everybodysPath, filepath.Dir(found)) || !sameFile(found, self) {
			words[0] = self
		}
	}
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

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// toolMS is how long a client may wait for a tool: longer than the longest timeout_s of one.
const toolMS = 660_000

func claudeConfig(command []string) []configFile {
	return []configFile{
		{".mcp.json", "in the project", jsonText(map[string]any{"mcpServers": map[string]any{"sandboxd": map[string]any{"type": "stdio", "command": command[0], "args": command[1:]}}})},
		{".claude/settings.json", "in the project; its own tools would work on this machine", jsonText(map[string]any{
			"enabledMcpjsonServers": []string{"sandboxd"},
			"permissions":           map[string]any{"allow": []string{"mcp__sandboxd"}, "deny": claudeTools},
			"env":                   map[string]any{"ENABLE_TOOL_SEARCH": "false", "MCP_TOOL_TIMEOUT": fmt.Sprint(toolMS), "MCP_TIMEOUT": "60000"},
		})},
	}
}

// claudeTools are those of Claude Code that run commands or touch files where it runs.
var claudeTools = []string{"Bash", "BashOutput", "KillShell", "PowerShell", "Monitor", "Read", "Write", "Edit", "NotebookEdit", "Glob", "Grep", "LSP", "EnterWorktree", "ExitWorktree"}

func codexConfig(command []string) []configFile {
	var b strings.Builder
	fmt.Fprintf(&b, "# Its own shell and patches are off, and what is left may not write.\n")
	fmt.Fprintf(&b, "sandbox_mode = \"read-only\"\napproval_policy = \"never\"\n\n[features]\nshell_tool = false\nunified_exec = false\napply_patch_freeform = false\n\n")
	fmt.Fprintf(&b, "[mcp_servers.sandboxd]\ncommand = %s\nargs = %s\nrequired = true\nstartup_timeout_sec = 60\ntool_timeout_sec = %d\ndefault_tools_approval_mode = \"approve\"\n", tomlText(command[0]), tomlText(command[1:]), toolMS/1000)
	return []configFile{{"~/.codex/config.toml", "or .codex/config.toml in a project that is trusted", b.String()}}
}

// tomlText is a string, or an array of them, in TOML, which reads JSON's as they are.
func tomlText(v any) string {
	text, _ := json.Marshal(v) // of strings
	return string(text)
}

func geminiConfig(command []string) []configFile {
	return []configFile{{".gemini/settings.json", "in the project, or ~/.gemini/settings.json; its own tools would work on this machine", jsonText(map[string]any{
		"mcpServers": map[string]any{"sandboxd": map[string]any{"command": command[0], "args": command[1:], "timeout": toolMS, "trust": true}},
		"tools":      map[string]any{"core": geminiTools},
	})}}
}

// geminiTools are the tools that Gemini CLI may use: ours, and those of its own that run no command and touch no file where it runs. Not
// a list of what it may not: that would hit our tools of the same names, too.
var geminiTools = []string{"mcp_sandboxd_*", "update_topic", "google_web_search"}

func vscodeConfig(command []string) []configFile {
	return []configFile{
		{".vscode/mcp.json", "in the project", jsonText(map[string]any{"servers": map[string]any{"sandboxd": map[string]any{"type": "stdio", "command": command[0], "args": command[1:], "cwd": "${workspaceFolder}"}}})},
		{filepath.Join(".github", "agents", "sandbox.agent.md"), "in the project; choose the agent \"sandbox\" in the chat: it has these tools and no others", `---
name: sandbox
description: Works in a sandbox and not on this machine.
tools: ['sandboxd/*']
---
Run commands and change files with the tools of sandboxd alone. They work in a sandbox which has this project's directory.
`},
	}
}

// jsonText is v as a person writes it into a file.
func jsonText(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // of maps and strings
	return b.String()
}
