package corpus

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var update = flag.Bool("update", false, "write the figures into docs/reports/attention.md")

// What the recorded corpus reaches. These figures may only get better.
const (
	leastTransitions = 2500
	leastPrecision   = 0.998
	leastRecall      = 0.999
	// 99th percentiles
	mostBlocks  = 8 * time.Millisecond
	mostListens = 950 * time.Millisecond
)

// recorded are the figures of the corpus.
type recorded struct {
	all                Figures
	byProgram, byClass map[string]*Figures
	differ             int // verdicts that are not those of the recording
}

// add replays a case.
func (r *recorded) add(t *testing.T, name string, c *Case) error {
	says, err := c.Replay()
	if err != nil {
		return err
	}
	if says != c.Said {
		r.differ++
		t.Logf("%s: %s: the replay says %s, sandboxd said %s", name, c.Program, says, c.Said)
	}
	all, err := c.Judge()
	if err != nil {
		return err
	}
	for _, tr := range all {
		if tr.Wrong > 0 || !tr.Found {
			t.Logf("%s: %s: %+v", name, c.Program, tr)
		}
	}
	r.all.Add(all)
	figures(r.byProgram, c.Program).Add(all)
	starts := slices.DeleteFunc(slices.Clone(all), func(t Transition) bool { return !t.Start })
	if len(starts) > 0 {
		figures(r.byClass, "*starts*").Add(starts)
	}
	figures(r.byClass, "*"+string(c.Class)+"*").Add(
		slices.DeleteFunc(all, func(t Transition) bool { return t.Start }))
	return nil
}

// figures returns those of a name.
func figures(all map[string]*Figures, name string) *Figures {
	if all[name] == nil {
		all[name] = new(Figures)
	}
	return all[name]
}

// TestCorpus replays the recorded cases of real programs, and those that were captured.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	r := &recorded{byProgram: map[string]*Figures{}, byClass: map[string]*Figures{}}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = Read(f, func(c *Case) error {
			n++
			return r.add(t, fmt.Sprintf("%s: case %d", filepath.Base(name), n), c)
		})
		f.Close()
		if err != nil {
			t.Fatalf("%s: case %d: %v", name, n, err)
		}
	}
	all, blocks, listens := &r.all, r.byClass["*blocks*"], r.byClass["*listens*"]
	r.byClass["**all**"] = all
	var quiet []string // programs that never ask, of which nothing is wrong
	for name, f := range r.byProgram {
		if f.Asked == 0 && f.False == 0 && f.Dropped == 0 {
			quiet = append(quiet, name)
			delete(r.byProgram, name)
		}
	}
	slices.Sort(quiet)
	table := Table(r.byClass) + "\n" + Table(r.byProgram) + "\n" + wrap(fmt.Sprintf(
		"Another %d programs only work, and no verdict on them is wrong: %s.", len(quiet),
		strings.Join(quiet, ", ")))
	t.Logf("%d transitions, precision %.4f, recall %.4f, %d verdicts differ from those of the "+
		"recording\n%s", all.Transitions(), all.Precision(), all.Recall(), r.differ, table)
	if all.Transitions() < leastTransitions || all.Precision() < leastPrecision ||
		all.Recall() < leastRecall || blocks.Percentile(99) > mostBlocks ||
		listens.Percentile(99) > mostListens {
		t.Errorf("%d transitions, precision %.4f, recall %.4f, 99th percentiles %v and %v; want "+
			"%d, %.4f, %.4f, %v and %v", all.Transitions(), all.Precision(), all.Recall(),
			blocks.Percentile(99), listens.Percentile(99), leastTransitions, leastPrecision,
			leastRecall, mostBlocks, mostListens)
	}
	checkReport(t, fmt.Sprintf("%d transitions in %d cases: precision %.4f, recall %.4f.\n\n%s",
		all.Transitions(), all.Cases, all.Precision(), all.Recall(), table))
}

// wrap breaks text into lines of at most 100 columns.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 100:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}

// checkReport checks that the report has the figures, or with -update writes them into it.
func checkReport(t *testing.T, figures string) {
	t.Helper()
	const file = "../../../../docs/reports/attention.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- figures -->\n", "<!-- end of figures -->"
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for figures", file)
	}
	want := before + begin + "\n" + figures + "\n" + end + after
	if diff := cmp.Diff(want, string(text)); diff != "" && !*update {
		t.Errorf("%s has other figures; run this test with -update (-replay +report):\n%s", file,
			diff)
	}
	if !*update {
		return
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

var start = time.UnixMicro(1_000_000_000_000_000)

// at returns a time in the trace of newCase.
func at(ms int) int64 { return start.UnixMicro() + int64(ms)*1000 }

// newCase returns a case: a program works, asks at 1,000 ms, gets an answer at 2,000 ms and ends at
// 3,000 ms.
func newCase(t *testing.T) *Case {
	t.Helper()
	now := start
	end := uint64(0)
	moment := func() track.Moment { return track.Moment{Time: now, End: end} }
	after := func(ms int) { now = start.Add(time.Duration(ms) * time.Millisecond) }
	tr, _ := track.New(now).Restart(track.Options{Marked: true, TypedMarks: true}, moment())
	mark := func(m marks.Mark) {
		tr.Printed(now)
		tr.Mark(m, track.Front{Shell: true, Known: true}, moment())
	}
	mark(marks.Mark{Kind: marks.PromptStart})
	mark(marks.Mark{Kind: marks.PromptEnd})
	mark(marks.Mark{Kind: marks.CommandStart})
	facts := track.Facts{Foreground: 7, Pid: 7, Argv: []string{"apt"}}
	look := func() {
		tr.Look(track.Look{Facts: facts, Shell: 1, Before: "sure? ", Anew: true}, moment())
	}
	after(500)
	look()
	after(999)
	end += 10
	tr.Printed(now)
	facts.Blocked, facts.Want = true, wire.WantLine
	after(1000)
	look()
	after(2000)
	tr.Writes()
	tr.Input([]byte("y\r"), 0, moment())
	tr.Wrote(now)
	facts.Blocked = false
	after(2001)
	look()
	after(3000)
	mark(marks.Mark{Kind: marks.PromptStart})
	mark(marks.Mark{Kind: marks.PromptEnd})
	trace, err := json.Marshal(tr.Trace(now))
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(trace)
	if err != nil {
		t.Fatal(err)
	}
	c.Is = Working
	return c
}

// TestJudge compares the verdicts of one trace with different labels.
func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name   string
		labels []Label
		want   Figures
	}{
		{"right", []Label{{Is: Working, At: at(0)}, {Is: NeedsPerson, End: 10},
			{Is: Working, At: at(1999)}},
			Figures{Cases: 1, Asked: 1, Found: 1, Ended: 1, Freed: 1,
				Latencies: []time.Duration{time.Millisecond}}},
		{"only the end", nil, Figures{Cases: 1, Ended: 1, Freed: 1}},
		{"it did not ask", []Label{{Is: Working, At: at(0)}}, Figures{Cases: 1, False: 1}},
		{"it asked before", []Label{{Is: Working, At: at(0)}, {Is: NeedsPerson, At: at(500)},
			{Is: Working, At: at(1999)}},
			Figures{Cases: 1, Asked: 1, Found: 1, Ended: 1, Freed: 1,
				Latencies: []time.Duration{500 * time.Millisecond}}},
		{"it asked only before", []Label{{Is: Working, At: at(0)}, {Is: NeedsPerson, At: at(500)},
			{Is: Working, At: at(600)}},
			Figures{Cases: 1, Asked: 1, False: 1, Ended: 1, Freed: 1}},
		{"it asks still", []Label{{Is: Working, At: at(0)}, {Is: NeedsPerson, End: 10}},
			Figures{Cases: 1, Asked: 1, Found: 1, Dropped: 1,
				Latencies: []time.Duration{time.Millisecond}}},
		{"it was free before", []Label{{Is: NeedsPerson, At: at(1000)}, {Is: Working, At: at(1500)}},
			Figures{Cases: 1, False: 1, Ended: 1, Freed: 1}},
		{"not known", []Label{{Is: Working, At: at(0)}, {At: at(900)},
			{Is: Working, At: at(1999)}}, Figures{Cases: 1, Ended: 1, Freed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCase(t)
			c.Labels = tt.labels
			all, err := c.Judge()
			if err != nil {
				t.Fatal(err)
			}
			var got Figures
			got.Add(all)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestFile writes cases to a file and reads them back.
func TestFile(t *testing.T) {
	c := newCase(t)
	var plain, zipped bytes.Buffer
	if err := c.Write(&plain); err != nil {
		t.Fatal(err)
	}
	one := plain.String()
	part, err := track.Since(c.Trace, start.Add(1500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	c.Trace, c.From = part, "seed"
	if err := c.Write(&plain); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(plain.Bytes())
	z.Close()
	for _, text := range []string{plain.String(), zipped.String()} {
		var again bytes.Buffer
		if err := Read(strings.NewReader(text), func(c *Case) error {
			if v, err := c.Replay(); v != Working || err != nil {
				t.Errorf("%s, %v", v, err)
			}
			return c.Write(&again)
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plain.String(), again.String()); diff != "" {
			t.Errorf("-written +read\n%s", diff)
		}
	}
	for name, text := range map[string]string{
		"empty":           "",
		"not JSON":        "hello\n",
		"no header":       `{"do":"look"}` + "\n",
		"another version": `{"case":2}` + "\n",
		"bad line":        one + "{\n",
		"bad gzip":        "\x1f\x8b\x00",
	} {
		if err := Read(strings.NewReader(text), func(*Case) error { return nil }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWriteIsSafe checks that a terminal can be shown a case.
func TestWriteIsSafe(t *testing.T) {
	c := newCase(t)
	c.Program = "\x1b]0;title\u009b5n\u202e"
	var b bytes.Buffer
	if err := c.Write(&b); err != nil || strings.ContainsAny(b.String(), "\x1b\u009b\u202e") {
		t.Errorf("%v: %q", err, b.String()[:100])
	}
}

// TestSince checks that the end of a trace has the same verdicts as all of it.
func TestSince(t *testing.T) {
	c := newCase(t)
	whole, err := c.Judge()
	if err != nil {
		t.Fatal(err)
	}
	for _, ms := range []int{0, 400, 1000, 1001, 2000, 2500, 3000} {
		part := *c
		if part.Trace, err = track.Since(c.Trace, time.UnixMicro(at(ms))); err != nil {
			t.Fatal(err)
		}
		got, err := part.Judge()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Errorf("since %d ms: -whole +part\n%s", ms, diff)
		}
		// A part whose end is known again from a later trace.
		first := *c
		first.Trace.Observations = slices.Clone(c.Trace.Observations)
		err = first.Extend(c, time.UnixMicro(at(ms)))
		if ms == 0 {
			if err == nil {
				t.Error("extended by a trace without what was before")
			}
			continue
		}
		if diff := cmp.Diff(c.Trace, first.Trace); err != nil || diff != "" {
			t.Errorf("extended at %d ms: %v, -whole +extended\n%s", ms, err, diff)
		}
	}
}

// FuzzRead reads and replays any file.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"case":1}` + "\n" + `{"seed":{"number":1,"phase":"running"}}` + "\n" +
		`{"do":"look","tracker":1,"at":5,"look":{"blocked":true}}` + "\n"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_ = Read(bytes.NewReader(text), func(c *Case) error {
			_, _ = c.Replay()
			_, _ = c.Judge()
			return nil
		})
	})
}

// TestReadRejects checks that files of others cannot make Read or Replay run for long, and have
// only known verdicts.
func TestReadRejects(t *testing.T) {
	const header = `{"case":1,"said":"working","is":"working","from":"start","state":{}}`
	edit := func(from, to string) string { return strings.Replace(header, from, to, 1) }
	many := func(line string, n int) string { return header + "\n" + strings.Repeat(line+"\n", n) }
	for name, tt := range map[string]struct{ file, want string }{
		"verdict":     {edit(`"is":"working"`, `"is":"\u001b]52;c;aGk="`), "verdict"},
		"label":       {edit(`"from"`, `"labels":[{"is":"no"}],"from"`), "verdict"},
		"version":     {edit(`"case":1`, `"case":2`), "version 2"},
		"repetitions": {many(`{"do":"look","more":1048000}`, 3), "more than 1048576 observations"},
		"length":      {many(`{"do":"output"}`+strings.Repeat(" ", 1<<19), 200), "more than 64 MiB"},
		"no case":     {`{"do":"look"}`, "not a case file"},
		"nothing":     {"", "it is empty"},
	} {
		err := Read(strings.NewReader(tt.file), func(*Case) error { return nil })
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
