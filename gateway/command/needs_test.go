package command

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attention"
)

// The help of ls explains every kind of attention.
func TestHelpNamesKindsOfAttention(t *testing.T) {
	help := lsCommand(new(Env)).Long
	for _, kind := range attention.Kinds() {
		if !strings.Contains(help, " "+string(kind)) {
			t.Errorf("the help of ls does not name %s", kind)
		}
	}
}
