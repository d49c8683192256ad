package main

import (
	"context"
	_ "embed"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/programs"
	"github.com/sandboxd/sandboxd/sandbox/session/track/corpus"
)

//go:embed agents.sh
var moreAgents string

// agentsDir is the directory of the agents of the conformance suite in the sandbox.
const agentsDir = "/var/tmp/conformance-agents"

// codingAgent is a coding agent of the corpus.
type codingAgent struct {
	name       string
	base       string // agent of the conformance suite with whose setup it runs; empty is itself
	ready      string // what the screen shows when it takes a prompt
	asks       string // and when it asks for permission to run a command; empty if it never does
	plain      bool   // it offers the model no tools
	moves      []move
	conform    []conformance.File
	setUp, end string
}

// codingAgents are the agents of the corpus.
var codingAgents = []codingAgent{
	{name: "claude", ready: "? for shortcuts", asks: "Do you want to proceed?"},
	{name: "codex", ready: "Ask Codex to do anything",
		asks: "Would you like to run the following command?"},
	{name: "gemini", ready: "Type your message", asks: "Allow execution of [Shell]?"},
	{name: "opencode", base: "gemini", ready: "Ask anything", asks: "Permission required"},
	{name: "aider", base: "gemini", ready: "\n>", plain: true, moves: []move{
		{typed: "/run sleep 2; echo built"},
		{keys: []string{"Enter"}, shows: "command output to the chat?"}}},
}

// prepare fills in what the conformance suite says of a.
func (a *codingAgent) prepare() (command string) {
	base := a.name
	if a.base != "" {
		base = a.base
	}
	for _, c := range programs.Cases() {
		if c.Name == base+"-idle" {
			a.conform, a.setUp, a.end = c.Files, c.Setup, c.Cleanup
		}
	}
	own := a.setUp
	if a.base != "" {
		own = "sh " + agentsDir + "/more.sh setup " + a.name
		a.setUp += " && " + own
	}
	// An answer of the model takes three seconds.
	a.setUp = "export MODEL_SECONDS=3; " + a.setUp
	if a.plain {
		a.setUp = "export MODEL_PLAIN=1; " + a.setUp
	}
	enter := func(text, shows string) {
		a.moves = append(a.moves, move{typed: text}, move{keys: []string{"Enter"}, shows: shows})
	}
	moves := a.moves
	a.moves = nil
	enter("script:talk", "word11")
	enter("script:think", "thought.")
	if a.asks != "" {
		enter("script:run", a.asks)
		a.moves = append(a.moves, move{keys: []string{"Enter"}, shows: "finished."})
	}
	a.moves = append(a.moves, moves...)
	return strings.Replace(own, " setup ", " run ", 1)
}

// agents records coding agents at work, at rest, and asking for permission.
func (r *recorder) agents(ctx context.Context, want *regexp.Regexp, o options) error {
	for _, a := range codingAgents {
		if !want.MatchString(a.name) {
			continue
		}
		command := a.prepare()
		files := append(a.conform[:len(a.conform):len(a.conform)],
			conformance.File{Path: agentsDir + "/more.sh", Text: moreAgents})
		if err := r.w.exec(ctx, "mkdir -p "+agentsDir); err != nil {
			return err
		}
		for _, f := range files {
			if err := r.w.put(ctx, f.Path, []byte(f.Text), 0o644); err != nil {
				return err
			}
		}
		for range o.rounds {
			if err := r.w.setUp(ctx, "installing "+a.name, a.setUp); err != nil {
				return err
			}
			s, err := r.begin(ctx, a.name, corpus.Listens)
			if err != nil {
				return err
			}
			err = s.coding(ctx, command, a)
			if err := s.end(ctx, err); err != nil {
				return err
			}
			if err := r.w.exec(ctx, a.end); err != nil {
				return err
			}
		}
	}
	return nil
}

// coding plays a coding agent.
func (s *scene) coding(ctx context.Context, command string, a codingAgent) error {
	if err := s.until(ctx, agent.Call{Command: command}, a.ready); err != nil {
		return err
	}
	for i := range s.labels {
		s.labels[i].Start = true
	}
	for _, m := range a.moves {
		if err := s.move(ctx, m); err != nil {
			return err
		}
		if m.shows != "" {
			if err := s.fetch(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
