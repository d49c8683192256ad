package wire

// What the daemon and a guest on a machine with an SSH server of its own say to each other on an exec channel, before what
// the channel is for: an order ([Control], answered by [ControlReply], a line of JSON each) or a session stream.
const (
	// HostReady is printed by the guest when it is connected to its sessions; whatever came before is of no interest.
	HostReady = "\nsandboxd-guest ready 1\n"
	// HostFailed begins the line that is printed instead, with why.
	HostFailed = "\nsandboxd-guest failed: "
	// HostStart is the line with which the daemon then begins. The guest skips what comes before.
	HostStart = "sandboxd-guest start\n"
	// HostSessions is the order after which the channel is a session stream.
	HostSessions = "sessions"
)
