package usage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

// listing is a ledger's file, to be read in the order of its rows. It has a mapping of its own, so whoever counts
// meanwhile is not in its way; rows that are entered after it was opened are not in it.
type listing struct {
	header header
	file   *os.File
	data   []byte
	order  []uint32 // the rows' offsets in units of 8 bytes
	end    int64    // of the rows
	bad    int64    // bytes that can't be read
	used   time.Time
}

// openListing reads a file. What is damaged of it is left out; bad says so.
func openListing(path string) (_ *listing, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read month of usage: %w", err)
	}
	l := &listing{file: f}
	defer func() {
		if err != nil {
			err = fmt.Errorf("read month of usage: %w", errors.Join(err, l.close()))
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size() / 8 * 8
	if size < headerSize || size > mostBytes {
		return nil, errDamaged
	}
	if l.data, err = mapFile(f, size, false); err != nil {
		return nil, err
	}
	err = guarded(func() error {
		if err := l.header.read(l.data); err != nil {
			return err
		}
		var names Row
		l.end, l.bad = scan(l.header.rowsIn(l.data), func(at, n int64) {
			if names.readNames(l.data[at+recordHead:at+n]) != nil {
				l.bad += n
				return
			}
			l.order = append(l.order, uint32(at/8))
		})
		var a, b Row
		slices.SortFunc(l.order, func(x, y uint32) int {
			l.names(x, &a)
			l.names(y, &b)
			return compareRows(&a, &b)
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// names reads what the row at an offset is about; it was readable before.
func (l *listing) names(at uint32, r *Row) *record {
	head := recordAt(l.data, int64(at)*8)
	_ = r.readNames(l.data[int64(at)*8+recordHead : int64(at)*8+int64(head.head.Load()>>32)])
	return head
}

// row reads the i-th row; what it refers to holds until close.
func (l *listing) row(i int, r *Row) {
	head := l.names(l.order[i], r)
	r.Cost, r.Checks = head.cost.Load(), head.checks.Load()
}

// appendPage packs the rows behind after (nil: from the first) of one rule (empty: of all), about limit bytes of them at
// most, and reports whether there are more.
func (l *listing) appendPage(b []byte, rule string, after *Row, limit int) (page []byte, more bool) {
	var r Row
	first := sort.Search(len(l.order), func(i int) bool {
		l.names(l.order[i], &r)
		return r.Rule >= rule && (after == nil || compareRows(&r, after) > 0)
	})
	start := len(b)
	var last Row
	for i := first; i < len(l.order); i++ {
		if l.row(i, &r); rule != "" && r.Rule != rule {
			break
		}
		// Rows with the same names stay on one page, since the next one begins behind them: in the month in which subjects
		// came to be hashed otherwise there are two of each.
		if len(b)-start >= limit {
			if l.names(l.order[i-1], &last); compareRows(&r, &last) != 0 {
				return b, true
			}
		}
		b = r.appendNames(b)
		b = binary.AppendVarint(b, r.Cost)
		b = binary.AppendVarint(b, r.Checks)
	}
	return b, false
}

// readPage reads what appendPage packed. The rows refer to b.
func readPage(b []byte) (rows []Row, err error) {
	for d := wire.NewDecoder(b); d.More(); {
		var r Row
		r.decodeNames(d)
		if r.Cost, r.Checks = d.Varint(), d.Varint(); d.Failed() {
			return nil, errRecord
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (l *listing) close() error {
	unmap(l.data)
	l.data, l.order = nil, nil
	return l.file.Close()
}
