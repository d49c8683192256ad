package httpd

import (
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var aliceAgent = gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive}

func (w *world) sandbox(name string) {
	w.t.Helper()
	if _, err := w.hub.Create(w.t.Context(), aliceAgent, gateway.NewSpec{Name: name}, nil); err != nil {
		w.t.Fatal(err)
	}
}

// agent is a program of alice's in a session.
func (w *world) agent(name string) *gateway.Attachment {
	w.t.Helper()
	a, err := w.hub.Standing(w.t.Context(), aliceAgent, wire.Target{Sandbox: name, Session: "main"}, gateway.JoinOptions{Create: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// run runs a command as an agent does, until it ends or waits.
func (w *world) run(a *gateway.Attachment, command string) wire.Result {
	w.t.Helper()
	got, err := a.Request(w.t.Context(), wire.Request{Verb: wire.VerbRun, Text: command, TimeoutMS: 20000})
	if err != nil {
		w.t.Fatal(err)
	}
	return *got.Result
}

// A person logs in by a link, sees which session asks, watches, takes the keyboard from the agent, answers, gives it back and leaves.
func TestPage(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	w.run(agent, "echo '\x1b[32mfrom the agent\x1b[0m'; read -p 'Do you want to continue? [Y/n] ' answer; echo \"got <$answer>\"")

	b := newTab(t, browser, 1200, 760)
	b.open(w.link(wire.RightDrive))
	b.until("the list has what asks", `document.querySelector(".row.asks .last")?.textContent.includes("Do you want to continue?")`)
	b.until("the address has no code", `location.href.endsWith("/")`)
	b.shoot("list")
	b.click(".row")
	b.sees("from the agent")
	b.sees("Do you want to continue? [Y/n]")
	b.until("it says who types", `document.querySelector("#typing").textContent === "agent:alice types"`)
	b.shoot("watch")
	b.click("#take")
	b.until("it is theirs", `document.querySelector("#typing").textContent === "You type"`)
	b.types("y\r")
	b.sees("got <y>")
	b.shoot("taken")
	b.click("#give")
	b.until("it is given back", `document.querySelector("#typing").textContent !== "You type"`)
	b.click("#leave")
	b.until("the list is there", `document.querySelector("#work").hidden`)
	b.fine()
}
