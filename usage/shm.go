package usage

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/ring"
)

// What is counted has to outlive the process, and no check may wait for a disk. Pages of a file on a disk do only the
// first: whoever writes to one that the kernel has written back since is held up until the disk takes notice, and the
// thread takes its processor along. So a month is counted in a file in shared memory, which a killed process leaves behind
// as well, and a mirror copies it to the disk.
//
// The head of the file on the disk names the file in shared memory by a random number. One that it does not name is never
// taken for what was counted: it is of another directory, or was given up.

// shmID names a file in shared memory. The zero one: there is none.
type shmID [16]byte

func (id shmID) path(dir string) string {
	return filepath.Join(dir, "rlnode-usage-"+hex.EncodeToString(id[:]))
}

// adopt opens the file in shared memory that the one at path names. The error is fs.ErrNotExist if it names none, and
// errGone if that is not there any more.
func adopt(path, dir string, want header, maxRows int) (_ *ledger, err error) {
	disk, have, err := openHead(path)
	if errors.Is(err, errDamaged) || errors.Is(err, io.EOF) {
		return nil, fs.ErrNotExist // what is wrong with the file is another matter
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, disk.Close())
		}
	}()
	if have.shm == (shmID{}) {
		return nil, fs.ErrNotExist
	}
	if err := isWhole(have.shm, dir); err != nil {
		return nil, err
	}
	l, err := mapLedger(have.shm.path(dir), want, maxRows)
	if errors.Is(err, errDamaged) {
		err = errors.Join(err, os.Remove(have.shm.path(dir))) // nobody would look for it again
	}
	if err != nil {
		return nil, err
	}
	l.mirror = &mirror{file: disk, head: have}
	return l, nil
}

// isWhole looks at the head of a file in shared memory. One without was not made to the end, and nothing was counted in it.
func isWhole(id shmID, dir string) error {
	f, h, err := openHead(id.path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errGone
	case errors.Is(err, errDamaged), errors.Is(err, io.EOF):
		return errors.Join(fs.ErrNotExist, os.Remove(id.path(dir)))
	case err != nil:
		return err
	case h.shm != id:
		return errors.Join(errDamaged, f.Close(), os.Remove(id.path(dir)))
	}
	return f.Close()
}

// errGone: what was counted in shared memory is lost, but for what the disk has of it.
var errGone = errors.New("shared memory is gone")

// openHead opens a ledger's file on the disk and reads its head.
func openHead(path string) (*os.File, header, error) {
	var h header
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, h, err
	}
	b := make([]byte, headerSize)
	if _, err = f.ReadAt(b, 0); err == nil {
		err = h.read(b)
	}
	if err != nil {
		return nil, h, errors.Join(err, f.Close())
	}
	return f, h, nil
}

// share moves a ledger that was just opened from its file into one in shared memory, in dir, of which the file is the
// mirror from then on.
func (l *ledger) share(dir string, h header) (err error) {
	if _, err = rand.Read(h.shm[:]); err != nil {
		return err
	}
	// The disk says first where to look: after a kill in between there is nothing there, which costs nothing.
	// It has all rows that there are: what a copy that is broken off leaves behind them is none.
	disk := h
	disk.end, disk.sure = uint64(l.used), max(l.head.sure, headerSize)
	if err = l.behead(disk); err != nil {
		return err
	}
	f, err := os.OpenFile(h.shm.path(dir), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	var data []byte
	defer func() {
		if err != nil {
			unmap(data)
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	size := (l.used + leastGrowth + pageBytes - 1) / pageBytes * pageBytes
	if err = allocate(f, 0, size); err != nil {
		return err
	}
	if data, err = mapFile(f, max(int64(len(l.data)), size), true); err != nil {
		return err
	}
	copy(data[headerSize:], l.data[headerSize:l.used])
	copy(data, h.append(nil)) // last: half a file has no head
	unmap(l.data)
	l.mirror = &mirror{file: l.file, head: disk}
	l.mirror.learn(data[headerSize:l.used])
	l.data, l.file, l.size = data, f, size
	return nil
}

// behead gives a ledger that is in its file another head, and brings it to the disk.
func (l *ledger) behead(h header) error {
	if _, err := l.file.WriteAt(h.append(nil), 0); err != nil {
		return err
	}
	return l.file.Sync()
}

// pageBytes is how much a mirror compares and writes at once.
const pageBytes = 4 << 10

// mirror is the file on the disk of a ledger in shared memory.
type mirror struct {
	mu   sync.Mutex // guards what follows, and writing to the file
	file *os.File
	head header   // as the file has it; its end is where the rows end that are whole
	sums []uint64 // of the pages behind the head as they are in the file, as far as that is known
	page [pageBytes]byte
}

// learn takes note of what the file has behind its head.
func (m *mirror) learn(rows []byte) {
	for len(rows) > 0 {
		n := min(pageBytes, len(rows))
		m.sums = append(m.sums, xxh3.Hash(rows[:n]))
		rows = rows[n:]
	}
}

// copy writes what has changed of a ledger's rows, which are whole, and how far they go once they are written: whatever
// a copy that was broken off has left behind that, is none of them.
func (m *mirror) copy(rows []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 0; i*pageBytes < len(rows); i++ {
		p := rows[i*pageBytes : min((i+1)*pageBytes, len(rows))]
		if i < len(m.sums) && m.sums[i] == xxh3.Hash(p) {
			continue
		}
		c := m.page[:len(p)]
		copyWords(c, p)
		if i < len(m.sums) {
			m.sums[i] = 0 // until it is written
		} else {
			m.sums = append(m.sums, 0)
		}
		if _, err := m.file.WriteAt(c, headerSize+int64(i)*pageBytes); err != nil {
			return err
		}
		m.sums[i] = xxh3.Hash(c)
	}
	h := m.head
	h.end = headerSize + uint64(len(rows))
	return m.rewrite(h)
}

// sync brings what was copied to the disk, and then takes note of how far it goes.
func (m *mirror) sync() error {
	m.mu.Lock()
	h := m.head
	m.mu.Unlock()
	if err := m.file.Sync(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sure := h.end
	h = m.head
	h.sure = sure
	return m.rewrite(h)
}

// rewrite gives the file a head. m.mu is held.
func (m *mirror) rewrite(h header) error {
	if h == m.head {
		return nil
	}
	if _, err := m.file.WriteAt(h.append(nil), 0); err != nil {
		return err
	}
	m.head = h
	return nil
}

// leave makes the file one without shared memory again.
func (m *mirror) leave() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.head
	h.shm = shmID{}
	return errors.Join(m.rewrite(h), m.file.Close())
}

// copyWords copies whole words, so that none is half of what it was before.
func copyWords(to, from []byte) {
	for i := 0; i < len(from); i += 8 {
		word := (*atomic.Uint64)(unsafe.Pointer(&from[i])).Load()
		*(*uint64)(unsafe.Pointer(&to[i])) = word
	}
}

// copyOut brings what is counted in shared memory to the ledger's file, though not yet to the disk.
func (l *ledger) copyOut() error {
	if l.mirror == nil {
		return nil
	}
	l.mu.Lock()
	used := l.used
	l.mu.Unlock()
	return l.mirror.copy(l.data[headerSize:used])
}

// land brings a ledger to the disk for good. Shared memory is given back when all of it is there, and else stays for the
// next start. What is added afterwards is lost.
func (l *ledger) land() error {
	if l.mirror == nil {
		return l.sync()
	}
	if err := l.sync(); err != nil {
		return err
	}
	err := os.Remove(l.file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("give shared memory back: %w", err)
	}
	return l.mirror.leave()
}

// abandoned lists the months of a source, but for one, that a killed process has left in shared memory.
func abandoned(dir string, source ring.NodeID, but Month) (months []Month) {
	list, err := entries(dir)
	if err != nil {
		return nil
	}
	for _, e := range list {
		if e.source != source || e.month == but {
			continue
		}
		f, h, err := openHead(e.path)
		if err != nil {
			continue // whoever wants the month will say so
		}
		if h.shm != (shmID{}) {
			months = append(months, e.month)
		}
		_ = f.Close() // nothing was written
	}
	return months
}
