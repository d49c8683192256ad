package docker

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// Root in a sandbox leaves a link that leads the next mount over the guest program, or over the
// devices that the runtime opens. Such a container does not start.
func TestMountCannotReplaceGuest(t *testing.T) {
	b, root := binding(t)
	project := owned(t, root+"/project", 0)
	inst := boot(
		t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: project, Target: "/ws/1/2/app"}}})
	mustSh(t, login(t, b, inst), `cd /; fake=/ws/1/2/app/$(ls /dev/.sandboxd)
		echo '#!/bin/sh' >$fake
		echo 'cat >/dev/.sandboxd/stolen; sleep 60' >>$fake
		chmod 755 $fake
		mv /ws/1 /ws/old; mkdir -p /ws/1/2; ln -s /dev/.sandboxd /ws/1/2/app`)
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); !errors.Is(err, machine.ErrLed) {
		t.Errorf("start: got error %v, want %v", err, machine.ErrLed)
	}
	// The program there has not run: it would have made a file.
	if left, err := os.ReadDir(project); err != nil || len(left) != 1 {
		t.Errorf("the directory has %v, %v; want the program", left, err)
	}
	c, err := b.engine.container(t.Context(), refOf(inst))
	if err != nil || c.State.Running {
		t.Errorf("a program of the sandbox is left as PID 1: error %v", err)
	}
}
