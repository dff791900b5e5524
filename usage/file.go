package usage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Folder is where ledgers are, in the data directory.
const Folder = "usage"

const (
	extension  = ".usage"
	headerSize = 256 // bytes; rows begin there
	magic      = "rlusage1"
	maxName    = 128 // bytes of a node's name
	shmAt      = 216 // where shm, end and sure are in a header
)

// errDamaged: a file can't be read, in part or at all.
var errDamaged = errors.New("file is damaged")

// header is the beginning of a ledger's file.
type header struct {
	source   ring.NodeID // of the node that counted it
	month    Month
	sequence uint64 // of a copy: when it was handed over, in nanoseconds since 1970; 0 at its source
	node     string // the source's name
	// shm names the file in shared memory where it is counted; of that itself it is the same. Zero: there is none.
	shm shmID
	// end is where the rows end of a file that is a mirror, in bytes; 0: where there are no more.
	end uint64
	// sure is where those end that a power cut can't take; 0: not known.
	sure uint64
}

func (h *header) append(b []byte) []byte {
	start := len(b)
	b = append(append(b, magic...), h.source[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.month))
	b = binary.LittleEndian.AppendUint64(b, h.sequence)
	b = wire.AppendShortText(b, h.node[:min(len(h.node), maxName)])
	b = append(b, make([]byte, shmAt-(len(b)-start))...)
	b = append(b, h.shm[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.end)
	b = binary.LittleEndian.AppendUint64(b, h.sure)
	b = append(b, make([]byte, headerSize-4-(len(b)-start))...)
	return wire.AppendSum(b, start)
}

func (h *header) read(b []byte) error {
	if len(b) < headerSize || string(b[:len(magic)]) != magic {
		return errDamaged
	}
	if _, ok := wire.CutSum(b[:headerSize]); !ok {
		return errDamaged
	}
	d := wire.NewDecoder(b[len(magic):])
	h.source, h.month, h.sequence = ring.DecodeNodeID(d), Month(d.Uint32()), d.Uint64()
	h.node = d.ShortText(maxName)
	d = wire.NewDecoder(b[shmAt:])
	d.Fill(h.shm[:])
	h.end, h.sure = d.Uint64(), d.Uint64()
	return nil
}

// fileName is the name of a ledger's file.
func fileName(month Month, source ring.NodeID) string {
	return month.String() + "." + source.String() + extension
}

// parseName reads a file's name.
func parseName(name string) (month Month, source ring.NodeID, ok bool) {
	text, isLedger := strings.CutSuffix(name, extension)
	monthText, sourceText, found := strings.Cut(text, ".")
	month, err := ParseMonth(monthText)
	if !isLedger || !found || err != nil {
		return 0, source, false
	}
	source, err = ring.ParseNodeID(sourceText)
	return month, source, err == nil
}

// entry is a ledger's file in the folder.
type entry struct {
	path   string
	month  Month
	source ring.NodeID
}

// entries lists the ledgers in a folder.
func entries(dir string) ([]entry, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, f := range list {
		if month, source, ok := parseName(f.Name()); ok && f.Type().IsRegular() {
			out = append(out, entry{filepath.Join(dir, f.Name()), month, source})
		}
	}
	return out, nil
}

// rowsIn is what may have rows of a file's content.
func (h *header) rowsIn(content []byte) []byte {
	if h.end >= headerSize && h.end < uint64(len(content)) {
		return content[:h.end]
	}
	return content
}

// scan visits the rows of a file's content, and tells where the next one would be. What is damaged is passed over, to the
// next row that is whole: bad is how many bytes were. A row that was being written when its process was killed is not
// one yet, and no damage.
func scan(data []byte, visit func(at, n int64)) (end, bad int64) {
	at, hole := int64(headerSize), false
	end = at
	for at+recordHead <= int64(len(data)) {
		n, err := recordLength(data, at)
		switch {
		case n > 0:
			if hole { // only a power cut leaves one behind a hole
				bad, hole = bad+at-end, false
			}
			visit(at, n)
			at += n
			end = at
			continue
		case err == nil:
			hole = true
		case !hole:
			bad += 8
		}
		at += 8
	}
	return end, bad
}

// guarded runs f on a mapping, and turns a fault on a page that the disk does not give into an error.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errDamaged, cause)
		}
	}()
	return f()
}

// writeZeros fills a file up to size.
func writeZeros(f *os.File, from, size int64) error {
	zeros := make([]byte, min(size-from, 1<<20))
	for from < size {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-from)], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

const (
	maxSetAside = 3 // damaged files kept of a month and source
	asideMark   = ".corrupt-"
)

// setAside keeps a damaged file under another name, and removes the oldest of those beyond maxSetAside. The file itself
// stays until another takes its place.
func setAside(path string, content []byte, log *slog.Logger) error {
	aside := path + asideMark + time.Now().UTC().Format("20060102T150405.000000000Z")
	if os.Link(path, aside) != nil { // a file system without links
		if err := os.WriteFile(aside, content, 0o600); err != nil {
			return fmt.Errorf("set damaged file aside: %w", err)
		}
	}
	for old := setAsides(path); len(old) > maxSetAside; old = old[1:] {
		if err := os.Remove(filepath.Join(filepath.Dir(path), old[0])); err != nil {
			log.Warn("an old damaged file is not removed", "error", err)
		}
	}
	return nil
}

// setAsides are the names of the files set aside of a path, by time.
func setAsides(path string) (names []string) {
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	for _, f := range list {
		if strings.HasPrefix(f.Name(), filepath.Base(path)+asideMark) {
			names = append(names, f.Name())
		}
	}
	slices.Sort(names)
	return names
}

// removeHalves removes what a killed process had begun to write.
func removeHalves(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range list {
		if strings.HasSuffix(f.Name(), extension+".part") || strings.HasSuffix(f.Name(), extension+".new") {
			_ = os.Remove(filepath.Join(dir, f.Name())) // it is written anew when it is needed
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
