package wire

// Preamble of an exec channel between the daemon and the guest on a host. A command ([Control],
// answered by [ControlReply], one line of JSON each) or a session stream follows it.
const (
	// HostReady is printed by the guest when it is connected to its sessions. The daemon ignores
	// earlier output.
	HostReady = "\nsandboxd-guest ready 1\n"
	// HostFailed is the prefix of the line that the guest prints instead, followed by the error.
	HostFailed = "\nsandboxd-guest failed: "
	// HostStart is the first line of the daemon. The guest ignores earlier input.
	HostStart = "sandboxd-guest start\n"
	// HostSessions is the command after which the channel is a session stream.
	HostSessions = "sessions"
)
