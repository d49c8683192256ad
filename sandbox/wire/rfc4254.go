package wire

import "golang.org/x/crypto/ssh"

// Channel types, channel requests and global requests that a relay handles (RFC 4254; OpenSSH's
// PROTOCOL file).
const (
	ChannelSession          = "session"                        // RFC 4254, section 6.1
	ChannelDirectTCP        = "direct-tcpip"                   // section 7.2
	ChannelForwardedTCP     = "forwarded-tcpip"                // section 7.2
	ChannelX11              = "x11"                            // section 6.3.2
	ChannelDirectUnix       = "direct-streamlocal@openssh.com" // PROTOCOL, section 2.4
	ChannelForwardedUnix    = "forwarded-streamlocal@openssh.com"
	ChannelAgent            = "auth-agent@openssh.com"
	RequestPty              = "pty-req"       // section 6.2
	RequestEnv              = "env"           // section 6.4
	RequestShell            = "shell"         // section 6.5
	RequestExec             = "exec"          // section 6.5
	RequestSubsystem        = "subsystem"     // section 6.5
	RequestWindowChange     = "window-change" // section 6.7
	RequestSignal           = "signal"        // section 6.9
	RequestBreak            = "break"         // RFC 4335
	RequestExitStatus       = "exit-status"   // section 6.10
	RequestExitSignal       = "exit-signal"   // section 6.10
	RequestX11              = "x11-req"       // section 6.3.1
	RequestAgent            = "auth-agent-req@openssh.com"
	RequestEOW              = "eow@openssh.com"
	GlobalTCPForward        = "tcpip-forward"        // section 7.1
	GlobalCancelTCPForward  = "cancel-tcpip-forward" // section 7.1
	GlobalUnixForward       = "streamlocal-forward@openssh.com"
	GlobalCancelUnixForward = "cancel-streamlocal-forward@openssh.com"
	GlobalKeepalive         = "keepalive@openssh.com"
	GlobalHostKeys          = "hostkeys-00@openssh.com"
	GlobalHostKeysProve     = "hostkeys-prove-00@openssh.com"
	GlobalNoMoreSessions    = "no-more-sessions@openssh.com"
	SubsystemSFTP           = "sftp"
	SubsystemMCP            = "mcp" // served by the gateway
)

// PtyReq is the payload of pty-req.
type PtyReq struct {
	Term          string
	Cols, Rows    uint32
	Width, Height uint32 // pixels
	Modes         string // encoded terminal modes (RFC 4254, section 8)
}

// WindowChange is the payload of window-change.
type WindowChange struct{ Cols, Rows, Width, Height uint32 }

// Env is the payload of env.
type Env struct{ Name, Value string }

// Exec is the payload of exec.
type Exec struct{ Command string }

// Subsystem is the payload of subsystem.
type Subsystem struct{ Name string }

// Signal is the payload of signal; Name is without SIG.
type Signal struct{ Name string }

// ExitStatus is the payload of exit-status.
type ExitStatus struct{ Status uint32 }

// ExitSignal is the payload of exit-signal.
type ExitSignal struct {
	Signal     string // without SIG
	CoreDumped bool
	Message    string
	Lang       string
}

// DirectTCP opens direct-tcpip and forwarded-tcpip.
type DirectTCP struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// DirectUnix opens direct-streamlocal@openssh.com.
type DirectUnix struct {
	Path       string
	Reserved   string
	ReservedPt uint32
}

// ForwardedUnix opens forwarded-streamlocal@openssh.com.
type ForwardedUnix struct{ Path, Reserved string }

// TCPForward is the payload of tcpip-forward and cancel-tcpip-forward.
type TCPForward struct {
	Host string
	Port uint32
}

// TCPForwardReply answers a tcpip-forward for port 0.
type TCPForwardReply struct{ Port uint32 }

// UnixForward is the payload of streamlocal-forward@openssh.com and its cancel.
type UnixForward struct{ Path string }

// MaxCols and MaxRows are the maximal size of a terminal.
const (
	MaxCols = 1000
	MaxRows = 500
)

// ClampSize limits a size from a client to 1..MaxCols × 1..MaxRows. 0 columns become 80, 0 rows 24:
// clients without a terminal send 0×0.
func ClampSize(cols, rows uint32) (int, int) {
	if cols == 0 {
		cols = 80
	}
	if rows == 0 {
		rows = 24
	}
	return int(min(cols, MaxCols)), int(min(rows, MaxRows))
}

// Unmarshal parses an untrusted RFC 4254 payload into one of the structs above.
func Unmarshal(payload []byte, v any) error { return ssh.Unmarshal(payload, v) }

// Marshal is the inverse of Unmarshal.
func Marshal(v any) []byte { return ssh.Marshal(v) }
