// Command model is a language model that answers by a script, for scripts that try what asks
// models; see package modeltest.
package main

import (
	"os"

	"github.com/sandboxd/sandboxd/agent/task/modeltest"
)

func main() { os.Exit(modeltest.Main()) }
