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

// maxSmallFile bounds a SmallFile, in bytes.
const maxSmallFile = 64 << 20

// SmallFile is a small file that is always replaced as a whole. Use it for what
// a node can do without, at a cost: a caller goes on even if the file is
// damaged. Writes of one file must not overlap.
type SmallFile struct{ path string }

// NewSmallFile returns the file with that name in a data directory. It need not exist.
func NewSmallFile(dir, name string) SmallFile { return SmallFile{path: filepath.Join(dir, name)} }

// Read returns what was last written, or nil if nothing was. The error wraps
// [ErrCorrupt] if the file is damaged, as it may be after a power failure.
func (sf SmallFile) Read() ([]byte, error) {
	info, err := os.Stat(sf.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxSmallFile) {
		err = fmt.Errorf("%w: not a file of at most %d bytes", ErrCorrupt, maxSmallFile)
	}

	var b []byte
	if err == nil {
		b, err = os.ReadFile(sf.path)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", sf.path, err)
	}

	content, ok := wire.CutSum(b)
	if !ok {
		return nil, fmt.Errorf("read %s: %w", sf.path, ErrCorrupt)
	}
	return content, nil
}

// Write replaces the file. What was written survives a kill of the process, but
// may be lost in a power failure.
func (sf SmallFile) Write(content []byte) error {
	return sf.write(content, func(*os.File) error { return nil })
}

// WriteSynced is Write, but what was written also survives a power failure.
func (sf SmallFile) WriteSynced(content []byte) error {
	if err := sf.write(content, (*os.File).Sync); err != nil {
		return err
	}
	// Without this, a power failure may bring the old file back.
	if err := syncDir(filepath.Dir(sf.path)); err != nil {
		return fmt.Errorf("write %s: %w", sf.path, err)
	}
	return nil
}

func (sf SmallFile) write(content []byte, sync func(*os.File) error) error {
	temp := sf.path + ".new" // there is only one writer, because the directory is locked
	err := sf.fill(temp, content, sync)
	if err == nil {
		err = os.Rename(temp, sf.path)
	}
	if err != nil {
		_ = os.Remove(temp) // a part of the file would only take room on a full disk
		return fmt.Errorf("write %s: %w", sf.path, err)
	}
	return nil
}

func (sf SmallFile) fill(temp string, content []byte, sync func(*os.File) error) error {
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
