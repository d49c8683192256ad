package docker

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// validate checks spec without the engine, and returns it with the defaults that do not depend on
// the engine.
func validate(spec sandbox.Spec) (sandbox.Spec, error) {
	var err error
	if spec.Image, err = machine.ParseImage(spec.Image); err != nil {
		return spec, err
	}
	if spec.Volume != (sandbox.Volume{}) {
		return spec, sandbox.Hint(fmt.Errorf("volume: %w: files outlive a stop in any case",
			sandbox.ErrUnsupported), "omit the size; --volume SRC:DST mounts a directory")
	}
	return guestconfig.Check(spec)
}

// fit sets what depends on the engine. If the engine lacks something that spec asks for, fit
// returns an error; it never reduces the request.
func fit(spec sandbox.Spec, f facts, noFile int64) (sandbox.Limits, error) {
	l := spec.Limits
	if spec.Isolation != "" && !slices.Contains(f.runtimes, spec.Isolation) {
		return l, sandbox.Hint(fmt.Errorf("isolation %q: %w: the engine has %s", spec.Isolation,
			sandbox.ErrUnsupported, strings.Join(f.runtimes, ", ")),
			"install it and add it to the engine's runtimes, or omit --isolation")
	}
	runtime := cmp.Or(spec.Isolation, f.defaultRuntime)
	if missing := f.unfit[runtime]; missing != "" {
		return l,
			sandbox.Hint(fmt.Errorf(
				"isolation %q: %w: the engine starts it without %s: sandboxes would lose their "+
					"files or not answer", runtime, sandbox.ErrUnsupported, missing),
				"add it to the runtimeArgs of "+runtime+
					" in the engine's daemon.json, and restart the engine")
	}
	if _, err := via(spec, f); err != nil {
		return l, err
	}
	if l.CPUs > float64(f.cpus) {
		return l, sandbox.Hint(fmt.Errorf("%g cpus: %w: the engine has %d", l.CPUs,
			sandbox.ErrUnsupported, f.cpus), "ask for less")
	}
	if f.memory > 0 && l.Memory > f.memory {
		return l, sandbox.Hint(fmt.Errorf("%s of memory: %w: the engine has %s",
			sandbox.FormatSize(l.Memory), sandbox.ErrUnsupported,
			sandbox.FormatSize(f.memory>>20<<20)), "ask for less")
	}
	preset := sandbox.DefaultLimits
	preset.NoFile, preset.CPUs = noFile, min(preset.CPUs, float64(f.cpus))
	if f.memory > 0 {
		preset.Memory = min(preset.Memory, f.memory)
	}
	if l.Memory > 0 {
		preset.Shm = min(preset.Shm, l.Memory)
	}
	return l.Or(preset), nil
}

// via returns how the daemon carries a sandbox's network; empty if it does not. If the device
// cannot work it is the proxy, unless spec asks for the device.
func via(spec sandbox.Spec, f facts) (sandbox.Via, error) {
	if !spec.Network.Carried() {
		return "", nil
	}
	if spec.Via == sandbox.ViaProxy {
		return sandbox.ViaProxy, nil
	}
	var why, hint string
	if f.remote {
		why, hint = "the engine does not share files with the daemon",
			"use --network "+string(spec.Network)
	} else if runtime := cmp.Or(spec.Isolation, f.defaultRuntime); !passesDescriptors(runtime) {
		why, hint = "a sandbox of "+runtime+" cannot hand its network device to the daemon",
			"use another isolation, or --network "+string(spec.Network)
	} else if _, err := os.Stat(machine.TunDevice); err != nil {
		why, hint = "this machine has no "+machine.TunDevice,
			"load it: modprobe tun; or use --network "+string(spec.Network)
	}
	switch {
	case why == "":
		return sandbox.ViaTUN, nil
	case spec.Via == sandbox.ViaTUN:
		return "", sandbox.Hint(fmt.Errorf("network %s=tun: %w: %s", spec.Network,
			sandbox.ErrUnsupported, why), hint+", which is a proxy here")
	}
	return sandbox.ViaProxy, nil
}
