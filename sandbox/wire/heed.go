package wire

// VerbHeed keeps a session's state known although nobody waits for it, until the request is cancelled or its stream ends: what
// changes is told by events. It is answered then.
const VerbHeed Verb = "heed"
