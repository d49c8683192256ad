package task

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/mcp"
)

// Names of the two tools that end a task. The others are package mcp's.
const (
	toolDone = "done"
	toolFail = "fail"
)

// act does what an answer asks for and keeps both for the next request. A non-nil outcome ends the task.
func (r *run) act(ctx context.Context, answer reply) (*Outcome, error) {
	t := turn{text: answer.text, calls: answer.calls, native: len(answer.calls) > 0}
	if !t.native {
		t.calls, t.text = fenced(answer.text)
	}
	if len(t.calls) == 0 {
		return r.nothing(t, answer), nil
	}
	r.idle = 0
	clean := true // so far every call did what it was to do
	var repeated, end bool
	for i, c := range t.calls {
		if i == maxCalls {
			clean = false
		}
		if i >= maxCalls {
			t.results = append(t.results, fmt.Sprintf("not done: an answer may have %d calls", maxCalls))
			continue
		}
		r.tell(Event{Event: "call", Tool: c.name, Arguments: c.arguments})
		var a mcp.Answer
		switch c.name {
		case toolDone, toolFail:
			word, err := lastWord(c)
			switch {
			case err != nil:
				a = refused("%s: %v. Its arguments are: message (string, required)", c.name, err)
			case c.name == toolFail:
				return &Outcome{Ended: Failed, Message: word}, nil
			case !clean:
				a = refused("not taken: you called done before you saw the results of the other calls of this answer, and not all of them did well. Look at them first.")
			default:
				return &Outcome{Ended: Done, Message: word}, nil
			}
		default:
			a = r.call(ctx, c.name, r.within(c))
			if err := ctx.Err(); err != nil {
				r.tell(Event{Event: "result", Tool: c.name, Text: a.Text, Result: a.Object})
				return nil, err
			}
			if gone(a) {
				return nil, a.Object.(agent.Result).Error
			}
			if a.Failed && r.unknown(c.name) {
				a.Text += "next: the tools are " + r.names() + "\n"
			}
		}
		clean = clean && well(a)
		r.tell(Event{Event: "result", Tool: c.name, Text: a.Text, Result: a.Object})
		said := a.Text
		switch n := r.again(c, a); {
		case n >= endAt:
			end = true
		case n == warnAt:
			repeated = true
		}
		t.results = append(t.results, said)
	}
	if end {
		return &Outcome{Ended: Stuck, Message: fmt.Sprintf("the model made the same call with the same result %d times", endAt), Hint: "another model, or a task in smaller steps"}, nil
	}
	if repeated {
		t.told = "You have made the same call with the same result several times. Doing it again will not help: do something else, or call fail and say what is in the way."
	}
	r.keep(t)
	return nil, nil
}

// nothing is an answer that asks for nothing.
func (r *run) nothing(t turn, answer reply) *Outcome {
	if r.idle++; r.idle >= idlest {
		return &Outcome{Ended: Stuck, Message: fmt.Sprintf("%d answers of the model, one after the other, asked for nothing to be done", r.idle), Hint: "another model: this one may not know tools"}
	}
	t.told = "Nothing was done: your answer calls no tool. "
	switch {
	case answer.finish == "length":
		t.told += "It was cut off because it was too long: be shorter, and take smaller steps."
	case r.chat.noTools:
		t.told += "Write exactly one block as you were told, such as:\n```sh\nls\n```"
	default:
		t.told += "Call one; done ends the task when it is done, fail gives it up."
	}
	r.keep(t)
	return nil
}

func (r *run) keep(t turn) {
	if left := r.MaxRounds - r.round; left <= 2 && left > 0 {
		t.told = strings.TrimSpace(t.told + fmt.Sprintf("\nYou may answer %d more time(s). Come to an end: call done, or fail.", left))
	}
	r.turns = append(r.turns, t)
}

// within is the arguments of a call, a command of it given to the shell that the caller chose.
func (r *run) within(c toolCall) json.RawMessage {
	raw := json.RawMessage(c.arguments)
	if r.Shell == "" || c.name != "run" {
		return raw
	}
	var all map[string]any
	if json.Unmarshal(raw, &all) != nil {
		return raw // which the tool will say
	}
	command, ok := all["command"].(string)
	if !ok || strings.TrimSpace(command) == "" {
		return raw
	}
	all["command"] = r.Shell + " -c " + shellquote.Join(command)
	text, err := json.Marshal(all)
	if err != nil {
		return raw
	}
	return text
}

// lastWord is what done and fail say.
func lastWord(c toolCall) (string, error) {
	var in map[string]any
	if err := json.Unmarshal([]byte(c.arguments), &in); err != nil {
		return "", fmt.Errorf("the arguments are no JSON object: %w", err)
	}
	for _, name := range []string{"message", "summary", "reason"} { // as models are wont to call it
		if s, ok := in[name].(string); ok && strings.TrimSpace(s) != "" {
			return s, nil
		}
	}
	return "", fmt.Errorf("no message")
}

// again counts a call with its result. What differs each time by itself – when, how long, where in the log – does not count, and
// waiting for a program that works is no repetition.
func (r *run) again(c toolCall, a mcp.Answer) int {
	object := a.Object
	if res, ok := object.(agent.Result); ok {
		if res.Ended == agent.EndedDeadline {
			return 1
		}
		object = []any{res.Ended, res.ExitCode, res.Output, res.Prompt, res.Error}
	}
	what, err := json.Marshal(object)
	if err != nil {
		what = []byte(a.Text)
	}
	arguments := []byte(c.arguments)
	var compact bytes.Buffer
	if json.Compact(&compact, arguments) == nil {
		arguments = compact.Bytes()
	}
	key := c.name + "\x00" + string(arguments) + "\x00" + string(what)
	r.seen[key]++
	return r.seen[key]
}

// well reports whether a call did what it was to do.
func well(a mcp.Answer) bool {
	res, ok := a.Object.(agent.Result)
	code, _ := res.Code() // 0 where it is not known
	return !a.Failed && (!ok || res.Ended == agent.EndedDone && code == 0)
}

// gone reports whether there is no sandbox any more that calls could be made in.
func gone(a mcp.Answer) bool {
	res, ok := a.Object.(agent.Result)
	return ok && res.Error != nil && res.Error.Code == agent.CodeNotFound
}

func refused(format string, args ...any) mcp.Answer {
	return mcp.Answer{Text: fmt.Sprintf(format, args...), Object: map[string]string{"error": fmt.Sprintf(format, args...)}, Failed: true}
}

func (r *run) unknown(name string) bool {
	for _, t := range r.tools {
		if t.Function.Name == name {
			return false
		}
	}
	return true
}

func (r *run) names() string {
	var all []string
	for _, t := range r.tools {
		all = append(all, t.Function.Name)
	}
	return strings.Join(all, ", ")
}
