// Command othermodule uses package agent as other modules do: it makes a sandbox, runs a command
// in its terminal and removes it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox"
)

func main() {
	ctx := context.Background()
	g, err := agent.DialGateway(ctx, os.Args[1],
		agent.Options{Identity: os.Args[2], KnownHosts: os.Args[3:]})
	check(err)
	defer g.Close()
	sb, err := g.Create(ctx, agent.Spec{Limits: sandbox.Limits{PIDs: 200}})
	check(err)
	sh, err := g.Shell(ctx, sb.Name)
	check(err)
	res, err := sh.Run(ctx, "echo from another module; exit 7")
	check(err)
	fmt.Printf("%s: %s", res.Ended, res.Output)
	check(sh.Close())
	check(g.Remove(ctx, sb.Name))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
