// Command runsc is gVisor's, built from its module: Debian's package is too old for sandboxes.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
