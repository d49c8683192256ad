// Package stdio carries input and output of a sandbox's programs between the daemon and the guest.
// There are two ways, and users of a Program need not know which it uses. One is the SSH channel.
// The other bypasses the guest with pipes and terminals: the daemon holds one end and passes the
// other over the guest's unix socket (SCM_RIGHTS, unix(7)). Signals, exit statuses and all other
// requests always use the channel.
//
// Use Programs in the daemon, and Socket.Offered and Socket.Unwrap in the guest. The package starts
// no process, and knows neither accounts nor sandboxes.
package stdio

import "github.com/sandboxd/sandboxd/sandbox/sshconn"

// Kind is what a program runs on: pipes or a terminal.
type Kind int

// Kinds.
const (
	Pipes    Kind = iota // three, for standard input, output and error
	Terminal             // one, of the sandbox's devpts
)

// Program is a session channel with the input and output of its program. Output ends before an exit
// status that was sent after it, and Requests end after that.
type Program struct {
	*sshconn.Channel
	release func()
}

// Release closes the channel and all descriptors, so that a terminal hangs up, and returns when the
// guest has closed the channel, too. It is called once, after all other use.
func (p *Program) Release() {
	_ = p.Close()
	p.release()
}
