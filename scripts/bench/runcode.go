package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// runCode: what run_code of E2B's code interpreter asks for, without what the SDK itself takes,
// against a Jupyter server of the same image in a plain container.
func runCode(ctx context.Context, b *bench) ([]row, error) {
	d, err := b.api(b.daemon)
	if err != nil {
		return nil, err
	}
	text, err := d.ask(ctx, http.MethodPost, "/e2b/v2/sandboxes",
		[]byte(`{"templateID":"code-interpreter-v1","timeout":600}`))
	if err != nil {
		return nil, err
	}
	var box struct {
		ID     string `json:"sandboxID"`
		Access string `json:"envdAccessToken"`
	}
	if err := json.Unmarshal(text, &box); err != nil {
		return nil, err
	}
	// It goes with its daemon, too.
	defer func() {
		_, _ = d.ask(context.WithoutCancel(ctx), http.MethodDelete, "/e2b/sandboxes/"+box.ID, nil)
	}()
	bare, err := b.bareJupyter(ctx)
	if err != nil {
		return nil, err
	}
	defer bare.remove()
	theirs, err := bare.kernel(ctx)
	if err != nil {
		return nil, err
	}
	run := func(code, shows string) []func() error {
		body, _ := json.Marshal(map[string]any{"code": code}) // of a string
		return []func() error{
			func() error {
				said, err := d.ask(ctx, http.MethodPost, "/e2b/execute", body, "E2b-Sandbox-Id",
					box.ID, "X-Access-Token", box.Access)
				if err == nil && !bytes.Contains(said, []byte(shows)) {
					err = fmt.Errorf("%q: %.500s", code, said)
				}
				return err
			},
			func() error { return theirs.execute(ctx, code) },
		}
	}
	for _, warm := range run(plot, `"png"`) {
		if err := warm(); err != nil {
			return nil, err
		}
	}
	sum, err := times(ctx, 100, run("1+1", `"text":"2"`)...)
	if err != nil {
		return nil, err
	}
	shown, err := times(ctx, 20, run(plot, `"png"`)...)
	if err != nil {
		return nil, err
	}
	line := func(what string, s []sample, goal string, most float64) row {
		return row{What: what, Unit: "ms", Ours: s[0], Peer: &s[1],
			Name: "Jupyter by a unix socket", Ratio: s[0].Median / s[1].Median, Goal: goal,
			Passes: s[0].Median <= most}
	}
	return []row{line("E2B: run_code, 1+1", sum, "≤ 8 ms", 8),
		line("E2B: run_code, a small plot", shown, "≤ 100 ms", 100)}, nil
}
