package text

import "strings"

// safe are the characters, besides letters and digits, that no shell treats specially within a
// word.
const safe = "@%+:,./_-=~"

// Quote returns a command line that a shell splits into words. Words with other characters than
// letters, digits and some punctuation are in single quotes.
func Quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		// Shells replace ~, and zsh replaces =ls by the path of ls.
		if w == "" || w[0] == '~' || w[0] == '=' || strings.ContainsFunc(w, special) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
		!strings.ContainsRune(safe, r)
}
