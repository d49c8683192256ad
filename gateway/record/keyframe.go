package record

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"sync"
)

// KeyframesFile holds snapshots of the screen at some offsets of the log, so that a jump of a
// player need not show everything before. They can be made again from the log, and nothing depends
// on the file: an invalid entry, or one of an unknown version, is ignored.
const KeyframesFile = "keyframes"

// KeyframeEvery is the distance of keyframes: a jump shows at most this many bytes first.
const KeyframeEvery = 4 << 20

// An entry of the file is this header, in big endian, and a snapshot, compressed by flate.
type keyframeHeader struct {
	Magic  [4]byte
	Size   uint32 // of the compressed snapshot
	Offset uint64
	Sum    uint32 // CRC-32 (Castagnoli) of the offset and the compressed snapshot
}

var (
	keyframeMagic = [4]byte{'S', 'B', 'K', '1'}
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

const (
	keyframeHeaderSize = 20
	maxKeyframe        = 8 << 20 // of a snapshot: a screen has 1000 by 500 cells at most
)

// keyframes lock the files of that name, each lock for some directories. Every player writes them,
// and a slow one delays few others.
var keyframes [64]sync.Mutex

func lockKeyframes(dir string) *sync.Mutex {
	mu := &keyframes[crc32.ChecksumIEEE([]byte(dir))%uint32(len(keyframes))]
	mu.Lock()
	return mu
}

type keyframe struct {
	offset uint64
	at     int64 // of the header in the file
	size   uint32
	sum    uint32
}

// scanKeyframes lists the entries of a file up to the first invalid one, and returns the end of the
// last valid one.
func scanKeyframes(f *os.File) (all []keyframe, end int64) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0
	}
	for {
		var h keyframeHeader
		err := binary.Read(io.NewSectionReader(f, end, keyframeHeaderSize), binary.BigEndian, &h)
		next := end + keyframeHeaderSize + int64(h.Size)
		if err != nil || h.Magic != keyframeMagic || h.Size > maxKeyframe || next > info.Size() {
			return all, end
		}
		all = append(all, keyframe{h.Offset, end, h.Size, h.Sum})
		end = next
	}
}

// Keyframe returns the last snapshot for an offset of at most off, and its offset; ok is false if
// there is none.
func (r *Reader) Keyframe(off uint64) (snapshot []byte, at uint64, ok bool) {
	return keyframeIn(r.dir, off)
}

// Keyframe is like Reader.Keyframe.
func (w *Writer) Keyframe(off uint64) (snapshot []byte, at uint64, ok bool) {
	return keyframeIn(w.dir, off)
}

func keyframeIn(dir string, off uint64) (snapshot []byte, at uint64, ok bool) {
	defer lockKeyframes(dir).Unlock()
	f, err := os.Open(filepath.Join(dir, KeyframesFile))
	if err != nil {
		return nil, 0, false
	}
	defer f.Close()
	all, _ := scanKeyframes(f)
	sort.SliceStable(all, func(i, j int) bool { return all[i].offset < all[j].offset })
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].offset > off {
			continue
		}
		if p, err := all[i].read(f); err == nil {
			return p, all[i].offset, true
		}
	}
	return nil, 0, false
}

func (k keyframe) read(f *os.File) ([]byte, error) {
	packed := make([]byte, k.size)
	if _, err := f.ReadAt(packed, k.at+keyframeHeaderSize); err != nil {
		return nil, err
	}
	if keyframeSum(k.offset, packed) != k.sum {
		return nil, errors.New("the checksum is wrong")
	}
	return io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxKeyframe))
}

func keyframeSum(off uint64, packed []byte) uint32 {
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, off), castagnoli),
		castagnoli, packed)
}

// AddKeyframe stores a snapshot of the screen after the bytes before offset off, which the record
// must have. It replaces one for the same offset.
func (r *Reader) AddKeyframe(off uint64, snapshot []byte) error {
	return addKeyframe(r.dir, off, snapshot)
}

// AddKeyframe is like Reader.AddKeyframe.
func (w *Writer) AddKeyframe(off uint64, snapshot []byte) error {
	return addKeyframe(w.dir, off, snapshot)
}

func addKeyframe(dir string, off uint64, snapshot []byte) error {
	if len(snapshot) > maxKeyframe {
		return fmt.Errorf("record %s: keyframe of %d bytes: at most %d are allowed", dir,
			len(snapshot), maxKeyframe)
	}
	var entry bytes.Buffer
	entry.Write(make([]byte, keyframeHeaderSize))
	z, err := flate.NewWriter(&entry, flate.BestSpeed)
	if err == nil {
		_, err = z.Write(snapshot)
		err = errors.Join(err, z.Close())
	}
	if err != nil {
		return fmt.Errorf("record %s: keyframe: %w", dir, err)
	}
	b := entry.Bytes()
	packed := b[keyframeHeaderSize:]
	header, err := binary.Append(nil, binary.BigEndian,
		keyframeHeader{keyframeMagic, uint32(len(packed)), off, keyframeSum(off, packed)})
	if err != nil {
		return fmt.Errorf("record %s: keyframe: %w", dir, err)
	}
	copy(b, header)

	defer lockKeyframes(dir).Unlock()
	f, err := os.OpenFile(filepath.Join(dir, KeyframesFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	_, end := scanKeyframes(f)
	// A crash left what follows the last complete entry.
	if err = f.Truncate(end); err == nil {
		if _, err = f.WriteAt(b, end); err != nil {
			err = errors.Join(err, f.Truncate(end))
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// pruneKeyframes removes the keyframes before offset start.
func pruneKeyframes(dir string, start uint64) error {
	defer lockKeyframes(dir).Unlock()
	path := filepath.Join(dir, KeyframesFile)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	defer f.Close()
	all, _ := scanKeyframes(f)
	var kept bytes.Buffer
	for _, k := range all {
		if k.offset < start {
			continue
		}
		if _, err := io.Copy(&kept, io.NewSectionReader(
			f, k.at, keyframeHeaderSize+int64(k.size))); err != nil {
			return fmt.Errorf("record: %w", err)
		}
	}
	if err = os.WriteFile(path+".new", kept.Bytes(), 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}
