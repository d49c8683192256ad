package python_test

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent/python"
)

// Output of programs that the code starts is complete at the end of the call, and in order with the
// output of the code itself.
func TestPrograms(t *testing.T) {
	c := fresh(t, python.Options{})
	execute(t, c, "import os, subprocess, sys")
	for range 40 { // try often, because output can be late
		if res := execute(t, c, "r = subprocess.run(['echo', 'said'])"); !res.OK ||
			res.Text() != "said\n" {
			t.Fatalf("%+v", res)
		}
	}
	for what, p := range map[string]struct{ code, want string }{
		"in order": {"print('a'); r = os.system('echo b'); print('c'); r = os.system('echo " +
			"d')", "a\nb\nc\nd\n"},
		"parts of a rune": {"r = [os.write(1, bytes([b])) for b in 'ä€\\n'.encode()]", "ä€\n"},
		"no UTF-8":        {"r = os.write(1, b'\\xff\\n'); print('on')", "\ufffd\non\n"},
		"by the stream":   {"r = subprocess.run(['echo', 'said'], stdout=sys.stdout)", "said\n"},
		"to the other":    {"r = subprocess.run('echo said >&2', shell=True)", "said\n"},
		"much": {"r = os.system('head -c 1000000 /dev/zero | wc -c; for i in $(seq 20000); do " +
			"echo no; done')", "1000000\n" + strings.Repeat("no\n", 20000)},
		"of a fork": {"p = os.fork()\nif p == 0:\n  os.write(1, b'child\\n')\n  os._exit(0)\nr = " +
			"os.waitpid(p, 0); print('parent')", "child\nparent\n"},
	} {
		if res := execute(t, c, p.code); !res.OK || res.Text() != p.want {
			t.Errorf("%s: %.200q, %+v", what, res.Text(), res.Error)
		}
	}
	if res := execute(t, c, "p = os.fork()\nif p == 0:\n  print('child', flush=True)\n  "+
		"os._exit(0)\nos.waitpid(p, 0)[1]"); !res.OK {
		t.Errorf("a fork that prints: %+v", res)
	}
}

// A kernel has a history of its calls, but no file of it.
func TestHistory(t *testing.T) {
	c := fresh(t, python.Options{})
	execute(t, c, "x = 41")
	execute(t, c, "x + 1")
	for code, want := range map[string]string{
		"%history":                "x = 41\nx + 1\n",
		"%history -g 41":          "x = 41",
		"print(_, Out[2], In[1])": "42 42 x = 41",
		"import os; print(os.path.exists(os.path.expanduser(" +
			"'~/.ipython/profile_default/history.sqlite')))": "False",
	} {
		if res := execute(t, c, code); !res.OK || !strings.Contains(res.Text(), want) {
			t.Errorf("%s: %q, %+v", code, res.Text(), res.Error)
		}
		execute(t, c, "x + 1")
	}
}
