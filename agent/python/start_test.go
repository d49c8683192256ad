package python_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// shell runs a command in a sandbox. It must succeed.
func shell(t testing.TB, c *agent.Client, command, stdin string) string {
	t.Helper()
	var out strings.Builder
	exit, err := c.Exec(
		bounded(t),
		agent.Cmd{Command: command, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out},
	)
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v, %v: %s", command, exit, err, &out)
	}
	return out.String()
}

// Files of the user with names of Python's modules do not replace those modules.
func TestNamesOfModules(t *testing.T) {
	needPython(t)
	client := dial(t, boot(t, pythonImage))
	shell(
		t,
		client,
		"mkdir -p /mnt/data && for at in . ~ /mnt/data; do for m in json secrets random socket; "+
			"do echo 'raise SystemExit(\"not this one\")' > $at/$m.py; done; done",
		"",
	)
	in := interpreter(t, client, python.Options{})
	if list, err := in.Packages(bounded(t)); err != nil || len(list) == 0 {
		t.Errorf("packages: %d, %v", len(list), err)
	}
	c, err := in.Context(bounded(t), "main")
	if err != nil {
		t.Fatal(err)
	}
	if res := execute(t, c, "import os; print(os.getcwd())"); !res.OK ||
		res.Text() != "/mnt/data\n" {
		t.Errorf("%+v", res)
	}
}

// A server whose start script was killed is found and stays the only one.
func TestStarterEnds(t *testing.T) {
	needPython(t)
	starter, err := os.ReadFile("start.py")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("kernel.py")
	if err != nil {
		t.Fatal(err)
	}
	ask, err := json.Marshal(
		map[string]any{"kernel": string(program), "dir": "/mnt/data", "idle": 60},
	)
	if err != nil {
		t.Fatal(err)
	}
	for when, wait := range map[string]string{"before it listens": "",
		"before that is noted": "until [ -S /tmp/.sandboxd-python-0/jupyter.sock ]; do :; done; "} {
		client := dial(t, boot(t, pythonImage))
		shell(
			t,
			client,
			`cat > /tmp/start; python3 - `+text.Quote(
				string(ask),
			)+` < /tmp/start > /dev/null 2>&1 &
			until grep -qsa j[u]pyter_server /proc/[0-9]*/cmdline; do :; done; kill -STOP $!; `+wait+`kill -9 $!`,
			string(starter),
		)
		for range 2 {
			in, err := python.Open(bounded(t), client, python.Options{})
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if c, err := in.Context(bounded(t), "main"); err != nil {
				t.Errorf("%s: %v", when, err)
			} else if res := execute(t, c, "1"); !res.OK {
				t.Errorf("%s: %+v", when, res)
			}
			in.Close()
		}
		if n := strings.TrimSpace(shell(t, client,
			"grep -lsa j[u]pyter_server /proc/[0-9]*/cmdline | wc -l", "")); n != "1" {
			t.Errorf("%s: %s servers", when, n)
		}
	}
}
