package session

import (
	"bytes"
	"slices"
)

// gap is a piece p[from:to] of a terminal's output that does not belong to the searched line.
type gap struct{ from, to int }

// Costs of an explanation of the terminal's output. The cheapest explanation is used. Other
// programs mostly write whole lines, so a gap that ends a row costs less than others. Three missing
// bytes of the line cost more than a gap before them.
const (
	costLines  = 1 // a gap that ends a row
	costGap    = 2 // any other
	costMissed = 1 // a byte at the end of the line that is not in p
	costMost   = 255
)

// gapsMost limits the steps of one comparison. For a larger p, line is not searched.
const gapsMost = 16 << 20

// gaps finds line in p, in as few pieces as possible, and returns the gaps before, between and
// after them, in order. It searches for the longest likely prefix of line. If p has none, all of p
// is one gap.
func gaps(p, line []byte) []gap {
	n, m := len(p), len(line)
	if n == 0 {
		return nil
	}
	if i := bytes.Index(p, line); i >= 0 {
		return slices.DeleteFunc(
			[]gap{{0, i}, {i + m, n}},
			func(g gap) bool { return g.from == g.to },
		)
	}
	if (n+1)*(m+1) > gapsMost {
		return []gap{{0, n}}
	}
	// cost[i*(n+1)+j] is the cost of the cheapest explanation of p[:j] as line[:i] and gaps, with
	// line[i-1] as its last byte.
	cost := make([]uint8, (m+1)*(n+1))
	for i := range cost {
		cost[i] = costMost
	}
	cost[0] = 0
	row := func(i int) []uint8 { return cost[i*(n+1) : (i+1)*(n+1)] }
	before := func(j int) int { // the cost of a gap that ends before p[j]
		if p[j-1] == '\n' || p[j-1] == '\r' {
			return costLines
		}
		return costGap
	}
	best, bestI, bestJ := costMost, 0, 0
	for i := range m + 1 {
		here := row(i)
		least := costMost // of here[:j]
		for j := range n + 1 {
			if c := int(here[j]); c < costMost {
				end := c + (m-i)*costMissed
				if j < n {
					end += before(n)
				}
				if end < best {
					best, bestI, bestJ = end, i, j
				}
			}
			if i < m && j < n && p[j] == line[i] {
				c := int(here[j])
				if least < costMost {
					c = min(c, least+before(j))
				}
				row(i + 1)[j+1] = uint8(min(c, costMost))
			}
			least = min(least, int(here[j]))
		}
	}
	var found []gap
	if bestJ < n {
		found = append(found, gap{bestJ, n})
	}
	for i, j := bestI, bestJ; i > 0; {
		c := int(row(i)[j])
		i, j = i-1, j-1
		if int(row(i)[j]) == c {
			continue // directly after the byte before it
		}
		k := j - 1
		for int(row(i)[k])+before(j) != c {
			k--
		}
		found = append(found, gap{k, j})
		j = k
	}
	slices.Reverse(found)
	return found
}
