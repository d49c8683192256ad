// Package programs has conformance cases with coding agents: Claude Code, Codex and Gemini CLI.
// They read the keyboard all the time. A session must report attention for them when they are idle
// or ask for permission, and not while they work.
//
// The programs have pinned versions and are installed in the sandbox from PyPI and npm when a case
// first needs them (1 GB). Their model is a scripted server, model.mjs, on the sandbox's loopback.
// They need no key, and a network only for the installation.
package programs

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/sandboxd/sandboxd/agent/conformance"
)

// dir is the directory of all files in the sandbox. /var/tmp is on disk and writable for all users.
// agents.sh and the configurations also contain it.
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
	command string // command that runs it
	ready   string // text on its screen when it accepts the first task
	asks    string // text on its screen when it asks for permission to run a command
}

// programs by their name in agents.sh.
var programs = map[string]program{
	"claude": {title: "Claude Code", ready: "? for shortcuts", asks: "Do you want to proceed?"},
	"codex": {
		title: "Codex",
		ready: "Ask Codex to do anything",
		asks:  "Would you like to run the following command?",
	},
	"gemini": {
		title: "Gemini CLI",
		ready: "Type your message",
		asks:  "Allow execution of [Shell]?",
	},
}

// situation is a state of an agent program, with the expected result.
type situation struct {
	name, about string
	play        func(ctx context.Context, w conformance.World, p program) error
}

var situations = []situation{
	{"idle", "%s at its prompt wants attention", idle},
	{
		"answering",
		"%s wants no attention while the model answers a word at a time, and does afterwards",
		answering,
	},
	{
		"thinking",
		"%s wants no attention while the model is silent, and does afterwards",
		thinking,
	},
	{"asking", "%s wants attention when it asks for permission to run a command", asking},
	{"tool", "%s wants no attention while its tool runs, and does afterwards", tool},
}

// Cases returns all cases. The caller sets their group.
func Cases() []conformance.Case {
	const why = "that a program listens beside its work is a process fact"
	var all []conformance.Case
	for _, name := range []string{"claude", "codex", "gemini"} {
		p := programs[name]
		p.command = "sh " + dir + "agents.sh run " + name
		for _, s := range situations {
			all = append(all, conformance.Case{
				Name: name + "-" + s.name, About: fmt.Sprintf(s.about, p.title),
				Needs: []string{"python3", "pip3", "setsid"},
				Files: files, Setup: "sh " + dir + "agents.sh setup " + name,
				Cleanup: "sh " + dir + "agents.sh stop",
				Cannot: map[conformance.Tier]string{
					conformance.NoProcess: why,
					conformance.Neither:   why,
				},
				Func: "programs." + s.name,
				Do: func(ctx context.Context, w conformance.World) error {
					return s.play(ctx, w, p)
				},
			})
		}
	}
	return all
}
