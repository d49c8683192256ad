package text

import (
	"strings"

	"al.essio.dev/pkg/shellescape"
)

// Quote returns a command line that a shell splits into words. Words with other characters than
// letters, digits and @%+=:,./_- are in single quotes.
func Quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellescape.Quote(w)
		if strings.HasPrefix(quoted[i], "=") { // zsh replaces =ls by the path of ls
			quoted[i] = "'" + w + "'"
		}
	}
	return strings.Join(quoted, " ")
}
