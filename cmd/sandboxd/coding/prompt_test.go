package coding

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/images/agents"
)

// scene is what a program shows until the next call for its screen, and whether it is idle.
type scene struct {
	screen string
	idle   bool
	phase  agent.Phase
	pastes bool // bracketed paste mode is on
}

// actor is a program that plays scenes, of which the last one stays. A call to it in a scene in
// which it is not idle is rejected.
type actor struct {
	scenes []scene
	typed  []string
}

func (a *actor) Wait(ctx context.Context, _ ...agent.Phase) (agent.Result, error) {
	res := agent.Result{Phase: a.scenes[0].phase, Attention: "no"}
	if a.scenes[0].idle {
		res.Attention = "likely"
	}
	return res, ctx.Err()
}

func (a *actor) Screen(ctx context.Context) (agent.Screen, error) {
	screen := agent.Screen{Text: a.scenes[0].screen, BracketedPaste: a.scenes[0].pastes}
	if len(a.scenes) > 1 {
		a.scenes = a.scenes[1:]
	}
	return screen, ctx.Err()
}

func (a *actor) Do(ctx context.Context, call agent.Call) (agent.Result, error) {
	if call.Answer && !a.scenes[0].idle {
		return agent.Result{Error: &agent.Error{Code: agent.CodeNotWaiting}}, nil
	}
	a.typed = append(a.typed, call.Text+strings.Join(call.Keys, " "))
	return agent.Result{}, ctx.Err()
}

func (a *actor) Give(context.Context) error { return nil }

func TestEnterPrompt(t *testing.T) {
	program, err := agents.Parse("demo", []byte("command: [demo]\nready: '(?m)^> *$'\n"))
	if err != nil {
		t.Fatal(err)
	}
	const all, lines = "fix it|Enter", "fix\n\tthis\nand that"
	pastes := func(screen string) scene {
		return scene{screen: screen, idle: true, pastes: true}
	}
	idle := func(screen string) scene { return scene{screen: screen, idle: true} }
	works := func(screen string) scene { return scene{screen: screen} }
	for _, tt := range []struct {
		name   string
		scenes []scene
		prompt string // empty is fix it
		typed  string
		err    string
	}{
		{"ready", []scene{idle("> "), idle("> fix it")}, "", all, ""},
		{"ready late", []scene{works("loading"), works("> "), idle("> "), idle("> fix it")}, "", all, ""},
		{"asks first", []scene{idle("Trust this directory?"), idle("> "), idle("> fix it")}, "", all, ""},
		{"a placeholder", []scene{idle("> "), idle("> [Pasted text]")}, "", all, ""},
		{"works again before the text", []scene{idle("> "), works("> "), idle("> "),
			idle("> fix it")}, "", all, ""},
		{"works again before Enter", []scene{idle("> "), idle("> fix it"), works("> fix it"),
			idle("> fix it")}, "", all, ""},
		{"asks on and on", []scene{idle("Trust this directory?")}, "", "",
			"does not become ready for it within 2m0s; its screen ends: Trust this directory?"},
		{"works on and on", []scene{works("> ")}, "", "",
			"does not become ready for it within 2m0s"},
		{"the text is not shown", []scene{idle("> ")}, "", "fix it",
			"typed and is not on the screen"},
		{"ended", []scene{works("> "), {screen: "no licence", phase: agent.PhaseDead}}, "", "",
			"demo ended: no licence"},
		{"several lines", []scene{pastes("> "), pastes("> "), pastes("> [Pasted]")}, lines,
			"\x1b[200~fix\r\tthis\rand that\x1b[201~|Enter", ""},
		{"several lines late", []scene{works("> "), idle("> "), idle("> "), pastes("> "),
			pastes("> "), pastes("> fix\n  this\n  and that")}, lines,
			"\x1b[200~fix\r\tthis\rand that\x1b[201~|Enter", ""},
		{"several lines, no paste", []scene{idle("> ")}, lines, "",
			"demo does not take a prompt of several lines"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &actor{scenes: slices.Clone(tt.scenes)}
				err := enterPrompt(t.Context(), a, program, cmp.Or(tt.prompt, "fix it"))
				if got := strings.Join(a.typed, "|"); got != tt.typed {
					t.Errorf("typed %q, want %q", got, tt.typed)
				}
				if tt.err == "" && err != nil || tt.err != "" &&
					(err == nil || !strings.Contains(err.Error(), tt.err)) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
			})
		})
	}
}

// A caller that gives up while the program works gets an error, and nothing is typed.
func TestEnterPromptInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &actor{scenes: []scene{{screen: "> "}}}
	err := enterPrompt(ctx, a, &agents.Agent{Title: "Demo"}, "fix it")
	if !errors.Is(err, context.Canceled) || len(a.typed) > 0 {
		t.Errorf("error %v, typed %q", err, a.typed)
	}
}

// A prompt has no characters that end a paste or press keys.
func TestCheckPrompt(t *testing.T) {
	for prompt, ok := range map[string]bool{"one": true, "two\n\tlines": true, "ünïcode ✓": true,
		"x\x1b[201~\r!id": false, "a\rb": false, "a\u009b201~": false, "\xff": false,
		"\x03": false} {
		if err := CheckPrompt(prompt); (err == nil) != ok {
			t.Errorf("%q: %v", prompt, err)
		}
	}
	if err := new(Program).Prompt(t.Context(), "x\x1b[201~y"); err == nil {
		t.Error("Prompt takes a prompt that ends its paste")
	}
}
