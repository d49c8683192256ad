package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Options configure a run. Client is required. The zero value of all other fields works.
type Options struct {
	Client *agent.Client // sandbox in which cases run

	// Privileged is a sandbox in which setuid programs work, for the cases that need one. If it is
	// nil, they are not run.
	Privileged *agent.Client

	Dial func(ctx context.Context) (*agent.Client, error) // see World
	// Packages has the Debian package of a program, if its name differs.
	Packages map[string]string
	Tiers    []Tier // empty means Full
	// Slow is a factor for the time limits of results on this machine. 0 means 1.
	Slow float64

	Report  func(Outcome)     // receives each outcome
	Install func(what string) // called before programs are installed
}

// Outcome is the outcome of one case on one tier.
type Outcome struct {
	Case   string        `json:"case"`
	Group  string        `json:"group"`
	Tier   Tier          `json:"tier"`
	Pass   bool          `json:"pass"`
	Basis  []agent.Basis `json:"basis"`  // evidence for the last state
	Got    Facts         `json:"got"`    // fields of the failed or last step
	Want   Facts         `json:"want"`   // expected fields
	MS     int64         `json:"ms"`     // duration of the case in milliseconds
	Reason string        `json:"reason"` // why it did not pass; empty if it passed

	// Excused cases cannot pass on this tier and were not run.
	Excused bool `json:"excused,omitempty"`
	NotRun  bool `json:"not_run,omitempty"` // it was not run because a requirement is missing
}

// caseTime bounds a case.
const caseTime = 8 * time.Minute

// setupTime bounds the files and the setup of a case.
const setupTime = 3 * time.Minute

// cleanTime bounds the cleanup of a case.
const cleanTime = 20 * time.Second

// All runs the cases one after another, tier by tier, and returns their outcomes. A case that
// fails, hangs or loses its connection is an outcome. All returns an error if ctx ends, or if no
// command runs in a sandbox at all.
func All(ctx context.Context, cases []Case, o Options) ([]Outcome, error) {
	if len(o.Tiers) == 0 {
		o.Tiers = []Tier{Full}
	}
	if o.Slow == 0 {
		o.Slow = 1
	}
	for _, client := range []*agent.Client{o.Client, o.Privileged} {
		if client == nil {
			continue
		}
		if _, err := quiet(ctx, client, "true"); err != nil {
			return nil, fmt.Errorf("sandbox %s: %w", client.Sandbox(), err)
		}
	}
	missing := o.provide(ctx, cases)
	var all []Outcome
	for _, tier := range o.Tiers {
		for _, c := range cases {
			if err := context.Cause(ctx); err != nil {
				return all, err
			}
			out := o.one(ctx, c, tier, missing)
			all = append(all, out)
			if o.Report != nil {
				o.Report(out)
			}
		}
	}
	return all, nil
}

// one runs a case.
func (o Options) one(
	ctx context.Context,
	c Case,
	tier Tier,
	missing map[*agent.Client]map[string]string,
) (out Outcome) {
	out = Outcome{
		Case:  c.Name,
		Group: c.Group,
		Tier:  tier,
		Basis: []agent.Basis{},
		Got:   Facts{},
		Want:  Facts{},
	}
	if why := c.Cannot[tier]; why != "" {
		out.Excused, out.Reason = true, why
		return out
	}
	client := o.client(c)
	if client == nil {
		out.NotRun, out.Reason = true, "it needs a sandbox created with --sudo"
		return out
	}
	for _, program := range c.Needs {
		if why := missing[client][program]; why != "" {
			out.NotRun, out.Reason = true, program+": "+why
			return out
		}
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		caseTime,
		errors.New("the case took too long"),
	)
	defer cancel()
	p := &play{
		Case:   c,
		tier:   tier,
		slow:   o.Slow,
		client: client,
		shells: make(map[string]*agent.Shell),
		out:    &out,
	}
	defer p.clean(ctx)
	err := p.prepare(ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("setup: %w", err)
	case c.Do != nil:
		err = c.Do(ctx, World{Client: client, Tier: tier, Dial: o.Dial, Slow: o.Slow})
	default:
		err = p.steps(ctx, c.Steps, "")
	}
	out.MS = time.Since(began).Milliseconds()
	out.Pass = err == nil
	if err != nil {
		out.Reason = err.Error()
	}
	return out
}

func (o Options) client(c Case) *agent.Client {
	if c.Privileged {
		return o.Privileged
	}
	return o.Client
}

// provide installs the programs that the cases need. It returns the missing programs of each
// sandbox, with the reason.
func (o Options) provide(ctx context.Context, cases []Case) map[*agent.Client]map[string]string {
	missing := make(map[*agent.Client]map[string]string)
	for _, client := range []*agent.Client{o.Client, o.Privileged} {
		var here []Case
		for _, c := range cases {
			if o.client(c) == client {
				here = append(here, c)
			}
		}
		if client != nil {
			missing[client] = o.install(ctx, client, programs(here))
		}
	}
	return missing
}

// installTime bounds an installation.
const installTime = 15 * time.Minute

// absent returns the missing programs.
func absent(ctx context.Context, c *agent.Client, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out, err := quiet(ctx, c, "for p in "+text.Quote(names...)+
		`; do command -v "$p" >/dev/null || echo "$p"; done`)
	return strings.Fields(out), err
}

// install installs programs with one apt-get, or, if that fails, with one for each.
func (o Options) install(ctx context.Context, c *agent.Client, names []string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	why := make(map[string]string)
	all := func(names []string, err error) map[string]string {
		for _, n := range names {
			why[n] = err.Error()
		}
		return why
	}
	need, err := absent(ctx, c, names)
	if err != nil {
		return all(names, err)
	}
	if len(need) == 0 {
		return why
	}
	packages := make([]string, len(need))
	for i, n := range need {
		packages[i] = n
		if p := o.Packages[n]; p != "" {
			packages[i] = p
		}
	}
	once := slices.Compact(slices.Sorted(slices.Values(packages)))
	if o.Install != nil {
		o.Install(strings.Join(once, " ") + " in " + c.Sandbox())
	}
	const get = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "
	if _, err := quiet(ctx, c, "apt-get update -qq"); err != nil {
		return all(need, err)
	}
	if _, err := quiet(ctx, c, get+text.Quote(
		strings.Fields(strings.Join(once, " "))...)); err != nil {
		for i, n := range need {
			if _, err := quiet(ctx, c, get+text.Quote(
				strings.Fields(packages[i])...)); err != nil {
				why[n] = err.Error()
			}
		}
	}
	need, err = absent(ctx, c, need)
	if err != nil {
		return all(need, err)
	}
	for _, n := range need {
		if why[n] == "" {
			why[n] = "its package does not have the program"
		}
	}
	return why
}

// quiet runs a shell command without a terminal and returns its output. An exit code other than 0
// is an error.
func quiet(ctx context.Context, c *agent.Client, script string) (string, error) {
	var stdout, stderr bytes.Buffer
	exit, err := c.Exec(ctx, agent.Cmd{Command: script, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return "", err
	}
	if exit.Code != 0 {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("exit code %d: %s", exit.Code, short(lines[len(lines)-1]))
	}
	return stdout.String(), nil
}
