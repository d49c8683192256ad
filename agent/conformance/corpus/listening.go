package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// listening has cases with programs that read the keyboard while they work: attention is reported
// when they are idle.
func listening() []conformance.Case {
	likely := func(latest int64) conformance.Want {
		w := rests()
		w.LatestMS = latest
		return w
	}
	goScan := `package main

import "fmt"

func main() {
	var s string
	fmt.Print("who? ")
	fmt.Scanln(&s)
	fmt.Println("hi", s)
}
`
	javaScan := `public class Ask {
	public static void main(String[] a) {
		System.out.print("who? ");
		System.out.flush();
		System.out.println("hi " + new java.util.Scanner(System.in).nextLine());
	}
}
`
	either := func(prompt string) conformance.Want {
		return conformance.Want{Ended: ends(agent.EndedAttention, agent.EndedWaiting),
			Want: []agent.Want{agent.WantLine}, Prompt: has(prompt), LatestMS: 20_000}
	}
	return []conformance.Case{
		{Name: "top", About: "top polls the keyboard and repaints: at rest between two paintings " +
			"it is asked for", Needs: []string{"top"}, Steps: steps(
			runs("top", likely(4000)), rawText("q", done(0)))},
		{Name: "vim", About: "vim, at rest", Needs: []string{"vim"}, Steps: steps(
			runs("vim -u NONE", attends("vim")), types(":q!", done(0)))},
		{Name: "poller", About: "a program that polls with a time-out and is quiet",
			Needs: []string{"python3"}, Steps: steps(
				runs(`python3 -c 'import select, sys
print("ready")
while not select.select([0], [], [], 0.2)[0]: pass
print("got", sys.stdin.readline().strip())'`, with(likely(3000), func(w *conformance.Want) { w.EarliestMS = 700 })), types("z", contains("got z")))},
		{Name: "unix-server", About: "a program that waits for the keyboard, and for clients of " +
			"a UNIX socket", Needs: []string{"python3"}, Steps: steps(
			runs(`python3 -c 'import select, socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(b"\0conformance"); s.listen()
print("ready", flush=True)
select.select([0, s], [], [])
print("got", sys.stdin.readline().strip())'`, likely(4000)), types("z", contains("got z")))},
		{Name: "poller-at-work", About: "the same while it prints asks nobody",
			Needs: []string{"python3"}, Steps: steps(
				conformance.Step{Do: conformance.Run, Text: `python3 -c 'import select, sys
while not select.select([0], [], [], 0.2)[0]: print("working", flush=True)
'`, TimeoutMS: 3000, Want: conformance.Want{Ended: ends(agent.EndedDeadline), Phase: []agent.Phase{agent.PhaseRunning}, Listens: yes(), Attention: "no"}}, keys(done(0), "Enter"))},
		{Name: "raw-poller", About: "one in raw mode, as full-screen programs are",
			Needs: []string{"python3"}, Steps: steps(
				runs(`python3 -c 'import select, sys, tty, termios
old = termios.tcgetattr(0); tty.setraw(0)
sys.stdout.write("\x1b[?1049hmenu"); sys.stdout.flush()
while not select.select([0], [], [], 0.5)[0]: pass
sys.stdout.write("\x1b[?1049l"); termios.tcsetattr(0, termios.TCSANOW, old)'`, likely(4000)), rawText("x", prompted(0)))},
		{Name: "bell", Cannot: cannotBlind(listenUnknown),
			About: "a listener that rings the bell since the last input asks at once",
			Needs: []string{"python3"}, Steps: steps(
				runs(`python3 -c 'import select, sys, time
time.sleep(0.3); sys.stdout.write("\a"); sys.stdout.flush()
t = time.time()
while not select.select([0], [], [], 0.1)[0]: sys.stdout.write("."); sys.stdout.flush()
'`, conformance.Want{Ended: ends(agent.EndedAttention), Attention: "likely", Listens: yes(), LatestMS: 3000}), keys(done(0), "Enter"))},
		{Name: "go-scanln", About: "Go's fmt.Scanln: its runtime always keeps timed futexes",
			Needs: []string{"go"}, Files: []conformance.File{{Path: "conformance-go/main.go",
				Text: goScan}},
			Setup: "cd conformance-go && go build -o ask main.go",
			Steps: steps(runs("conformance-go/ask", either("who? ")),
				types("Ada", contains("hi Ada"))), Cleanup: "rm -rf conformance-go"},
		{Name: "java-scanner", About: "Java's Scanner: so does every JVM", Needs: []string{"java"},
			Files: []conformance.File{{Path: "conformance-java/Ask.java", Text: javaScan}},
			Setup: "cd conformance-java && javac Ask.java",
			Steps: steps(runs("java -cp conformance-java Ask", either("who? ")),
				types("Ada", contains("hi Ada"))), Cleanup: "rm -rf conformance-java"},
		{Name: "textual", About: "a Textual program at rest", Needs: []string{"python3", "pip"}, Files: []conformance.File{{Path: "conformance-textual.py", Text: `from textual.app import App
from textual.widgets import Input
class Ask(App):
    def compose(self): yield Input(placeholder="who?")
    def on_input_submitted(self, e): self.exit(0)
Ask().run()
`}}, Setup: "[ -e /var/tmp/conformance-venv/whole ] || { python3 -m venv --clear /var/tmp/conformance-venv && /var/tmp/conformance-venv/bin/pip install -q textual==0.89.1 && touch /var/tmp/conformance-venv/whole; }", Steps: steps(
			conformance.Step{Do: conformance.Run,
				Text: "/var/tmp/conformance-venv/bin/python conformance-textual.py",
				Want: conformance.Want{Ended: ends(agent.EndedAttention), Listens: yes(),
					Attention: "likely"}},
			types("Ada", done(0))), Cleanup: "rm -f conformance-textual.py"},
		{Name: "bubbletea", About: "a bubbletea program at rest", Needs: []string{"go"},
			Files: []conformance.File{{Path: "conformance-tea/main.go", Text: bubbletea}},
			Setup: "cd conformance-tea && { [ -f go.mod ] || go mod init ask >/dev/null 2>&1; } " +
				"&& go get github.com/charmbracelet/bubbletea@v0.24.2 >/dev/null && go build -o " +
				"ask . ", Steps: steps(
				runs("conformance-tea/ask", conformance.Want{Ended: ends(agent.EndedAttention),
					Listens: yes(), Attention: "likely"}), rawText("q", done(0))),
			Cleanup: "rm -rf conformance-tea"},
	}
}

// bubbletea is a Go program that waits for a key.
const bubbletea = `package main

import tea "github.com/charmbracelet/bubbletea"

type model struct{}

func (m model) Init() tea.Cmd { return nil }
func (m model) View() string  { return "press q" }
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	if k, ok := msg.(tea.KeyMsg); ok && k.String() == "q" {
		return m, tea.Quit
	}
	return m, nil
}

func main() {
	if _, err := tea.NewProgram(model{}).Run(); err != nil {
		panic(err)
	}
}
`
