package session_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestTwoWriters has a person paste while an agent types. Every line arrives whole, or not at all.
func TestTwoWriters(t *testing.T) {
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	do(
		t,
		alice,
		wire.Request{
			Verb: wire.VerbRun,
			Text: "stty -echo; while read -r l; do [ \"$l\" = over ] && break; echo \"<$l>\"; " +
				"done >got; stty echo",
			TimeoutMS: 2000,
		},
	)
	bob := dial(t, set, wire.Attach{Session: "main", Party: person("bob")}, wire.Handler{})
	line := func(who string, i int) string {
		return fmt.Sprintf("%s-%03d-%s", who, i,
			strings.Repeat(who, 300))
	}
	// A terminal whose program reads slowly takes a part of a line, before a call reaches its
	// timeout or the keyboard is taken. ^U drops such a part.
	const drop = "\x15"
	const rounds = 25
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range rounds {
			_, _ = alice.Request(
				t.Context(),
				wire.Request{Verb: wire.VerbType, Text: drop + line("a", i), TimeoutMS: 20},
			)
		}
	})
	pasted := 0
	wg.Go(func() {
		for i := range rounds {
			if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
				t.Errorf("take: %v", err)
				return
			}
			if err := bob.Input(t.Context(), []byte(
				drop+line("b", 2*i)+"\r"+line("b", 2*i+1)+"\r")); err != nil {
				t.Errorf("paste: %v", err)
				return
			}
			pasted += 2
			if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
				t.Errorf("give: %v", err)
				return
			}
		}
	})
	wg.Wait()
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	if err := bob.Input(t.Context(), []byte(drop+"over\r")); err != nil {
		t.Fatal(err)
	}
	if res := do(t, bob, wire.Request{Verb: wire.VerbWait,
		For: []wire.Phase{wire.PhasePrompt}}); res.Phase != wire.PhasePrompt {
		t.Fatalf("%s", res.Phase)
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	res := do(t, alice, wire.Request{Verb: wire.VerbRun, Text: "cat got", MaxOutput: -1})
	whole := 0
	for got := range strings.Lines(res.Output) {
		got = strings.TrimSuffix(got, "\n")
		var who string
		var i int
		if _, err := fmt.Sscanf(got, "<%1s-%03d-", &who, &i); err != nil ||
			got != "<"+line(who, i)+">" {
			t.Errorf("not a whole line: %.60q… (%d bytes)", got, len(got))
		}
		if who == "b" {
			whole++
		}
	}
	if whole != pasted {
		t.Errorf("%d of the %d pasted lines arrived", whole, pasted)
	}
}

// TestBrokenPaste takes the keyboard during a bracketed paste. The next party's input is typed
// text, not pasted text. The network may split the brackets.
func TestBrokenPaste(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pieces []string
	}{
		{"in one piece", []string{"\x1b[200~echo pasted by the guest"}},
		{"a beginning in two", []string{"\x1b[20", "0~echo pasted by the guest"}},
		{"byte by byte", strings.Split("\x1b[200~echo", "")},
		{"an end in two", []string{"\x1b[200~echo pasted", " by the guest\x1b[2", "01~"}},
		{"an end byte by byte", append([]string{"\x1b[200~echo"},
			strings.Split("\x1b[201~", "")...)},
		{"half an end", []string{"\x1b[200~echo pasted by the guest\x1b[20"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := newSet(t, "/bin/bash")
			alice := agentClient(t, set)
			run(t, alice, "true")
			w := newWatch()
			guest := dial(
				t,
				set,
				wire.Attach{
					Session: "main",
					Party:   person("guest"),
					From:    wire.Offset{Word: wire.FromStart},
				},
				w.handler(),
			)
			owner := *person("owner")
			owner.Owner = true
			boss := dial(t, set, wire.Attach{Session: "main", Party: &owner}, wire.Handler{})
			w.until(
				t,
				"bash wants brackets",
				func(out string, _ []wire.Event) bool {
					return strings.HasSuffix(out,
						"\x1b[?2004h$ ")
				},
			)
			for _, piece := range tt.pieces {
				if err := guest.Input(t.Context(), []byte(piece)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := boss.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
				t.Fatal(err)
			}
			if err := guest.Input(t.Context(), []byte(", the rest\x1b[201~")); err == nil {
				t.Error("the rest was taken")
			}
			if err := boss.Input(t.Context(), []byte("\x15echo by the o''wner\r")); err != nil {
				t.Fatal(err)
			}
			w.text(t, "\x1b[?2004l\rby the owner\r\n")
			w.mu.Lock()
			defer w.mu.Unlock()
			if strings.Contains(string(w.output), "201~") {
				t.Errorf("a bracket was typed: %q", w.output)
			}
		})
	}
}
