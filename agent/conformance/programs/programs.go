// Package programs is the group of cases whose programs are coding agents from npm: Claude Code, Codex and Gemini CLI. They
// listen to the keyboard all the time, at work and at rest, and what a session knows of them has to be right all the same:
// at rest they want attention, at work they do not, and when they ask for leave they do.
//
// The programs are the real ones, of pinned versions, installed in the sandbox from PyPI and npm when a case first needs
// them (1 GB). Their model is a script, model.mjs, on the sandbox's loopback: no key, no network but for the installation.
package programs

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/sandboxd/sandboxd/agent/conformance"
)

// dir is where everything is in the sandbox: /var/tmp, which is on disk everywhere and anybody's. agents.sh and the
// configurations name it, too.
const dir = "/var/tmp/conformance-agents/"

//go:embed model.mjs
var modelServer string

//go:embed agents.sh
var script string

//go:embed claude.json
var claudeConfig string

//go:embed codex.toml
var codexConfig string

//go:embed gemini.json
var geminiConfig string

var files = []conformance.File{
	{Path: dir + "model.mjs", Text: modelServer},
	{Path: dir + "agents.sh", Text: script},
	{Path: dir + "claude.json", Text: claudeConfig},
	{Path: dir + "codex.toml", Text: codexConfig},
	{Path: dir + "gemini.json", Text: geminiConfig},
}

// program is an agent program.
type program struct {
	title   string
	command string // runs it
	ready   string // on its screen when it takes the first task
	asks    string // on its screen when it wants leave to run a command
}

// programs by the name that agents.sh knows them by.
var programs = map[string]program{
	"claude": {title: "Claude Code", ready: "? for shortcuts", asks: "Do you want to proceed?"},
	"codex":  {title: "Codex", ready: "Ask Codex to do anything", asks: "Would you like to run the following command?"},
	"gemini": {title: "Gemini CLI", ready: "Type your message", asks: "Allow execution of [Shell]?"},
}

// situation is something that an agent program goes through, and what must be true in it.
type situation struct {
	name, about string
	play        func(ctx context.Context, w conformance.World, p program) error
}

var situations = []situation{
	{"idle", "%s at its prompt wants attention", idle},
	{"answering", "%s wants no attention while the model answers a word at a time, and does afterwards", answering},
	{"thinking", "%s wants no attention while the model says nothing, and does afterwards", thinking},
	{"asking", "%s wants attention when it asks for leave to run a command", asking},
	{"tool", "%s wants no attention while its tool runs, and does afterwards", tool},
}

// Cases are all of them, of the group that the caller gives them.
func Cases() []conformance.Case {
	const why = "that a program listens beside its work is a process fact"
	var all []conformance.Case
	for _, name := range []string{"claude", "codex", "gemini"} {
		p := programs[name]
		p.command = "sh " + dir + "agents.sh run " + name
		for _, s := range situations {
			all = append(all, conformance.Case{
				Name: name + "-" + s.name, About: fmt.Sprintf(s.about, p.title),
				Needs: []string{"python3", "pip3", "setsid"}, Files: files, Setup: "sh " + dir + "agents.sh set-up " + name, Cleanup: "sh " + dir + "agents.sh stop",
				Cannot: map[conformance.Tier]string{conformance.NoProcess: why, conformance.Neither: why},
				Func:   "programs." + s.name,
				Do:     func(ctx context.Context, w conformance.World) error { return s.play(ctx, w, p) },
			})
		}
	}
	return all
}
