package sandboxtest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackend(t *testing.T) {
	Run(t, Suite{
		Open:    func(t *testing.T) sandbox.Backend { return New(t, Options{}) },
		NoImage: NoImage,
		Refused: []sandbox.Network{sandbox.NetworkFiltered, sandbox.NetworkAllowlist,
			sandbox.NetworkBridge},
	})
}
