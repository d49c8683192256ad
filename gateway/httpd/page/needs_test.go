package page

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attention"
)

// The page shows every kind of attention: in the order of urgency, each with a colour in the dark
// and in the light, and a rule for its rows.
func TestKindsOfAttention(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := fs.ReadFile(files, "static/"+name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	css := read("page.css")
	var order []string
	for i, kind := range attention.Kinds() {
		order = append(order, fmt.Sprintf("%s: %d", kind, i+1))
		colour := regexp.MustCompile(fmt.Sprintf(`--%s: #[0-9a-f]{6};`, kind))
		if got := len(colour.FindAllString(css, -1)); got != 2 {
			t.Errorf("page.css has %d colours --%s, want one for dark and one for light", got, kind)
		}
		if rule := fmt.Sprintf(".row.%[1]s { border-left-color: var(--%[1]s); }",
			kind); !strings.Contains(css, rule) {
			t.Errorf("page.css lacks the rule %s", rule)
		}
	}
	if want := "const order = { " + strings.Join(order, ", ") +
		" };"; !strings.Contains(read("page.mjs"), want) {
		t.Errorf("page.mjs does not have %q", want)
	}
	for _, rule := range regexp.MustCompile(`\.row\.(\w+) \{`).FindAllStringSubmatch(css, -1) {
		if !strings.Contains(fmt.Sprint(attention.Kinds()), rule[1]) {
			t.Errorf("page.css has the rule %s of no kind", rule[0])
		}
	}
}
