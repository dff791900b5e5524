package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/rules"
)

// Bounds of a ledger.
const (
	// rowBytes is the room for a row, on average.
	rowBytes = 512
	// othersBytes is kept free for the rows of others: of some hundred rules and units.
	othersBytes = 128 << 10
	// A file grows by a quarter, within these bounds.
	leastGrowth = 256 << 10
	mostGrowth  = 8 << 20
	// mostBytes bounds a file: what an index can point to.
	mostBytes = 1 << 34
)

// ledger counts one month on this node. Rows that there are, are found and added to without a lock.
type ledger struct {
	month      Month
	begin, end int64    // nanoseconds since 1970
	file       *os.File // nil: in memory that ends with the process
	mirror     *mirror  // of a file in shared memory; nil: the file is on the disk itself
	head       header   // as it was opened with
	data       []byte   // as long as the file may get
	index      atomic.Pointer[index]
	maxRows    int

	mu      sync.Mutex // guards what follows, and entering rows
	used    int64      // bytes; the next row begins there
	size    int64      // bytes that may be touched
	rows    int        // but for those of others
	retired bool       // nothing is entered any more
	full    bool       // the disk was, a moment ago: not asked again for every check
}

// openLedger opens a month's file, which is made if missing, and counts in shared memory in the folder shm (empty: in pages
// of the file). What a killed process has left there goes on. A damaged file is set aside; what is whole of it goes on.
func openLedger(path, shm string, h header, maxRows int, log *slog.Logger) (l *ledger, setAsides int, err error) {
	if shm != "" {
		l, err = adopt(path, shm, h, maxRows)
		if err == nil {
			return l, 0, nil
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, errGone), errors.Is(err, errDamaged), errors.Is(err, fs.ErrPermission):
			log.Error("usage that was counted last before a crash is missing", "file", path, "error", err)
		default:
			return nil, 0, err // it is there, and may be had another time
		}
	}
	if l, setAsides, err = openOnDisk(path, shm, h, maxRows, log); err != nil || shm == "" {
		return l, setAsides, err
	}
	if err := l.share(shm, h); err != nil {
		log.Warn("usage is counted in pages of a file: a disk that hangs will hold checks up", "shared_memory", shm, "error", err)
		if err := l.behead(h); err != nil {
			return nil, setAsides, errors.Join(err, l.close())
		}
	}
	return l, setAsides, nil
}

// openOnDisk opens a ledger that is counted in its file, at first if shm is where it is going to be.
func openOnDisk(path, shm string, h header, maxRows int, log *slog.Logger) (l *ledger, setAsides int, err error) {
	for {
		l, err = mapLedger(path, h, maxRows)
		if err == nil && l.head != h {
			if shm == "" && l.head.shm != (shmID{}) {
				log.Error("usage that was counted last before a crash is missing: shared memory is not used any more", "file", path)
			}
			// What the file was a mirror of is given up: it must not be taken for the newer of the two at another start.
			if err = l.behead(h); err != nil {
				return nil, setAsides, errors.Join(err, l.close())
			}
		}
		if !errors.Is(err, errDamaged) || setAsides > 0 {
			return l, setAsides, err
		}
		setAsides++
		kept, bad, err := salvage(path, h, log)
		if err != nil {
			return nil, setAsides, err
		}
		log.Error("a month of usage was damaged: it is set aside, and what is whole of it goes on", "file", path,
			"rows", kept, "bad_bytes", bad)
	}
}

func mapLedger(path string, h header, maxRows int) (_ *ledger, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open month of usage: %w", err)
	}
	l := newLedger(h.month, maxRows)
	l.file = f
	defer func() {
		if err != nil {
			unmap(l.data)
			err = errors.Join(fmt.Errorf("open month of usage: %w", err), f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	l.size = info.Size() / 8 * 8
	bound := min(max(int64(maxRows)*rowBytes+othersBytes+headerSize, l.size, 1<<20), mostBytes)
	if l.data, err = mapFile(f, bound, true); err != nil {
		return nil, err
	}
	if l.size < leastGrowth {
		if err := allocate(f, l.size, leastGrowth); err != nil {
			return nil, err
		}
		l.size = leastGrowth
	}
	if err := guarded(func() error { return l.load(h) }); err != nil {
		return nil, err
	}
	return l, nil
}

// memoryLedger counts a month that has no file: better than not to count.
func memoryLedger(month Month, maxRows int) (*ledger, error) {
	l := newLedger(month, maxRows)
	l.size = min(int64(maxRows)*rowBytes+othersBytes+headerSize, mostBytes)
	var err error
	if l.data, err = mapMemory(l.size); err != nil {
		return nil, fmt.Errorf("make room for a month of usage: %w", err)
	}
	l.size, l.used = int64(len(l.data)), headerSize
	return l, nil
}

func newLedger(month Month, maxRows int) *ledger {
	l := &ledger{month: month, begin: month.Begin(), end: (month + 1).Begin(), maxRows: maxRows}
	l.index.Store(newIndex(leastSlots))
	return l
}

// load reads what the file has. A file that was just made, or whose maker was killed at that, has no header yet.
func (l *ledger) load(want header) error {
	var have header
	err := have.read(l.data[:headerSize])
	fresh := err != nil && blank(l.data[headerSize:l.size])
	switch {
	case fresh:
		copy(l.data, want.append(nil))
		have = want
	case err != nil:
		return err
	case have.month != want.month || have.source != want.source:
		return errDamaged
	}
	bad := l.enlist(have.rowsIn(l.data[:l.size]))
	if bad > 0 && have.sure >= headerSize && have.sure < uint64(l.size) {
		bad = l.enlist(l.data[:have.sure]) // a power cut: what was not synced is not whole
	}
	if bad > 0 {
		return errDamaged
	}
	l.head = have
	clear(l.data[l.used:l.size]) // a row that was being written at a kill
	return nil
}

// enlist makes the index of the rows in content, the beginning of the ledger's data, and returns how many bytes are bad.
func (l *ledger) enlist(content []byte) (bad int64) {
	x := newIndex(leastSlots)
	l.rows = 0
	l.used, bad = scan(content, func(at, n int64) {
		x = x.with(l.data, at)
		var r Row
		if r.readNames(l.data[at+recordHead:at+n]) == nil && !r.Other {
			l.rows++
		}
	})
	l.index.Store(x)
	return bad
}

// blank reports whether there is nothing in b.
func blank(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// salvage puts the whole rows of a damaged file into a new one.
func salvage(path string, h header, log *slog.Logger) (kept int, bad int64, err error) {
	old, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("read damaged month of usage: %w", err)
	}
	fresh := h.append(nil)
	old = append(old, make([]byte, (8-len(old)%8)%8)...)
	if len(old) > headerSize {
		var have header
		_ = have.read(old) // without a head all may be rows
		_, bad = scan(have.rowsIn(old), func(at, n int64) {
			fresh = append(fresh, old[at:at+n]...)
			kept++
		})
	}
	if err := setAside(path, old, log); err != nil {
		return 0, 0, err
	}
	if err := writeWhole(path, fresh); err != nil {
		return 0, 0, fmt.Errorf("write what is whole of a month of usage: %w", err)
	}
	return kept, bad, nil
}

// writeWhole writes a file of which there is all or nothing.
func writeWhole(path string, content []byte) error {
	temp := path + ".new"
	err := os.WriteFile(temp, content, 0o600)
	if err == nil {
		err = syncFile(temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	return err
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// holds reports whether a time is in the month.
func (l *ledger) holds(wall int64) bool { return wall >= l.begin && wall < l.end }

// find is a subject's row; nil: there is none yet.
func (l *ledger) find(hi, lo uint64) *record { return l.index.Load().find(l.data, hi, lo) }

// place is where a row of a subject and a unit is looked for.
func place(s rules.Hash, unit string) (hi, lo uint64) {
	if unit == rules.Requests {
		return s.Hi, s.Lo
	}
	return s.Hi, s.Lo ^ xxh3.HashString(unit)
}

// outcome is what came of entering a row.
type outcome uint8

const (
	entered outcome = iota // under its own name
	other                  // among the others
	lost                   // there was no room for either
	again                  // the ledger is retired
)

// enter adds to a row, which is made if missing. late: also if the ledger is retired.
func (l *ledger) enter(hi, lo uint64, row *Row, late bool) outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired && !late {
		return again
	}
	if r := l.find(hi, lo); r != nil {
		r.add(row.Cost, row.Checks)
		return entered
	}
	if !row.Other && l.rows < l.maxRows && l.append(hi, lo, row, othersBytes) {
		l.rows++
		return entered
	}
	rest := Row{Rule: row.Rule, Unit: row.Unit, Other: true, Cost: row.Cost, Checks: row.Checks}
	sum := xxh3.Hash128(rest.appendNames(nil))
	if r := l.find(sum.Hi, sum.Lo); r != nil {
		r.add(row.Cost, row.Checks)
		return other
	}
	if l.append(sum.Hi, sum.Lo, &rest, 0) {
		return other
	}
	return lost
}

// append writes a row behind the last one, leaving some bytes free behind it; false: there is no room.
func (l *ledger) append(hi, lo uint64, row *Row, free int64) bool {
	names := row.appendNames(make([]byte, 0, 128))
	n := (recordHead + int64(len(names)) + 7) / 8 * 8
	if n > maxRecord || !l.room(l.used+n+free) {
		return false
	}
	b := l.data[l.used : l.used+n]
	clear(b[recordHead+len(names):])
	copy(b[recordHead:], names)
	r := recordAt(l.data, l.used)
	r.hi, r.lo = hi, lo
	r.cost.Store(row.Cost)
	r.checks.Store(row.Checks)
	r.head.Store(sum(b)) // now it is a row
	x := l.index.Load()
	if next := x.with(l.data, l.used); next != x {
		l.index.Store(next)
	}
	l.used += n
	return true
}

// room sees to it that so many bytes of the file may be touched.
func (l *ledger) room(need int64) bool {
	if need <= l.size {
		return true
	}
	if need > int64(len(l.data)) || l.file == nil || l.full {
		return false
	}
	size := min(max(need, l.size+min(max(l.size/4, leastGrowth), mostGrowth)), int64(len(l.data)))
	if allocate(l.file, l.size, size) != nil {
		l.full = true // there is a figure that says so
		return false
	}
	l.size = size
	return true
}

// each visits all rows; what they refer to holds until visit returns.
func (l *ledger) each(visit func(r *record, row *Row)) {
	l.mu.Lock()
	used := l.used
	l.mu.Unlock()
	var row Row
	for at := int64(headerSize); at < used; {
		r := recordAt(l.data, at)
		n := int64(r.head.Load() >> 32)
		if row.readNames(l.data[at+recordHead:at+n]) == nil {
			visit(r, &row)
		}
		at += n
	}
}

// retire ends entering, or lets it begin again.
func (l *ledger) retire(yes bool) {
	l.mu.Lock()
	l.retired = yes
	l.mu.Unlock()
}

// sync brings the file to the disk, and lets a full one be tried again.
func (l *ledger) sync() error {
	l.mu.Lock()
	l.full = false
	l.mu.Unlock()
	switch {
	case l.file == nil:
		return nil
	case l.mirror == nil:
		return l.file.Sync()
	}
	if err := l.copyOut(); err != nil {
		return err
	}
	return l.mirror.sync()
}

// close gives file and memory back. Nobody may look at a row any more.
func (l *ledger) close() error {
	unmap(l.data)
	l.data = nil
	return l.closeFile()
}

// closeFile closes the file; the rows stay.
func (l *ledger) closeFile() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	if l.mirror != nil {
		if of := l.mirror.file.Close(); !errors.Is(of, fs.ErrClosed) { // as it is when it has landed
			err = errors.Join(err, of)
		}
	}
	return err
}
