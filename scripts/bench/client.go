package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sandboxd/sandboxd/agent"
)

const pythonClientDir = "agent/sdk/python"

// timeRuns is what the Python client does 300 times. It prints the milliseconds of each as JSON.
const timeRuns = `
import json, sys, time
from sandboxd import Sandbox
with Sandbox(sys.argv[1], gateway=sys.argv[2], state=sys.argv[3]) as sbx:
    session, took = sbx.session("bench-python"), []
    for _ in range(320):
        began = time.perf_counter()
        assert session.run("true").ok
        took.append(1000 * (time.perf_counter() - began))
    session.end()
print(json.dumps(took[20:]))
`

// pythonClient: the Python client against the Go library, on the same sandbox.
func pythonClient(ctx context.Context, b *bench) ([]row, error) {
	if out, err := exec.CommandContext(ctx, "scripts/python-sdk",
		"install").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("python-sdk install: %w\n%s", err, out)
	}
	python := func(program string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, pythonClientDir+"/.venv/bin/python",
			append([]string{"-c", program}, args...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+pythonClientDir+"/src")
		cmd.Stderr = os.Stderr
		return cmd.Output()
	}
	sh, err := b.client.Shell(ctx, "bench-go")
	if err != nil {
		return nil, err
	}
	defer sh.Close()
	samples, err := times(ctx, 300, func() error {
		res, err := sh.Run(ctx, "true")
		if err == nil && res.Ended != agent.EndedDone {
			err = fmt.Errorf("true ended %s", res.Ended)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	out, err := python(timeRuns, "bench", "ssh://"+b.daemon.SSH, b.daemon.State)
	if err != nil {
		return nil, err
	}
	var took []float64
	if err := json.Unmarshal(out, &took); err != nil {
		return nil, fmt.Errorf("the Python client printed %q: %w", out, err)
	}
	var imports []float64
	for range 12 {
		began := time.Now()
		if _, err := python("import sandboxd"); err != nil {
			return nil, err
		}
		with := milliseconds(time.Since(began))
		began = time.Now()
		if _, err := python("pass"); err != nil {
			return nil, err
		}
		imports = append(imports, with-milliseconds(time.Since(began)))
	}
	imported := summarize(imports)
	return []row{
		against(`Python client: run("true") until its Result`, "ms", summarize(took), samples[0],
			"Go library", "≤ 1.5 ×", atMost(1.5)),
		{What: "Python client: import sandboxd", Unit: "ms", Ours: imported, Goal: "≤ 150 ms",
			Passes: imported.Median <= 150},
	}, nil
}
