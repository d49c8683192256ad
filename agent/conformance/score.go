package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// Count counts outcomes.
type Count struct {
	Cases   int `json:"cases"`
	Pass    int `json:"pass"`
	Fail    int `json:"fail"`
	NotRun  int `json:"not_run"` // not run; they count as failed
	Excused int `json:"excused"` // cannot pass on their tier
}

// OK reports whether all cases that must pass did.
func (c Count) OK() bool { return c.Fail == 0 && c.NotRun == 0 }

func (c *Count) add(o Outcome) {
	c.Cases++
	switch {
	case o.Excused:
		c.Excused++
	case o.NotRun:
		c.NotRun++
	case o.Pass:
		c.Pass++
	default:
		c.Fail++
	}
}

// Score counts outcomes by tier, by group, and by the strongest evidence for the last state of a
// case.
type Score struct {
	Count
	Tiers  map[Tier]Count            `json:"tiers"`
	Groups map[string]map[Tier]Count `json:"groups"`
	Basis  map[string]map[Tier]Count `json:"basis"`

	order []string  // of groups
	tiers []Tier    // in order
	short []Outcome // outcomes that did not pass
}

// ScoreOf counts outcomes.
func ScoreOf(all []Outcome) Score {
	s := Score{
		Tiers:  make(map[Tier]Count),
		Groups: make(map[string]map[Tier]Count),
		Basis:  make(map[string]map[Tier]Count),
	}
	for _, o := range all {
		if !slices.Contains(s.order, o.Group) {
			s.order = append(s.order, o.Group)
		}
		if !slices.Contains(s.tiers, o.Tier) {
			s.tiers = append(s.tiers, o.Tier)
		}
		s.add(o)
		c := s.Tiers[o.Tier]
		c.add(o)
		s.Tiers[o.Tier] = c
		count(s.Groups, o.Group, o)
		if len(o.Basis) > 0 {
			count(s.Basis, string(o.Basis[0]), o)
		}
		if !o.Pass {
			s.short = append(s.short, o)
		}
	}
	return s
}

func count(by map[string]map[Tier]Count, key string, o Outcome) {
	if by[key] == nil {
		by[key] = make(map[Tier]Count)
	}
	c := by[key][o.Tier]
	c.add(o)
	by[key][o.Tier] = c
}

// Table returns the score as Markdown: a row for each group and layer, a column for each tier, then
// the cases that failed or were not run, and the reasons of those that cannot pass. A cell has the
// number of passed cases of those that must pass.
func (s Score) Table() string {
	var b strings.Builder
	row := func(name string, counts map[Tier]Count) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, t := range s.tiers {
			fmt.Fprintf(&b, " %s |", counts[t])
		}
		b.WriteByte('\n')
	}
	head := func(first string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, t := range s.tiers {
			fmt.Fprintf(&b, " %s |", t)
		}
		b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(s.tiers)) + "\n")
	}
	head("group")
	for _, g := range s.order {
		row(g, s.Groups[g])
	}
	row("**all**", s.Tiers)
	b.WriteByte('\n')
	head("strongest layer")
	for _, layer := range []string{"exit", "process", "mark", "screen", "silence"} {
		if s.Basis[layer] != nil {
			row(layer, s.Basis[layer])
		}
	}
	s.reasons(&b)
	return b.String()
}

// reasons lists the cases that did not pass.
func (s Score) reasons(b *strings.Builder) {
	var failed, reasons []string
	excused := make(map[string]int) // cases by tier and reason
	for _, o := range s.short {
		if !o.Excused {
			why, _, _ := strings.Cut(o.Reason, "\n")
			failed = append(
				failed,
				fmt.Sprintf("| %s/%s | %s | %s |\n", o.Group, o.Case, o.Tier, cell(why)),
			)
			continue
		}
		key := fmt.Sprintf("| %s | %s |", o.Tier, cell(o.Reason))
		if excused[key] == 0 {
			reasons = append(reasons, key)
		}
		excused[key]++
	}
	if len(failed) > 0 {
		b.WriteString("\n| failed, or not run | tier | what was seen |\n| --- | --- | --- |\n")
		b.WriteString(strings.Join(failed, ""))
	}
	if len(reasons) > 0 {
		b.WriteString("\n| tier | why cases cannot pass | how many |\n| --- | --- | --- |\n")
		for _, key := range reasons {
			fmt.Fprintf(b, "%s %d |\n", key, excused[key])
		}
	}
}

// cell shortens a text for a cell of a Markdown table and escapes it.
func cell(s string) string {
	const most = 160
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;", "`", "'", "\uFFFD", "?").
		Replace(s)
}

// String returns a cell of the table.
func (c Count) String() string {
	if c.Cases == 0 {
		return "–"
	}
	text := fmt.Sprintf("%d of %d", c.Pass, c.Cases-c.Excused)
	if c.NotRun > 0 {
		text += fmt.Sprintf(", %d not run", c.NotRun)
	}
	if c.Excused > 0 {
		text += fmt.Sprintf(", %d cannot", c.Excused)
	}
	return text
}
