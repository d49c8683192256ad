package text

// Distance returns how many bytes of a have to be replaced, inserted, removed, or swapped with the
// next one to make b. It suggests what was meant by a mistyped word.
func Distance(a, b string) int {
	var before, last []int
	for i := range len(a) + 1 {
		row := make([]int, len(b)+1)
		for j := range row {
			switch {
			case i == 0 || j == 0:
				row[j] = i + j
				continue
			case a[i-1] == b[j-1]:
				row[j] = last[j-1]
			default:
				row[j] = 1 + min(last[j-1], last[j], row[j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], 1+before[j-2])
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
