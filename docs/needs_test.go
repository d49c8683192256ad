package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attention"
)

// The pages that explain the kinds of attention name all of them.
func TestKindsOfAttention(t *testing.T) {
	for _, page := range []string{"reference/json.md", "how-to/dashboard.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range attention.Kinds() {
			if name := "`" + string(kind) + "`"; !strings.Contains(string(text), name) {
				t.Errorf("%s does not name %s", page, name)
			}
		}
	}
}
