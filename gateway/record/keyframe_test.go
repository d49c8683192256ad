package record

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestKeyframes(t *testing.T) {
	w, dir := create(t, Options{})
	snapshot := func(off uint64) []byte { return bytes.Repeat([]byte{byte(off)}, int(off)*10) }
	if _, _, ok := w.Keyframe(1000); ok {
		t.Fatal("a new record has a keyframe")
	}
	for _, off := range []uint64{10, 30, 20} {
		if err := w.AddKeyframe(off, snapshot(off)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := func(off, at uint64) {
		t.Helper()
		p, got, ok := r.Keyframe(off)
		if !ok || got != at || !bytes.Equal(p, snapshot(at)) {
			t.Errorf("Keyframe(%d) = %d bytes at %d, %v; want the one at %d", off, len(p), got, ok,
				at)
		}
	}
	want(100, 30)
	want(30, 30)
	want(29, 20)
	want(10, 10)
	if _, _, ok := r.Keyframe(9); ok {
		t.Error("a keyframe before the first")
	}

	// A damaged entry is ignored; an entry that a crash interrupted is overwritten.
	path := filepath.Join(dir, KeyframesFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndex(b, keyframeMagic[:])
	damaged := bytes.Clone(b)
	// Of offset 30.
	damaged[bytes.LastIndex(b[:last], keyframeMagic[:])+keyframeHeaderSize+2] ^= 0xff
	if err := os.WriteFile(path, append(damaged, b[last:last+25]...), 0o600); err != nil {
		t.Fatal(err)
	}
	want(100, 20)
	if err := r.AddKeyframe(40, snapshot(40)); err != nil {
		t.Fatal(err)
	}
	want(100, 40)
	want(39, 20)
	if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := r.Keyframe(100); ok {
		t.Error("nonsense is a keyframe")
	}
	if err := r.AddKeyframe(10, snapshot(10)); err != nil {
		t.Fatal(err)
	}
	want(100, 10)
}

func FuzzKeyframes(f *testing.F) {
	dir := f.TempDir()
	if err := addKeyframe(dir, 5, []byte("snapshot")); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, KeyframesFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, KeyframesFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		keyframeIn(dir, 1<<40)
		if err := addKeyframe(dir, 7, []byte("more")); err != nil {
			t.Fatal(err)
		}
		if p, _, ok := keyframeIn(dir, 7); !ok || len(p) > maxKeyframe {
			t.Fatalf("the keyframe that was added: %d bytes, %v", len(p), ok)
		}
	})
}
