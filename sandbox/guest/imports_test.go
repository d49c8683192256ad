//go:build linux

package guest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The guest runs in every sandbox and takes memory in each: every import needs a reason.
func TestImports(t *testing.T) {
	const module = "github.com/sandboxd/sandboxd/"
	want := []string{
		"github.com/kr/fs",    // for pkg/sftp
		"github.com/pkg/sftp", // files
		"github.com/pkg/sftp/internal/encoding/ssh/filexfer",
		"github.com/pkg/sftp/internal/encoding/ssh/filexfer/openssh",
		"golang.org/x/crypto/blowfish",          // for x/crypto/ssh, as all of x/crypto
		"golang.org/x/crypto/chacha20",          //
		"golang.org/x/crypto/cryptobyte",        //
		"golang.org/x/crypto/cryptobyte/asn1",   //
		"golang.org/x/crypto/curve25519",        //
		"golang.org/x/crypto/internal/alias",    //
		"golang.org/x/crypto/internal/poly1305", //
		"golang.org/x/crypto/ssh",               // the server
		"golang.org/x/crypto/ssh/internal/bcrypt_pbkdf",
		"golang.org/x/sys/unix",
		"sandbox/guest",
		"sandbox/pty",
		"sandbox/session",
		"sandbox/session/keyboard",
		"sandbox/session/marks",
		"sandbox/session/proc",
		"sandbox/session/screen",
		"sandbox/session/text",
		"sandbox/session/track",
		// Resets ignored signals when nohup or a supervisor started the session server.
		"sandbox/signals",
		"sandbox/sshconn", // the library's connection layer without its pitfalls
		"sandbox/stdio",   // pipes and terminals whose other ends the daemon has
		"sandbox/wire",
	}
	out, err := exec.Command("go", "list", "-deps", "-f",
		"{{if not .Standard}}{{.ImportPath}}{{end}}", module+"cmd/sandboxd-guest").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var got []string
	for path := range strings.FieldsSeq(string(out)) {
		if path = strings.TrimPrefix(path, module); path != "cmd/sandboxd-guest" {
			got = append(got, path)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the guest's imports (-want +got):\n%s", diff)
	}
}
