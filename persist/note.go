package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rlnode/rlnode/internal/wire"
)

// maxNote bounds a note's file, in bytes.
const maxNote = 64 << 20

// Note is a small file that is always replaced as a whole. A damaged one counts as missing. Use it for what a node can do
// without, at a cost. Writes of one note must not overlap.
type Note struct{ path string }

// NewNote returns the note with that name in a data directory. The file need not exist.
func NewNote(dir, name string) Note { return Note{path: filepath.Join(dir, name)} }

// Read returns what was last written, or nil if nothing was. The error wraps [ErrCorrupt] if the note is damaged, as it may
// be after a power failure.
func (n Note) Read() ([]byte, error) {
	info, err := os.Stat(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxNote) {
		err = fmt.Errorf("%w: not a file of at most %d bytes", ErrCorrupt, maxNote)
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(n.path)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", n.path, err)
	}
	content, ok := wire.CutSum(b)
	if !ok {
		return nil, fmt.Errorf("read %s: %w", n.path, ErrCorrupt)
	}
	return content, nil
}

// Write replaces the note. The written note survives a kill of the process, but may be lost in a power failure.
func (n Note) Write(content []byte) error {
	return n.write(content, func(*os.File) error { return nil })
}

// Save is Write, but the note also survives a power failure.
func (n Note) Save(content []byte) error { return n.write(content, (*os.File).Sync) }

func (n Note) write(content []byte, sync func(*os.File) error) error {
	temp := n.path + ".new" // there is only one writer, because the directory is locked
	err := n.fill(temp, content, sync)
	if err == nil {
		err = os.Rename(temp, n.path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", n.path, err)
	}
	return nil
}

func (n Note) fill(temp string, content []byte, sync func(*os.File) error) error {
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		_, err = f.Write(binary.LittleEndian.AppendUint32(nil, wire.Sum(0, content)))
	}
	if err == nil {
		err = sync(f)
	}
	return errors.Join(err, f.Close())
}
