package usage

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sort"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// fileName is the name of the file in the data directory that holds the ledgers.
const fileName = "usage.db"

// copyID identifies a ledger in the file, where each ledger is a bucket.
type copyID struct {
	ledgerID
	closed bool // nothing is counted in it any more
}

const bucketSize = 4 + 16 + 8 + 1

func (c copyID) bucket() string {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, bucketSize), uint32(c.Month))
	b = append(b, c.Source[:]...)
	b = binary.BigEndian.AppendUint64(b, c.Number)
	return string(wire.AppendBool(b, c.closed))
}

func parseBucket(name string) (c copyID, ok bool) {
	d := wire.NewDecoder([]byte(name))
	c.Month, c.Source, c.Number, c.closed = Month(d.BigUint32()), ring.DecodeNodeID(d), d.BigUint64(), d.Bool()
	return c, d.Done("bucket") == nil
}

// errOlder means that the file is in the format of another version.
var errOlder = errors.New(fileName + " was written by another version of rlnode: start that version, or move the file out of the data directory")

// head describes a ledger. A closed ledger's head is written with its last page.
type head struct {
	Node    string `json:"node"`              // name of the node that counted it
	Damaged bool   `json:"damaged,omitempty"` // rows are missing
	Pages   int    `json:"pages,omitempty"`   // number of pages of a closed ledger
}

var headKey = []byte("head")

func pageKey(i int) []byte { return binary.BigEndian.AppendUint32([]byte{'p'}, uint32(i)) }

// readHead returns the head of a copy. If ok is false, there is none, and the copy is incomplete.
func readHead(tx persist.Tx, c copyID) (h head, ok bool) {
	b, err := tx.Get(c.bucket(), headKey)
	return h, err == nil && b != nil && json.Unmarshal(b, &h) == nil
}

func putHead(tx persist.Tx, c copyID, h head) error {
	b, _ := json.Marshal(h) // a name and numbers
	return tx.Put(c.bucket(), headKey, b)
}

// listCopies lists the ledgers in the file, including incomplete ones. The error is errOlder if the file holds anything else.
func listCopies(tx persist.Tx) (list []copyID, err error) {
	names, err := tx.Names()
	for _, name := range names {
		c, ok := parseBucket(name)
		if !ok {
			return nil, errOlder
		}
		list = append(list, c)
	}
	return list, err
}

// errNoLedger means that the requested ledger is not, or no longer, on this node.
var errNoLedger = errors.New("this node does not hold that ledger")

// readClosedPage puts rows of a closed ledger into p.
func readClosedPage(tx persist.Tx, id ledgerID, p *pager) (err error) {
	c := copyID{id, true}
	h, ok := readHead(tx, c)
	if !ok {
		return errNoLedger
	}
	visit := func(i int, visit func(row *Row) bool) {
		if err == nil {
			var page []byte
			if page, err = tx.Get(c.bucket(), pageKey(i)); err == nil && page == nil {
				err = errRow
			}
			if err == nil {
				err = eachRow(page, visit)
			}
		}
		if err != nil {
			err = fmt.Errorf("page %d of a ledger: %w", i, err)
		}
	}
	// The first wanted row may be on the page before the first one that begins with a wanted row.
	first := sort.Search(h.Pages, func(i int) (wanted bool) {
		visit(i, func(row *Row) bool {
			wanted = p.wants(row)
			return false
		})
		return wanted
	})
	for i, enough := max(0, first-1), false; i < h.Pages && !enough && err == nil; i++ {
		visit(i, func(row *Row) bool {
			enough = !p.add(row)
			return !enough
		})
	}
	return err
}

// putBlocks writes blocks of an open ledger.
func (l *ledger) putBlocks(tx persist.Tx, blocks []block) error {
	c := copyID{ledgerID: l.id}
	if l.mustRewrite {
		if err := tx.Drop(c.bucket()); err != nil {
			return err
		}
	}
	if l.headPending {
		if err := putHead(tx, c, head{Node: l.node, Damaged: l.damaged}); err != nil {
			return err
		}
	}
	bucket := c.bucket()
	for i := range blocks {
		b := &blocks[i]
		if b.names != nil {
			if err := tx.Put(bucket, blockKey(namesPart, b.shard, b.number), b.names); err != nil {
				return err
			}
		}
		if err := tx.Put(bucket, blockKey(countsPart, b.shard, b.number), b.counts); err != nil {
			return err
		}
	}
	return nil
}

// loadOpenLedger loads an open ledger, to continue counting in it.
func loadOpenLedger(tx persist.Tx, id ledgerID, maxRows int) (*ledger, error) {
	c := copyID{ledgerID: id}
	h, ok := readHead(tx, c)
	l := newLedger(id, h.Node, maxRows)
	whole, inPlace := ok && !h.Damaged, ok
	err := tx.Scan(c.bucket(), []byte{namesPart}, func(key, names []byte) error {
		b := block{names: names}
		if len(key) != len(blockKey(0, 0, 0)) || names == nil {
			whole, inPlace = false, false
			return nil
		}
		b.shard, b.number = int(key[1]), int(binary.BigEndian.Uint32(key[2:]))
		b.counts, _ = tx.Get(c.bucket(), blockKey(countsPart, b.shard, b.number)) // nil if damaged
		w, p := l.loadBlock(&b)
		whole, inPlace = whole && w, inPlace && p
		return nil
	})
	l.damaged = !whole
	if l.markAllWritten(); !inPlace || !whole {
		l.markAllDirty()
	}
	return l, err
}
