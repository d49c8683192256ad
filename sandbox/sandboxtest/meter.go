package sandboxtest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

func (s Suite) testMeter(t *testing.T) {
	b := s.Open(t)
	m, ok := b.(sandbox.Meter)
	if !ok {
		return // optional
	}
	inst := s.boot(t, b)
	const size = 1 << 20
	client := s.dial(t, b, inst)
	if out, code := run(t, client,
		"dd if=/dev/zero of=/big bs=1024 count=1024 2>/dev/null && sync"); code != 0 {
		t.Fatalf("write a file: %s", out)
	}
	if got, err := m.Disk(timeout(t), inst, sandbox.DiskUsage{}); err != nil || got.Bytes < size {
		t.Errorf("Disk: got %+v, %v; want at least %d bytes", got, err, size)
	}
	if got, err := m.Disk(timeout(t), inst, sandbox.DiskUsage{Bytes: 1}); err != nil ||
		got.Bytes <= 1 {
		t.Errorf("Disk with a limit: got %+v, %v; want more than the limit", got, err)
	}
	if got, err := m.Usage(timeout(t), inst); err != nil || got.Memory <= 0 || got.PIDs <= 0 {
		t.Errorf("Usage: got %+v, %v; want memory and processes", got, err)
	}
	if got, err := m.Room(timeout(t)); !errors.Is(err, sandbox.ErrUnsupported) &&
		(err != nil || got <= 0) {
		t.Errorf("Room: got %d, %v", got, err)
	}
	if l, ok := b.(sandbox.Lifecycle); ok {
		if err := l.Stop(timeout(t), inst, time.Second); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if _, err := m.Usage(timeout(t), inst); !errors.Is(err, sandbox.ErrStopped) {
			t.Errorf("Usage of a stopped one: got %v, want ErrStopped", err)
		}
		if got, err := m.Disk(timeout(t), inst, sandbox.DiskUsage{}); err != nil ||
			got.Bytes < size {
			t.Errorf("Disk of a stopped one: got %+v, %v; want at least %d bytes", got, err, size)
		}
	}
	nobody := s.nobody(t, inst)
	if _, err := m.Usage(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Usage of one that never was: got %v, want ErrGone", err)
	}
	if _, err := m.Disk(timeout(t), nobody, sandbox.DiskUsage{}); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Disk of one that never was: got %v, want ErrGone", err)
	}
}

func (s Suite) testNetworker(t *testing.T) {
	b := s.Open(t)
	n, ok := b.(sandbox.Networker)
	if !ok || slices.Contains(s.Refused, sandbox.NetworkFiltered) {
		return // optional
	}
	closed := s.boot(t, b)
	if _, err := n.Tunnel(timeout(t), closed); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Tunnel of network %s: got %v, want ErrUnsupported", closed.Network, err)
	}
	s.Spec.Network, s.Spec.Via = sandbox.NetworkFiltered, sandbox.ViaTUN
	inst, err := b.Boot(timeout(t), s.newSpec(t))
	if s.Remote {
		if !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("Boot with a device: got %v, want ErrUnsupported", err)
		}
		return
	}
	if errors.Is(err, sandbox.ErrUnsupported) {
		t.Skipf("there are no network devices here: %v", err)
	}
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	for range 2 { // as in a new daemon
		tun, err := n.Tunnel(timeout(t), inst)
		if err != nil {
			t.Fatalf("Tunnel: %v", err)
		}
		tun.Device.Close()
		tun.Hold.Close()
	}
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if _, err := n.Tunnel(timeout(t), inst); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Tunnel after Destroy: got %v, want ErrGone", err)
	}
}
