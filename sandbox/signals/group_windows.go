package signals

import "os/exec"

// EndTogether does nothing here: a program ends with its context, and what it has started stays.
func EndTogether(*exec.Cmd) {}
