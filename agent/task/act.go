package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Names of the two tools that end a task. The others are package mcp's.
const (
	toolDone = "done"
	toolFail = "fail"
)

// act makes the calls of a reply and stores both for the next request. A non-nil outcome ends the
// task.
func (r *run) act(ctx context.Context, answer reply) (*Outcome, error) {
	t := turn{text: answer.text, calls: answer.calls, native: len(answer.calls) > 0}
	if !t.native {
		t.calls, t.text = fenced(answer.text)
	}
	if len(t.calls) == 0 {
		return r.nothing(t, answer), nil
	}
	r.idle = 0
	clean := true // every call so far succeeded
	var repeated, end bool
	for i, c := range t.calls {
		if i == maxCalls {
			clean = false
		}
		if i >= maxCalls {
			t.results = append(
				t.results,
				fmt.Sprintf("not done: a reply may have at most %d calls", maxCalls),
			)
			continue
		}
		r.emit(Event{Event: "call", Tool: c.name, Arguments: c.arguments})
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
				a = refused(
					"not accepted: another call of this reply failed. Read the results before " +
						"you call done.",
				)
			default:
				return &Outcome{Ended: Done, Message: word}, nil
			}
		default:
			a = r.call(ctx, c.name, r.within(c))
			if err := ctx.Err(); err != nil {
				r.emit(Event{Event: "result", Tool: c.name, Text: a.Text, Result: a.Object})
				return nil, err
			}
			if gone(a) {
				return nil, a.Object.(agent.Result).Error
			}
			if a.Failed && r.unknown(c.name) {
				a.Text += "\nnext: the tools are " + r.names() + "\n"
			}
		}
		clean = clean && well(a)
		r.emit(Event{Event: "result", Tool: c.name, Text: a.Text, Result: a.Object})
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
		return &Outcome{
			Ended: Stuck,
			Message: fmt.Sprintf(
				"the model made the same call with the same result %d times",
				endAt,
			),
			Hint: "use another model, or split the task",
		}, nil
	}
	if repeated {
		t.remark = "You have made the same call with the same result several times. Do not " +
			"repeat it: try something else, or call fail and say what the problem is."
	}
	r.keep(t)
	return nil, nil
}

// nothing handles a reply without a call.
func (r *run) nothing(t turn, answer reply) *Outcome {
	if r.idle++; r.idle >= maxIdle {
		return &Outcome{
			Ended: Stuck,
			Message: fmt.Sprintf(
				"the last %d replies of the model called no tool",
				r.idle,
			),
			Hint: "use another model: this one may not support tools",
		}
	}
	t.remark = "Nothing was done: your reply calls no tool. "
	switch {
	case answer.finish == "length":
		t.remark += "It was cut off because it was too long. Be shorter, and take smaller steps."
	case r.chat.noTools:
		t.remark += "Write exactly one block in the required form, such as:\n```sh\nls\n```"
	default:
		t.remark += "Call a tool. Call done when the task is done, or fail if it cannot be done."
	}
	r.keep(t)
	return nil
}

func (r *run) keep(t turn) {
	if left := r.MaxRounds - r.round; left <= 2 && left > 0 {
		t.remark = strings.TrimSpace(
			t.remark + fmt.Sprintf(
				"\nYou have %d replies left. Finish now: call done or fail.",
				left,
			),
		)
	}
	r.turns = append(r.turns, t)
}

// within returns the arguments of a call. A command of run is passed to Options.Shell.
func (r *run) within(c toolCall) json.RawMessage {
	raw := json.RawMessage(c.arguments)
	if r.Shell == "" || c.name != "run" {
		return raw
	}
	var all map[string]any
	if json.Unmarshal(raw, &all) != nil {
		return raw // the tool reports the error
	}
	command, ok := all["command"].(string)
	if !ok || strings.TrimSpace(command) == "" {
		return raw
	}
	all["command"] = r.Shell + " -c " + text.Quote(command)
	text, err := json.Marshal(all)
	if err != nil {
		return raw
	}
	return text
}

// lastWord returns the message of done or fail.
func lastWord(c toolCall) (string, error) {
	var in map[string]any
	if err := json.Unmarshal([]byte(c.arguments), &in); err != nil {
		return "", fmt.Errorf("the arguments are not a JSON object: %w", err)
	}
	for _, name := range []string{"message", "summary", "reason"} { // names that models use
		if s, ok := in[name].(string); ok && strings.TrimSpace(s) != "" {
			return s, nil
		}
	}
	return "", errors.New("message is missing")
}

// again returns how often a call had the same result. Times, durations and log offsets do not count
// as differences. Waiting for a running program is not a repetition.
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

// well reports whether a call succeeded.
func well(a mcp.Answer) bool {
	res, ok := a.Object.(agent.Result)
	code, _ := res.Code() // 0 if unknown
	return !a.Failed && (!ok || res.Ended == agent.EndedDone && code == 0)
}

// gone reports whether the sandbox no longer exists.
func gone(a mcp.Answer) bool {
	res, ok := a.Object.(agent.Result)
	return ok && res.Error != nil && res.Error.Code == agent.CodeNotFound
}

func refused(format string, args ...any) mcp.Answer {
	return mcp.Answer{
		Text:   fmt.Sprintf(format, args...),
		Object: map[string]string{"error": fmt.Sprintf(format, args...)},
		Failed: true,
	}
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
