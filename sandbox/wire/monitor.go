package wire

const (
	// VerbMonitor reports changes of a session's state in events until the request is cancelled or
	// its stream ends; the reply comes then. Without it, the guest observes the state only while a
	// call waits for it.
	VerbMonitor Verb = "monitor"
	// VerbHeed is the former name of VerbMonitor, and means the same. The gateway sends it, because
	// guests of earlier versions know no other.
	VerbHeed Verb = "heed"
)
