package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// judge compares the answers with what was done.
func (r *faultRound) judge(callers []caller, answers []answer) {
	ran := r.counts()
	shown := r.recorded()
	f := r.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, c := range callers {
		a, times := answers[i], ran[r.tag(c.name)]
		key := [2]string{r.fault.name, c.name}
		n := f.tally[key]
		if n == nil {
			n = new(faultTally)
			f.tally[key] = n
		}
		n.trials++
		wrong := func(counter *int, what string) {
			*counter++
			f.t.Errorf("%s, %s, %s: %s: ran %d times, answer %s: %s", r.fault.name, r.phase, c.name,
				what, times, a.class, a.text)
		}
		switch a.class {
		case answeredDone:
			n.done++
			if times != 1 {
				wrong(&n.repeated, "done, and not once")
			}
		case answeredLost:
			n.lost++
		case answeredRefused:
			n.refused++
			if times > 0 {
				wrong(&n.afterRefused, "ran after refused")
			}
		default:
			n.other++
		}
		if times > 1 && a.class != answeredDone {
			wrong(&n.repeated, "repeated")
		}
		if secret := "secret-" + r.tag(c.name); ran[secret] > 0 {
			wrong(&n.repeated, "the secret ran as a command")
		} else if slices.Contains(shown, secret) {
			wrong(&n.repeated, "the record shows the secret")
		}
		within := cmp.Or(r.fault.within, answerWithin)
		if !c.session {
			within = cmp.Or(r.fault.relayed, within)
		}
		if n.latest = max(n.latest, a.late); a.late > within {
			wrong(&n.late, fmt.Sprintf("answered after %v", a.late))
		}
		if a.class != answeredDone {
			f.texts[fmt.Sprintf("%-14s %-7s %-8s %s", r.fault.name, c.name, a.class,
				plain(a.text, r.sandbox))]++
		}
	}
}

// plain removes what differs between rounds from a text.
func plain(text, sandbox string) string {
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), sandbox, "SANDBOX")
	return text[:min(len(text), 220)]
}

// recorded returns the secrets in the sandbox's recording.
func (r *faultRound) recorded() (shown []string) {
	_ = filepath.WalkDir(filepath.Join(r.f.m.state, "records", r.id),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // removed meanwhile
			}
			text, _ := os.ReadFile(path)
			for _, c := range callers {
				if secret := "secret-" + r.tag(c.name); bytes.Contains(text, []byte(secret)) {
					shown = append(shown, secret)
				}
			}
			return nil
		})
	return shown
}

// print writes the table.
func (f *faultMatrix) print() {
	var out strings.Builder
	row := func(fault, caller string, n *faultTally) {
		fmt.Fprintf(&out, "| %s | %s | %d | %d | %d | %d | %d | %d | %d | %d | %.1f s |\n", fault,
			caller,
			n.trials, n.done, n.lost, n.refused, n.other, n.repeated, n.afterRefused, n.late,
			max(n.latest, 0).Seconds())
	}
	out.WriteString(
		"| fault | caller | trials | done | lost | refused | other | repeated | ran after " +
			"refused | late | latest answer |\n")
	out.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	var sum faultTally
	var keys [][2]string
	for key, n := range f.tally {
		keys = append(keys, key)
		sum.trials, sum.done, sum.lost = sum.trials+n.trials, sum.done+n.done, sum.lost+n.lost
		sum.refused, sum.other, sum.repeated = sum.refused+n.refused, sum.other+n.other,
			sum.repeated+n.repeated
		sum.afterRefused, sum.late = sum.afterRefused+n.afterRefused, sum.late+n.late
		sum.latest = max(sum.latest, n.latest)
	}
	slices.SortFunc(keys, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, key := range keys {
		row(key[0], key[1], f.tally[key])
	}
	row("all", "all", &sum)
	f.t.Log("\n" + out.String())
	var texts []string
	for text, n := range f.texts {
		texts = append(texts, fmt.Sprintf("%s × %d", text, n))
	}
	slices.Sort(texts)
	f.t.Log("what callers read:\n" + strings.Join(texts, "\n"))
}
