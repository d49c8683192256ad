package keyboard

import (
	"slices"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// FuzzKeyboard applies operations of parties in any order, two bytes each, and checks the
// invariants of a keyboard after each one.
func FuzzKeyboard(f *testing.F) {
	f.Add([]byte{0x20, 0, 0x23, 1, 0x33, 2, 0x50, 3})
	f.Add([]byte{0x23, 0, 0x75, 1, 0x85, 2, 0x43, 3, 0xa3, 4})
	f.Add([]byte{0x13, 1, 0x35, 0, 0xc5, 0, 0x53, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		all := people()
		ids := make([]string, 0, len(all))
		for id := range all {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		k, now := new(Keyboard), start
		for ; len(ops) >= 2; ops = ops[2:] {
			p := all[ids[int(ops[0]&15)%len(ids)]]
			now = now.Add(time.Duration(ops[1]) * 50 * time.Millisecond)
			before := *k
			c := apply(k, ops[0]>>4, p, now)
			check(t, k, &before, c, p, all)
		}
	})
}

// apply performs operation number op for p.
func apply(k *Keyboard, op byte, p *Party, now time.Time) (c Change) {
	switch op {
	case 0:
		c, _ = k.Type(p, now)
	case 1:
		c, _ = k.Call(p, now)
	case 2:
		c, _ = k.Take(p, now)
	case 3:
		if !k.Free() && !k.Holds(p) && p.Rights == wire.RightDrive { // only a rejected party asks
			c, _ = k.Ask(p)
		}
	case 4:
		c = k.Keep(p)
	case 5:
		c = k.Give(p)
	case 6:
		c = k.Leave(p)
	case 7:
		if c, _ = k.TakePrivate(p, now); k.Holds(p) {
			_, _ = k.MakePrivate(p)
		}
	case 8:
		c = k.EndPrivate(p)
	case 9:
		k.Reveal()
	case 10:
		c = k.EndCall(p)
	case 11:
		c = k.Rest()
	case 12:
		c = k.FreeIdle(now.Add(-IdleHold), now)
	case 13:
		p.Away = !p.Away
	case 14:
		c = k.Withdraw(p)
	case 15:
		k.SizeFor(p, Size{80, 24}, Size{200, 50})
	}
	return c
}

// check checks what must hold after every operation of p. c is its reported change of before.
func check(t *testing.T, k, before *Keyboard, c Change, p *Party, all map[string]*Party) {
	t.Helper()
	holder := ""
	for _, q := range all {
		switch {
		case !k.Holds(q):
			continue
		case q.Rights == wire.RightWatch:
			t.Fatalf("%s may only watch and holds the keyboard", q)
		case holder != "" && holder != q.Key:
			t.Fatalf("%s and %s hold the keyboard", holder, q.Key)
		}
		holder = q.Key
	}
	private := k.Private()
	switch {
	case k.Free() != (holder == ""), k.Free() != (k.String() == ""):
		t.Fatalf("free %t, held by %q, named %q", k.Free(), holder, k.String())
	case k.Free() && k.Asker() != nil:
		t.Fatal("a party asks for a free keyboard")
	case k.Asker() != nil && k.Holds(k.Asker()):
		t.Fatal("the holder asks")
	case private != nil && !k.PrivateEnding() && !k.Holds(private):
		t.Fatal("private mode of a person without the keyboard")
	case private == nil && k.PrivateEnding():
		t.Fatal("private mode that nobody has ends")
	}
	changed := before.key != k.key || before.Free() != k.Free()
	switch {
	case changed != (c.Freed || c.To != nil):
		t.Fatalf("the holder changed: %t; reported: %+v", changed, c)
	case c.To != nil && !k.Holds(c.To), c.Freed && before.Free(), c.By != "" &&
		c.By != before.String():
		t.Fatalf("a change that was none: %+v", c)
	case c.TakenFrom == "":
		return
	case c.Freed, c.TakenFrom != before.key, c.To != p, p.Kind == wire.Agent:
		t.Fatalf("taken from %s: %+v", before.String(), c)
	case before.who.Kind == wire.Person && (before.who.Owner || !p.Owner):
		t.Fatalf("%s took it from %s", p, before.String())
	}
}
