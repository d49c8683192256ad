package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Where results are kept, below the repository's root.
const (
	page    = "docs/reports/interop.md"
	ratchet = "scripts/interop/ratchet" // names of what passed once, a line each, sorted
)

// result is how one check ended.
type result struct {
	behind, group, name string
	err                 error  // nil passed
	na                  string // why it was not run on this machine; empty if it was
	note                string
	took                time.Duration
}

func (r result) key() string { return key(r.behind, r.group, r.name) }

// hostKey is how the names of checks with a host behind begin.
const hostKey = host + "/"

// key names a check in the ratchet.
func key(behind, group, name string) string {
	if behind == host {
		return hostKey + group + "/" + name
	}
	return group + "/" + name
}

func (r result) verdict() string {
	switch {
	case r.na != "":
		return "not run"
	case r.err != nil:
		return "fail"
	}
	return "pass"
}

// never are the checks that cannot apply to what is behind, on no machine.
var never = []struct{ behind, group, name, why string }{
	{container, "dropbear", "test_netcat",
		"the test's server listens on the machine's loopback, not on the container's"},
	{container, "dropbear", "test_tcpflushout",
		"as above; `ssh -L`, `-R` and `dbclient -L` are among the clients"},
}

// errNotHere says that a machine lacks what a check needs, through no fault of the packages that
// scripts/setup installs.
type errNotHere struct{ what string }

func (e errNotHere) Error() string { return e.what }

// report collects results and prints them as they come.
type report struct {
	only    *regexp.Regexp
	backs   []string // what stands behind, one after the other
	behind  string   // the one that runs
	took    map[string]time.Duration
	results []result
}

func newReport(only, behind string) (*report, error) {
	r := &report{took: map[string]time.Duration{}}
	switch behind {
	case container, host:
		r.backs = []string{behind}
	case "both":
		r.backs = []string{container, host}
	default:
		return nil, fmt.Errorf("what is %q? -behind takes container, host or both", behind)
	}
	var err error
	r.only, err = regexp.Compile(only)
	return r, err
}

// wants reports whether a check was asked for and can apply.
func (r *report) wants(group, name string) bool {
	for _, n := range never {
		if n.behind == r.behind && n.group == group && n.name == name {
			return false
		}
	}
	return r.only.MatchString(key(r.behind, group, name))
}

// chose reports whether a check of the ratchet was asked for.
func (r *report) chose(key string) bool {
	behind := container
	if strings.HasPrefix(key, hostKey) {
		behind = host
	}
	return slices.Contains(r.backs, behind) && r.only.MatchString(key)
}

func (r *report) add(x result) {
	var missing errNotHere
	if errors.As(x.err, &missing) {
		x.na, x.err = missing.what, nil
	}
	r.results = append(r.results, x)
	fmt.Printf("%-8s %5.1f s  %s\n", x.verdict(), x.took.Seconds(), x.key())
	if x.na != "" {
		fmt.Printf("  | %s\n", x.na)
	}
	if x.err != nil {
		for line := range strings.Lines(printable(x.err.Error())) {
			fmt.Printf("  | %s\n", strings.TrimRight(line, "\n"))
		}
	}
}

// check runs one check if it was asked for.
func (r *report) check(group, name, note string, f func() error) {
	if !r.wants(group, name) {
		return
	}
	began := time.Now()
	err := f()
	r.add(result{behind: r.behind, group: group, name: name, note: note, err: err,
		took: time.Since(began)})
}

// printable shortens a text and leaves out what a terminal would act on.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s)
	if len(s) > 4000 {
		s = s[:2000] + "\n…\n" + s[len(s)-2000:]
	}
	return s
}

// judge compares the results with the ratchet: broken are the checks that passed once and did not
// now, failed those that never passed.
func (r *report) judge() (broken, failed []string, err error) {
	once, err := readRatchet()
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for _, x := range r.results {
		seen[x.key()] = true
		if x.verdict() == "pass" {
			continue
		}
		if slices.Contains(once, x.key()) {
			broken = append(broken, x.key())
		} else if x.err != nil {
			failed = append(failed, x.key())
		}
	}
	for _, key := range once {
		if !seen[key] && r.chose(key) {
			broken = append(broken, key+" (no longer there)")
		}
	}
	return broken, failed, nil
}

func readRatchet() ([]string, error) {
	b, err := os.ReadFile(ratchet)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Names have blanks.
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' }), nil
}

// tighten adds what passed now to the ratchet. Nothing is ever taken out by a program.
func (r *report) tighten() error {
	all, err := readRatchet()
	if err != nil {
		return err
	}
	for _, x := range r.results {
		if x.verdict() == "pass" {
			all = append(all, x.key())
		}
	}
	slices.Sort(all)
	return os.WriteFile(ratchet, []byte(strings.Join(slices.Compact(all), "\n")+"\n"), 0o644)
}

const (
	tableBegins = "<!-- results -->"
	tableEnds   = "<!-- end of results -->"
)

// document puts the table of results between the two comments of the page.
func (r *report) document(with string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(old, []byte(tableBegins))
	_, after, found2 := bytes.Cut(rest, []byte(tableEnds))
	if !found || !found2 {
		return fmt.Errorf("%s: no %s and %s", page, tableBegins, tableEnds)
	}
	// Verdicts by key; those of an earlier run stay where a check was not asked for now.
	cells := make(map[string]string)
	notes := make(map[string]string) // by group/name
	for _, g := range groups {
		_, section, _ := strings.Cut(string(rest), "\n### "+g.title+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		for line := range strings.Lines(section) {
			if f := strings.SplitN(strings.Trim(line, "|\n "), " | ", 4); len(f) > 2 {
				cells[key(container, g.name, f[0])], cells[key(host, g.name, f[0])] = f[1], f[2]
				notes[key(container, g.name, f[0])] = strings.Join(f[3:], "")
			}
		}
	}
	for _, x := range r.results {
		verdict := x.verdict()
		if x.na != "" {
			verdict += ": " + x.na
		}
		cells[x.key()] = cell(verdict)
		notes[key(container, x.group, x.name)] = cell(x.note)
	}
	said := r.lastRun(string(rest), with)
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	fmt.Fprintf(w, "%s%s\n\n%s\n", before, tableBegins, said)
	for _, g := range groups {
		fmt.Fprintf(
			w, "\n### %s\n\n%s\n\n| check | container | host | |\n| --- | --- | --- | --- |\n",
			g.title, g.about)
		for _, name := range g.names() {
			one, two := cells[key(container, g.name, name)], cells[key(host, g.name, name)]
			if one != "" || two != "" {
				fmt.Fprintf(w, "| %s | %s | %s | %s |\n", name, orDash(one), orDash(two),
					notes[key(container, g.name, name)])
			}
		}
	}
	fmt.Fprintf(
		w, "\n### Checks that do not apply\n\n| check | behind | why |\n| --- | --- | --- |\n")
	for _, n := range never {
		fmt.Fprintf(w, "| %s: %s | %s | %s |\n", n.group, n.name, n.behind, cell(n.why))
	}
	fmt.Fprintf(w,
		"\n### Scripts of OpenSSH's suite that do not apply\n\n| scripts | why |\n| --- | --- |\n")
	for _, d := range doesNotApply {
		fmt.Fprintf(w, "| %s | %s |\n", strings.Join(strings.Fields(d.scripts), ", "), cell(d.why))
	}
	fmt.Fprintf(w, "\n%s%s", tableEnds, after)
	if err := w.Flush(); err != nil {
		return err
	}
	return os.WriteFile(page, out.Bytes(), 0o644)
}

// wholeRun is how long a whole run takes, as lastRun writes it.
var wholeRun = regexp.MustCompile(`\S+ with a container, \S+ with a host`)

// lastRun returns a table with the date of this run, the versions that it used, and how long a
// whole run takes. A partial run keeps that time of the old page.
func (r *report) lastRun(old, with string) string {
	took := wholeRun.FindString(old)
	if r.only.String() == "" && len(r.backs) == 2 {
		took = fmt.Sprintf("%s with a container, %s with a host",
			r.took[container].Round(time.Second), r.took[host].Round(time.Second))
	}
	return fmt.Sprintf(
		"| last run | with | a whole run takes |\n| --- | --- | --- |\n| %s | %s | %s |",
		time.Now().UTC().Format(time.DateOnly), cell(with), orDash(took))
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func (r *report) count() string {
	n := map[string]int{}
	for _, x := range r.results {
		n[x.verdict()]++
	}
	return fmt.Sprintf("%d passed, %d failed, %d not run", n["pass"], n["fail"], n["not run"])
}
