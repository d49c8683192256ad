package keyboard

import (
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var start = time.Unix(1_000_000, 0)

func at(d time.Duration) time.Time { return start.Add(d) }

// people returns new parties of every kind.
func people() map[string]*Party {
	all := make(map[string]*Party)
	add := func(id string, p wire.Party) {
		one := NewParty(p, id)
		all[id] = &one
	}
	add("alice", wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive})
	add("alice2", wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive})
	add("dora", wire.Party{Name: "dora", Kind: wire.Agent, Rights: wire.RightDrive})
	add("bob", wire.Party{Name: "bob", Kind: wire.Person, Rights: wire.RightDrive})
	add("bob2", wire.Party{Name: "bob", Kind: wire.Person, Rights: wire.RightDrive})
	add("owner", wire.Party{Name: "boss", Kind: wire.Person, Rights: wire.RightDrive, Owner: true})
	add("owner2", wire.Party{Name: "boss", Kind: wire.Person, Rights: wire.RightDrive, Owner: true})
	add("eve", wire.Party{Name: "eve", Kind: wire.Person, Rights: wire.RightWatch})
	add("watcher", wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightWatch})
	return all
}

func code(e *wire.Error) wire.Code {
	if e == nil {
		return ""
	}
	return e.Code
}

// TestAcquire checks who may take the keyboard by which method.
func TestAcquire(t *testing.T) {
	type method func(*Keyboard, *Party, time.Time) (Change, *wire.Error)
	var (
		types = method((*Keyboard).Type)
		calls = method((*Keyboard).Call)
		takes = method((*Keyboard).Take)
		hides = method((*Keyboard).TakePrivate)
	)
	const held, denied = wire.CodeKeyboardHeld, wire.CodeDenied
	for _, tt := range []struct {
		name   string
		holder string // empty: free
		held   method
		who    string
		does   method
		code   wire.Code
	}{
		{"a person types on a free one", "", nil, "bob", types, ""},
		{"an agent calls on a free one", "", nil, "alice", calls, ""},
		{"a watcher types", "", nil, "eve", types, denied},
		{"a watcher takes", "", nil, "eve", takes, denied},
		{"a watcher of the agent's name calls", "alice", calls, "watcher", calls, denied},
		{"a person types while an agent calls", "alice", calls, "bob", types, held},
		{"a person takes it from an agent's call", "alice", calls, "bob", takes, ""},
		{"a person takes it from an agent that took it", "alice", takes, "bob", takes, ""},
		{"a person hides while an agent has it", "alice", types, "bob", hides, held},
		{"a person hides on a free one", "", nil, "bob", hides, ""},
		{"a person hides who types", "bob", types, "bob", hides, ""},
		{"an agent hides", "", nil, "alice", hides, denied},
		{"an agent takes it from a person", "bob", types, "alice", takes, held},
		{"an agent takes it from an agent", "alice", takes, "dora", takes, held},
		{"another party of the agent calls", "alice", takes, "alice2", calls, ""},
		{"the same name twice is two people", "bob", types, "bob2", takes, held},
		{"the owner takes it from a guest", "bob", takes, "owner", takes, ""},
		{"the owner types while a guest has it", "bob", takes, "owner", types, held},
		{"a guest takes it from the owner", "owner", types, "bob", takes, held},
		{"owners are equals", "owner", types, "owner2", takes, held},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var k Keyboard
			all := people()
			before := ""
			if tt.holder != "" {
				if _, err := tt.held(&k, all[tt.holder], at(0)); err != nil {
					t.Fatal(err)
				}
				before = k.String()
			}
			p := all[tt.who]
			had := k.Holds(p)
			c, err := tt.does(&k, p, at(time.Second))
			switch {
			case code(err) != tt.code:
				t.Fatalf("got %v, want code %q", err, tt.code)
			case err != nil && (c != Change{} || k.String() != before):
				t.Errorf("refused, and it changed to %q: %+v", k.String(), c)
			case err == nil && !k.Holds(p):
				t.Errorf("held by %q", k.String())
			case err == nil && had && c != Change{}:
				t.Errorf("nothing new, and reported %+v", c)
			case err == nil && !had && (c.To != p || (c.TakenFrom != "") != (tt.holder != "")):
				t.Errorf("reported %+v", c)
			}
		})
	}
}

// TestRelease checks what frees a keyboard, by how it was taken.
func TestRelease(t *testing.T) {
	alone := func(f func(*Keyboard, *Party) Change) func(*Keyboard, *Party) bool {
		return func(k *Keyboard, p *Party) bool { return f(k, p).Freed }
	}
	prompt := alone(func(k *Keyboard, _ *Party) Change { return k.Rest() })
	idle := alone(func(k *Keyboard, _ *Party) Change { return k.FreeIdle(at(0), at(IdleHold)) })
	soon := alone(func(k *Keyboard, _ *Party) Change { return k.FreeIdle(at(0), at(IdleHold-1)) })
	late := alone(func(k *Keyboard, _ *Party) Change { return k.FreeIdle(at(1), at(IdleHold)) })
	endCall := alone((*Keyboard).EndCall)
	give := alone((*Keyboard).Give)
	leave := alone((*Keyboard).Leave)
	for _, tt := range []struct {
		name  string
		event func(*Keyboard, *Party) bool
		frees [3]bool // by Call, Type, Take
	}{
		{"the prompt", prompt, [3]bool{true, false, false}},
		{"an idle prompt", idle, [3]bool{false, true, false}},
		{"a prompt that is idle for less", soon, [3]bool{}},
		{"a prompt that came later", late, [3]bool{}},
		{"the end of its call", endCall, [3]bool{true, false, false}},
		{"giving it", give, [3]bool{true, true, true}},
		{"leaving", leave, [3]bool{true, true, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			takes := []func(*Keyboard, *Party, time.Time) (Change, *wire.Error){
				(*Keyboard).Call, (*Keyboard).Type, (*Keyboard).Take,
			}
			for i, take := range takes {
				var k Keyboard
				all := people()
				if _, err := take(&k, all["bob"], at(0)); err != nil {
					t.Fatal(err)
				}
				if got := tt.event(&k, all["bob"]); got != tt.frees[i] || k.Free() != got {
					t.Errorf("reason %d: freed %t, want %t", i, got, tt.frees[i])
				}
				if !k.Free() && tt.event(&k, all["dora"]) {
					t.Errorf("reason %d: another party frees it", i)
				}
			}
		})
	}
}

// TestStrongerReason checks that a party that calls and then takes the keyboard keeps it at the
// prompt.
func TestStrongerReason(t *testing.T) {
	var k Keyboard
	bob := people()["bob"]
	for _, take := range []func(*Party, time.Time) (Change, *wire.Error){k.Call, k.Take, k.Call} {
		if _, err := take(bob, at(0)); err != nil {
			t.Fatal(err)
		}
	}
	if c := k.Rest(); c.Freed || !k.Holds(bob) {
		t.Errorf("freed at the prompt: %+v", c)
	}
	if _, ok := k.Idle(at(0), at(time.Hour)); ok {
		t.Error("freed when the prompt is idle")
	}
}

// TestTailOfARefusedLine checks that keys after rejected keys are rejected, until a pause or a
// take.
func TestTailOfARefusedLine(t *testing.T) {
	var k Keyboard
	all := people()
	bob := all["bob"]
	if _, err := k.Take(all["alice"], at(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Type(bob, at(0)); code(err) != wire.CodeKeyboardHeld {
		t.Fatal(err)
	}
	k.Give(all["alice"])
	for i := range 5 {
		now := at(time.Duration(i) * (TypingPause - 1))
		if _, err := k.Type(bob, now); code(err) != wire.CodeKeyboardHeld || !k.Free() {
			t.Fatalf("key %d: %v, held by %q", i, err, k.String())
		}
	}
	if _, err := k.Type(all["bob2"], at(5*TypingPause)); err != nil {
		t.Errorf("another party: %v", err)
	}
	k.Give(all["bob2"])
	if _, err := k.Type(bob, at(5*TypingPause)); err != nil {
		t.Errorf("after a pause: %v", err)
	}
}

// TestAsk gives the keyboard to the party that asks for it, unless the holder refuses or that party
// is disconnected.
func TestAsk(t *testing.T) {
	setup := func(t *testing.T) (*Keyboard, map[string]*Party) {
		k, all := new(Keyboard), people()
		if _, err := k.Take(all["bob"], at(0)); err != nil {
			t.Fatal(err)
		}
		if c, err := k.Ask(all["dora"]); err != nil || !c.Asked || k.Asker() != all["dora"] {
			t.Fatalf("%+v, %v", c, err)
		}
		return k, all
	}
	t.Run("given", func(t *testing.T) {
		k, all := setup(t)
		c := k.Give(all["bob"])
		if !c.Freed || c.To != all["dora"] || c.TakenFrom != "" || k.Asker() != nil ||
			k.Rest().Freed {
			t.Errorf("%+v, held by %q", c, k.String())
		}
	})
	t.Run("kept", func(t *testing.T) {
		k, all := setup(t)
		if c := k.Keep(all["owner"]); c.Asked {
			t.Error("another party refuses")
		}
		if c := k.Keep(all["bob"]); !c.Asked || k.Asker() != nil {
			t.Errorf("%+v", c)
		}
		if c := k.Give(all["bob"]); c.To != nil || !k.Free() {
			t.Errorf("given to %q", k.String())
		}
	})
	t.Run("cut off", func(t *testing.T) {
		k, all := setup(t)
		all["dora"].Away = true
		if c := k.Give(all["bob"]); !c.Freed || c.To != nil || !k.Free() || k.Asker() != nil {
			t.Errorf("%+v", c)
		}
	})
	t.Run("two", func(t *testing.T) {
		k, all := setup(t)
		if _, err := k.Ask(all["owner"]); code(err) != wire.CodeKeyboardHeld {
			t.Error(err)
		}
	})
	t.Run("withdrawn", func(t *testing.T) {
		k, all := setup(t)
		if c := k.Give(all["dora"]); !c.Asked || c.Freed || k.Asker() != nil {
			t.Errorf("%+v", c)
		}
	})
	t.Run("taken by another person", func(t *testing.T) {
		k, all := setup(t)
		c, err := k.Take(all["owner"], at(1))
		if err != nil || !c.Asked || k.Asker() != all["dora"] {
			t.Errorf("%+v, %v: the new holder is not asked", c, err)
		}
	})
}

// TestPrivate follows private mode from its start until its text is erased.
func TestPrivate(t *testing.T) {
	var k Keyboard
	all := people()
	bob, alice := all["bob"], all["alice"]
	if _, err := k.MakePrivate(bob); code(err) != wire.CodeKeyboardHeld {
		t.Errorf("without the keyboard: %v", err)
	}
	if _, err := k.TakePrivate(bob, at(0)); err != nil {
		t.Fatal(err)
	}
	if began, err := k.MakePrivate(bob); !began || err != nil {
		t.Fatal(began, err)
	}
	if !k.Sees(bob) || k.Sees(alice) || k.PrivateEnding() {
		t.Error("private mode is not bob's alone")
	}
	if began, err := k.MakePrivate(bob); began || err != nil {
		t.Error("begun twice", err)
	}
	if c := k.EndPrivate(alice); c.PrivateOver {
		t.Error("ended by another")
	}
	if c := k.Give(bob); !c.PrivateOver || !c.Freed {
		t.Errorf("given: %+v", c)
	}
	if k.Sees(bob) || k.Sees(alice) || !k.PrivateEnding() || k.Private() != bob {
		t.Error("a party sees the traces")
	}
	if c := k.EndPrivate(nil); c.PrivateOver {
		t.Error("ends twice")
	}
	if _, err := k.TakePrivate(all["owner"], at(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.MakePrivate(all["owner"]); code(err) != wire.CodeKeyboardHeld {
		t.Errorf("begun while another ends: %v", err)
	}
	if !k.Reveal() || k.Reveal() || !k.Sees(alice) {
		t.Error("not revealed once")
	}
}

// TestSizes checks that the terminal has the size of its driver, and then its former size again.
func TestSizes(t *testing.T) {
	normal, first := Size{132, 43}, Size{200, 50}
	var k Keyboard
	all := people()
	bob, owner, alice := all["bob"], all["owner"], all["alice"]
	bob.Size, owner.Size = Size{80, 24}, Size{90, 30}
	now := normal
	get := func(p *Party, want Size) {
		t.Helper()
		if _, err := k.Take(p, at(0)); err != nil {
			t.Fatal(err)
		}
		if got := k.SizeFor(p, now, first); got != want {
			t.Errorf("%s gets %v, want %v", p, got, want)
		}
		now = want
	}
	get(bob, bob.Size)
	get(owner, owner.Size)
	if got := k.RestoreSize(); got != (Size{}) {
		t.Errorf("held, and back to %v", got)
	}
	k.Give(owner)
	get(alice, normal)
	k.Give(alice)
	get(alice, first)
	k.Give(alice)
	get(bob, bob.Size)
	k.Give(bob)
	if got := k.RestoreSize(); got != first {
		t.Errorf("back to %v, want %v", got, first)
	}
	if got := k.RestoreSize(); got != (Size{}) {
		t.Errorf("twice back to %v", got)
	}
	if k.Sizes(bob, false) || !k.Sizes(bob, true) || k.Sizes(all["eve"], true) {
		t.Error("a free keyboard: not the only party that could drive sizes the terminal")
	}
}
