package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// first are the commands that help lists first. The tree may lack some: the command line tool adds
// them.
var first = []string{"up", "new", "run", "ssh", "exec", "cp", "ls", "log", "stop", "rm"}

// firstGroup is the group of these commands.
const firstGroup = "first"

// AddHelp adds examples to the commands below root that have none, and groups the most common
// commands.
func AddHelp(root *cobra.Command) {
	for _, c := range root.Commands() {
		if slices.Contains(first, c.Name()) {
			c.GroupID = firstGroup
		}
		for _, c := range append(c.Commands(), c) {
			if c.Example == "" {
				c.Example = examples[strings.TrimPrefix(c.CommandPath(), root.Name()+" ")]
			}
			if c.Example != "" && !strings.HasPrefix(c.Example, " ") {
				c.Example = "  " + strings.ReplaceAll(c.Example, "\n", "\n  ")
			}
		}
	}
}

// examples are the examples of commands, by their path. AddHelp indents the lines.
var examples = map[string]string{
	"add": "sandboxd add gpu ssh://me@gpu.example:22",
	"allow": "sandboxd allow web '*.pypi.org' 192.0.2.7:443\n" +
		"sandboxd allow web '*.pypi.org' --remove",
	"completion":  "source <(sandboxd completion bash)",
	"config":      "sandboxd config show --origin",
	"config show": "sandboxd config show --origin",
	"conformance": "sandboxd conformance web --group keyboard",
	"daemon":      "sandboxd daemon status\nsandboxd daemon logs -f",
	"daemon logs": "sandboxd daemon logs -n 20\nsandboxd daemon logs -f",
	"daemon start": "sandboxd daemon start\n" +
		"sandboxd daemon start --config sandboxd.yaml",
	"daemon status": "sandboxd daemon status\nsandboxd daemon status --json",
	"daemon stop": "sandboxd daemon stop\n" +
		"sandboxd daemon stop --all                # and stop the sandboxes",
	"demo":     "sandboxd demo",
	"describe": "sandboxd describe web\nsandboxd describe web --json",
	"doctor":   "sandboxd doctor",
	"down": "sandboxd down\n" +
		"sandboxd down --all                       # and stop the sandboxes",
	"fork":       "sandboxd fork web web-experiment",
	"give":       "sandboxd give web",
	"help":       "sandboxd help run",
	"interrupt":  "sandboxd interrupt web",
	"keys":       "sandboxd keys web ^C\nsandboxd keys web Down Down Enter",
	"kick":       "sandboxd kick web person:bob",
	"ls":         "sandboxd ls\nsandboxd ls --watch",
	"mcp":        "sandboxd mcp web",
	"mcp-config": "sandboxd mcp-config claude",
	"new": "sandboxd new web\n" +
		"sandboxd new web --image python:3.13 --memory 4g --ttl 8h\n" +
		"sandboxd new web -v .:/srv/app -v ../data:/data:ro\n" +
		"sandboxd new --rm -q -e TOKEN=x",
	"page":    "sandboxd page",
	"pause":   "sandboxd pause web",
	"pool":    "sandboxd pool",
	"port":    "sandboxd port web 8000",
	"private": "sandboxd private web on",
	"python":  "sandboxd python -c 'x = 6 * 7; x'\nsandboxd python web -- plot.py",
	"quota":   "sandboxd quota",
	"replay": "sandboxd replay web --speed 4\nsandboxd replay web --cast >web.cast\n" +
		"sandboxd replay web --svg >web.svg",
	"rescue": "sandboxd rescue web",
	"resume": "sandboxd resume web",
	"run": "sandboxd run web -- make test\n" +
		"sandboxd run make test                    # in the sandbox of this directory\n" +
		"sandboxd run -n web~build 'cd /srv && make'",
	"screen": "sandboxd screen web",
	"serve":  "sandboxd serve --ssh 127.0.0.1:2222",
	"secret": "sandboxd secret set openai --from-env OPENAI_API_KEY\n" +
		"sandboxd secret ls",
	"secret ls": "sandboxd secret ls",
	"secret rm": "sandboxd secret rm openai",
	"sessions":  "sandboxd sessions\nsandboxd sessions web",
	"share":     "sandboxd share web bob --drive\nsandboxd share web --link --expires 7d",
	"snapshot":  "sandboxd snapshot web before-upgrade",
	"ssh":       "sandboxd ssh web\nsandboxd ssh -L 8080:localhost:80 web~build",
	"ssh-config": "sandboxd ssh-config --write\n" +
		"ssh web@sbx",
	"start":     "sandboxd start web\nsandboxd start web --disk 20g",
	"stop":      "sandboxd stop web api",
	"take":      "sandboxd take web",
	"task":      "sandboxd task 'make the tests pass'",
	"token":     "sandboxd token new ci --expires 30d",
	"token ls":  "sandboxd token ls",
	"token new": "sandboxd token new ci --expires 30d",
	"token rm":  "sandboxd token rm 3f2a",
	"type":      "sandboxd type web y\nsandboxd type web --stdin <password",
	"unshare":   "sandboxd unshare web bob",
	"up":        "sandboxd up",
	"version":   "sandboxd version",
	"watch":     "sandboxd watch web\nsandboxd watch web --json",
}
