package usage

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// fileName is the name of the file in the data directory that holds the ledgers.
const fileName = "usage.db"

// bucketID identifies the bucket of a ledger in the file. The open ledger and
// the closed one may both have a bucket, while one replaces the other.
type bucketID struct {
	ledgerID
	round uint64 // the last one of a closed ledger; 0 for an open one
}

const bucketSize = 4 + 16 + 8 + 8

func (id bucketID) name() string {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, bucketSize), uint32(id.Month))
	b = append(b, id.Source[:]...)
	b = binary.BigEndian.AppendUint64(b, id.Number)
	return string(binary.BigEndian.AppendUint64(b, id.round))
}

func parseBucket(name string) (id bucketID, ok bool) {
	d := wire.NewDecoder([]byte(name))
	id.Month = Month(d.BigUint32())
	id.Source = ring.DecodeNodeID(d)
	id.Number = d.BigUint64()
	id.round = d.BigUint64()
	return id, d.Done("bucket") == nil
}

// notesBucket holds what this node knows beside the ledgers.
const notesBucket = "notes"

// errOtherVersion means that the file is in the format of another version.
var errOtherVersion = errors.New(fileName +
	" was written by another version of rlnode: start that version, or move the file out of the data directory")

// head describes a ledger. A closed ledger's head is written with its last page.
type head struct {
	Node    string `json:"node"`              // name of the node that counted it
	Damaged bool   `json:"damaged,omitempty"` // rows are missing
	// Copy means that another node sent it; otherwise the process that counted it
	// wrote it here.
	Copy  bool   `json:"copy,omitempty"`
	Round uint64 `json:"round"`           // the round up to which it has everything; 0 until it has all of any
	Bytes int    `json:"bytes,omitempty"` // size of the names of an open copy
	Pages int    `json:"pages,omitempty"` // number of pages of a closed ledger

	// The next three are for a merged ledger. Merged has the ledgers that it
	// replaces, and Digest is their digest. MergedAt is when it was stored here, in
	// Unix nanoseconds.
	Merged   ledgerNumbers `json:"merged,omitempty"`
	Digest   uint64        `json:"digest,omitempty"`
	MergedAt int64         `json:"merged_at,omitempty"`
}

var headKey = []byte("head")

func pageKey(i int) []byte { return binary.BigEndian.AppendUint32([]byte{'p'}, uint32(i)) }

// readHead returns the head of a ledger. If ok is false, there is no head, or
// it can't be read, and the ledger does not count.
func readHead(tx persist.Tx, id bucketID) (hd head, ok bool) {
	b, err := tx.Get(id.name(), headKey)
	if err != nil || b == nil {
		return hd, false
	}
	err = json.Unmarshal(b, &hd)
	return hd, err == nil
}

func putHead(tx persist.Tx, id bucketID, hd head) error {
	b, _ := json.Marshal(hd) // a name and numbers
	return tx.Put(id.name(), headKey, b)
}

// listBuckets lists the ledgers in the file, including those that are not
// whole. The error is errOtherVersion if the file holds anything that this version
// doesn't know.
func listBuckets(tx persist.Tx) (list []bucketID, err error) {
	names, err := tx.Names()
	for _, name := range names {
		id, ok := parseBucket(name)
		switch {
		case ok:
			list = append(list, id)
		case name != notesBucket:
			return nil, errOtherVersion
		}
	}
	return list, err
}

// findWhole returns the bucket of a ledger with the highest round; ok is false if there is none.
func findWhole(tx persist.Tx, id ledgerID) (best bucketID, hd head, ok bool) {
	list, _ := listBuckets(tx)
	for _, bucket := range list {
		if bucket.ledgerID != id {
			continue
		}
		if found, whole := readHead(tx, bucket); whole && found.Round > hd.Round {
			best = bucket
			hd = found
			ok = true
		}
	}
	return best, hd, ok
}

func dropBuckets(tx persist.Tx, list []bucketID) error {
	for _, id := range list {
		if err := tx.Drop(id.name()); err != nil {
			return err
		}
	}
	return nil
}

// errNoLedger means that the requested ledger is not, or no longer, on this node.
var errNoLedger = errors.New("this node does not hold that ledger")

// readClosedPage puts rows of a closed ledger, which has this many pages in the
// file, into p.
func readClosedPage(tx persist.Tx, id bucketID, pages int, p *pager) error {
	var failed error // the first error
	eachRowOf := func(i int, visit func(row *Row) bool) {
		if failed == nil {
			failed = eachRowOfPage(tx, id, i, visit)
		}
	}

	// The page before the first one that begins with a wanted row may have wanted
	// rows, too.
	first := sort.Search(pages, func(i int) (wanted bool) {
		eachRowOf(i, func(row *Row) bool {
			wanted = p.wants(row)
			return false
		})
		return wanted
	})

	enough := false
	for i := max(0, first-1); i < pages && !enough && failed == nil; i++ {
		eachRowOf(i, func(row *Row) bool {
			enough = !p.add(row)
			return !enough
		})
	}
	return failed
}

// eachRowOfPage visits the rows of page i of a closed ledger, until visit
// returns false.
func eachRowOfPage(tx persist.Tx, id bucketID, i int, visit func(row *Row) bool) error {
	page, err := tx.Get(id.name(), pageKey(i))
	if err == nil && page == nil {
		err = errRow
	}
	if err == nil {
		err = eachRow(page, visit)
	}
	if err != nil {
		return fmt.Errorf("page %d of a ledger: %w", i, err)
	}
	return nil
}

// putBlocks writes blocks of an open ledger.
func putBlocks(tx persist.Tx, id bucketID, blocks []block) error {
	bucket := id.name()
	for i := range blocks {
		blk := &blocks[i]
		if blk.names != nil {
			if err := tx.Put(bucket, blockKey(namesPart, blk.shard, blk.number), blk.names); err != nil {
				return err
			}
		}
		if err := tx.Put(bucket, blockKey(countsPart, blk.shard, blk.number), blk.counts); err != nil {
			return err
		}
	}
	return nil
}

// loadLedger loads an open ledger from the file. Nothing more can be counted in it.
func loadLedger(tx persist.Tx, id ledgerID, hd head) (*ledger, error) {
	// The ledger has no bound here: its rows were within the bound when they were
	// counted.
	l := newLedger(id, hd.Node, math.MaxInt32)
	l.damaged = hd.Damaged

	bucket := bucketID{ledgerID: id}.name()
	err := tx.Scan(bucket, []byte{namesPart}, func(key, names []byte) error {
		if len(key) != len(blockKey(0, 0, 0)) || names == nil {
			l.damaged = true
			return nil
		}

		blk := block{names: names}
		blk.counts, _ = tx.Get(bucket, append([]byte{countsPart}, key[1:]...)) // nil if damaged
		whole := blk.eachRow(func(h rowHash, row *Row) {
			if l.add(h, row) == outcomeLost {
				l.damaged = true
			}
		})
		l.damaged = l.damaged || !whole
		return nil
	})

	l.round.Store(hd.Round + 1)
	l.written = hd.Round
	l.close()
	return l, err
}
