package corpus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Figures count how often and how soon the verdicts of cases were right.
type Figures struct {
	Cases int
	Asked int // transitions to NeedsPerson
	Found int // of these, those that the verdict followed
	// False is how often the verdict changed to NeedsPerson, or stayed that, while nobody was
	// needed.
	False int
	Ended int // transitions to Working
	Freed int // of these, those that the verdict followed
	// Dropped is how often the verdict changed to Working while a person was needed.
	Dropped   int
	Latencies []time.Duration // of Found, sorted by Add
}

// Add adds the transitions of a case.
func (f *Figures) Add(all []Transition) {
	f.Cases++
	for _, t := range all {
		switch t.To {
		case NeedsPerson:
			f.Dropped += t.Wrong
			if t.First {
				break
			}
			if f.Asked++; t.Found {
				f.Found++
				at, _ := slices.BinarySearch(f.Latencies, t.Latency)
				f.Latencies = slices.Insert(f.Latencies, at, t.Latency)
			}
		default:
			f.False += t.Wrong
			if t.First {
				break
			}
			if f.Ended++; t.Found {
				f.Freed++
			}
		}
	}
}

// Transitions is the number of changes of the truth.
func (f *Figures) Transitions() int { return f.Asked + f.Ended }

// Precision is how often a person was needed when the verdict said so.
func (f *Figures) Precision() float64 { return share(f.Found, f.Found+f.False) }

// Recall is how often the verdict said that a person was needed when that was so.
func (f *Figures) Recall() float64 { return share(f.Found, f.Asked) }

func share(n, of int) float64 {
	if of == 0 {
		return 1
	}
	return float64(n) / float64(of)
}

// Percentile returns the latency that percent of Found do not exceed.
func (f *Figures) Percentile(percent int) time.Duration {
	n := len(f.Latencies)
	if n == 0 {
		return 0
	}
	return f.Latencies[(n*percent+99)/100-1]
}

// Merge adds the counts of g.
func (f *Figures) Merge(g *Figures) {
	f.Cases += g.Cases
	f.Asked += g.Asked
	f.Found += g.Found
	f.False += g.False
	f.Ended += g.Ended
	f.Freed += g.Freed
	f.Dropped += g.Dropped
	f.Latencies = append(f.Latencies, g.Latencies...)
	slices.Sort(f.Latencies)
}

// Table returns figures by name as a table in Markdown. Latencies are in milliseconds.
func Table(all map[string]*Figures) string {
	var b strings.Builder
	b.WriteString("| program | cases | asks | found | false | dropped | ends | median | p99 " +
		"| max |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		ms := func(percent int) string {
			if f.Found == 0 {
				return "–"
			}
			return fmt.Sprintf("%.1f", float64(f.Percentile(percent).Microseconds())/1000)
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %s | %s | %s |\n", name, f.Cases,
			f.Asked, f.Found, f.False, f.Dropped, f.Ended, ms(50), ms(99), ms(100))
	}
	return b.String()
}
