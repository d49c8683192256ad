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
		if w == "" || replaced(w) || strings.ContainsFunc(w, special) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// replaced reports whether a shell replaces a part of w without a special character: ~root, =ls in
// zsh, and A=~ and A=b:~ in bash.
func replaced(w string) bool {
	return w[0] == '=' || w[0] == '~' ||
		strings.Contains(w, "=") && strings.Contains(w, "~")
}

func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
		!strings.ContainsRune(safe, r)
}
