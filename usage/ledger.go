package usage

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of a ledger.
const (
	// shards is the number of locks in a ledger.
	shards = 256
	// maxShardRows bounds the rows of a shard: a slot has 24 bits for a row's number.
	maxShardRows = 1<<24 - 1
	// rowBytes is the average space for a row's names, in bytes.
	rowBytes = 512
	// maxOthers bounds the rows of others: one for each rule and unit.
	maxOthers = 4096
	// blockRows is the number of rows that are written together.
	blockRows = 64
)

// ledgerID identifies a ledger and all its copies.
type ledgerID struct {
	Month  Month       `json:"month"`
	Source ring.NodeID `json:"source"` // the node that counted it
	// Number is random. Only the process that drew the number counts in the ledger.
	// So of two copies, the one with the higher round has all that the other has.
	Number uint64 `json:"number"`
}

// ledger counts one month on this node.
type ledger struct {
	id         ledgerID
	node       string // name of the node that counts
	begin, end int64  // of the month, in Unix nanoseconds
	maxRows    int64
	damaged    bool // some written rows could not be read back; set before others can see the ledger

	// A row and its names are counted here before they are stored.
	rowCount   atomic.Int64 // without the rows of others
	otherCount atomic.Int64 // rows of others
	nameBytes  atomic.Int64

	// round is the number of the current round; the first is 1. Each block
	// remembers the round in which it last changed. Whoever has everything up to
	// some round, such as the file or a holder, needs only the blocks of later
	// rounds.
	round    atomic.Uint64
	shards   [shards]shard
	rowOrder atomic.Pointer[rowOrder] // nil if no page was read recently

	// written and lastChange belong to the writer; Meter.writing guards them.
	written    uint64    // the round up to which the file has everything
	lastChange time.Time // when the writer last saw a changed row
}

// shard holds a part of a ledger's rows in a hash table with open addressing. A
// row's number is its index in rows. The low 24 bits of a slot are a row's
// number plus one; the upper eight bits come from the row's hash. An empty slot
// is zero.
type shard struct {
	mu      sync.Mutex  // guards the fields below
	closed  bool        // the shard accepts no more counts
	slots   []uint32    // their number is a power of two; at most three quarters are used
	rows    []storedRow // in order of creation; a record's hash and names never change
	names   []byte      // of all rows, packed back to back
	changed []changes   // by block
	newest  uint64      // the round in which a row last changed

	_ [128 - 120]byte // keeps shards on separate cache lines
}

// changes holds the rounds in which a block last changed.
type changes struct {
	counts uint64
	names  uint64 // when it last got another row
}

// storedRow is a row's hash and counts.
type storedRow struct {
	hash         rowHash
	cost, checks int64
	nameOffset   uint32 // offset of its names in shard.names
}

// rowOrder is a snapshot of the rows of a ledger in memory, sorted by rule, key and unit.
type rowOrder struct {
	names  [shards][]byte
	rows   [shards][]storedRow // only the fields that never change are read
	refs   []uint32            // shard << 24 | number
	madeAt time.Time
}

func newLedger(id ledgerID, node string, maxRows int) *ledger {
	l := &ledger{
		id: id, node: node, begin: id.Month.Begin(), end: (id.Month + 1).Begin(),
		maxRows: int64(maxRows), lastChange: time.Now(),
	}
	l.round.Store(1)
	return l
}

// contains reports whether wall is in the ledger's month.
func (l *ledger) contains(wall int64) bool { return wall >= l.begin && wall < l.end }

// rowHash is the hash of a row's subject and unit, or of the names of a row of
// others.
type rowHash struct{ hi, lo uint64 }

// rowHashOf returns the hash of the row of a subject and a unit.
func rowHashOf(subject rules.Hash, unit string) rowHash {
	if unit == document.Requests {
		return rowHash{subject.Hi, subject.Lo}
	}
	return rowHash{subject.Hi, subject.Lo ^ xxh3.HashString(unit)}
}

// slotTag returns the upper eight bits of the slots of rows with this hash.
func (h rowHash) slotTag() uint32 { return uint32(h.hi >> 56) }

func (l *ledger) shard(h rowHash) *shard { return &l.shards[h.lo%shards] }

// firstSlot returns the slot at which the search for a row begins, and the mask
// by which it goes on. There must be slots.
func (sh *shard) firstSlot(h rowHash) (i, mask uint64) {
	mask = uint64(len(sh.slots) - 1)
	return (h.lo / shards) & mask, mask
}

// find returns a row's number, or −1 if there is none.
func (sh *shard) find(h rowHash) int {
	if len(sh.slots) == 0 {
		return -1
	}

	for i, mask := sh.firstSlot(h); ; i = (i + 1) & mask {
		slot := sh.slots[i]
		if slot == 0 {
			return -1
		}

		// These eight bits exclude nearly every row with another hash.
		if slot>>24 != h.slotTag() {
			continue
		}

		n := int(slot&maxShardRows) - 1
		if sh.rows[n].hash == h {
			return n
		}
	}
}

// add adds to the counts of row n in a round.
func (sh *shard) add(n int, cost, checks int64, round uint64) {
	rec := &sh.rows[n]
	rec.cost = addClamped(rec.cost, cost)
	rec.checks = addClamped(rec.checks, checks)
	sh.changed[n/blockRows].counts = round
	sh.newest = round
}

// addToIndex adds row n, the last one, to slots. It enlarges slots if necessary.
func (sh *shard) addToIndex(n int) {
	if len(sh.rows)*4 > len(sh.slots)*3 {
		larger := max(8, 2*len(sh.slots))
		sh.slots = make([]uint32, larger)
		for i := range n {
			sh.setSlot(i)
		}
	}
	sh.setSlot(n)
}

// setSlot writes n into the first free slot for row n.
func (sh *shard) setSlot(n int) {
	h := sh.rows[n].hash
	i, mask := sh.firstSlot(h)
	for sh.slots[i] != 0 {
		i = (i + 1) & mask
	}
	sh.slots[i] = h.slotTag()<<24 | uint32(n+1)
}

// namesOf returns the packed names of row n.
func (sh *shard) namesOf(n int) []byte {
	if n+1 < len(sh.rows) {
		return sh.names[sh.rows[n].nameOffset:sh.rows[n+1].nameOffset]
	}
	return sh.names[sh.rows[n].nameOffset:]
}

// addExisting adds to the row with the given hash. It returns false if there is
// none, or if the ledger is closed.
func (l *ledger) addExisting(h rowHash, cost, checks int64) bool {
	sh := l.shard(h)
	sh.mu.Lock()
	n := sh.find(h)
	found := n >= 0 && !sh.closed

	// Read the round under the lock. So once a round has ended, a goroutine that
	// locks the shard finds all that was counted in that round.
	if found {
		sh.add(n, cost, checks, l.round.Load())
	}
	sh.mu.Unlock()
	return found
}

// outcome is the result of entering a row.
type outcome uint8

const (
	outcomeEntered outcome = iota // counted under its own names
	outcomeOther                  // counted among the others
	outcomeLost                   // not counted: there was no room for either
	outcomeClosed                 // not counted: the ledger is closed
)

// add adds to the row with the given hash, which it creates if needed. If there
// is no room, it adds to the row of others instead.
func (l *ledger) add(h rowHash, row *Row) outcome {
	if !row.Other {
		done := l.addIn(h, row, &l.rowCount, l.maxRows, outcomeEntered)
		if done != outcomeLost {
			return done
		}
	}

	rest := Row{Rule: row.Rule, Unit: row.Unit, Other: true, Cost: row.Cost, Checks: row.Checks}
	hash := xxh3.Hash128(rest.appendNames(nil))
	return l.addIn(rowHash{hash.Hi, hash.Lo}, &rest, &l.otherCount, maxOthers, outcomeOther)
}

// addIn adds to row h, or creates it while fewer than bound rows are counted in
// count. It returns ifCounted, outcomeLost (no room) or outcomeClosed.
func (l *ledger) addIn(h rowHash, row *Row, count *atomic.Int64, bound int64, ifCounted outcome) outcome {
	sh := l.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()

	if sh.closed {
		return outcomeClosed
	}

	n := sh.find(h)
	if n < 0 {
		names := row.appendNames(sh.names)
		size := int64(len(names) - len(sh.names))
		if size > maxNames || len(row.Key) > maxKeyParts || len(sh.rows) >= maxShardRows ||
			!tryReserve(count, 1, bound) {
			return outcomeLost
		}
		if !tryReserve(&l.nameBytes, size, (l.maxRows+maxOthers)*rowBytes) {
			count.Add(-1)
			return outcomeLost
		}

		n = len(sh.rows)
		sh.rows = append(sh.rows, storedRow{hash: h, nameOffset: uint32(len(sh.names))})
		sh.names = names
		sh.addToIndex(n)

		if n%blockRows == 0 {
			sh.changed = append(sh.changed, changes{})
		}
		sh.changed[n/blockRows].names = l.round.Load()
	}

	sh.add(n, row.Cost, row.Checks, l.round.Load())
	return ifCounted
}

// tryReserve adds n to count. If the result would exceed bound, it takes n back
// and returns false. Near the bound, a concurrent call may then fail, too.
func tryReserve(count *atomic.Int64, n, bound int64) bool {
	if count.Add(n) > bound {
		count.Add(-n)
		return false
	}
	return true
}

// close ends counting. All rows are final afterwards.
func (l *ledger) close() {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		sh.closed = true
		sh.mu.Unlock()
	}
}

// endRound ends the current round if a row has changed in it. It returns the
// last round that has ended, or 0 if nothing was ever counted. Every count made
// before the call is in that round or an earlier one.
func (l *ledger) endRound() uint64 {
	current := l.round.Load()
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		changed := sh.newest == current
		sh.mu.Unlock()
		if changed {
			l.round.CompareAndSwap(current, current+1) // otherwise another call has ended it
			break
		}
	}
	return l.round.Load() - 1
}

// block is a group of rows as it is written to the file and sent to other
// nodes: their hashes and names, and their counts.
type block struct {
	shard, number int
	names         []byte // nil if the receiver has them
	counts        []byte
}

// blockKey returns the key of one part of a block in the ledger's bucket.
func blockKey(part byte, shard, number int) []byte {
	return binary.BigEndian.AppendUint32([]byte{part, byte(shard)}, uint32(number))
}

const (
	namesPart  = 'n'
	countsPart = 'c'
)

// changedSince appends the blocks of a shard that have changed after a round. A
// block may have counts of the current round already. That does no harm: counts
// are values, not differences, and the block is read again after that round.
func (l *ledger) changedSince(round uint64, shard int, blocks []block) []block {
	sh := &l.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()

	if sh.newest <= round {
		return blocks
	}

	for number, changed := range sh.changed {
		if changed.counts <= round {
			continue
		}

		blk := block{shard: shard, number: number}
		begin := number * blockRows
		rows := sh.rows[begin:min(begin+blockRows, len(sh.rows))]

		for i := range rows {
			blk.counts = binary.AppendVarint(blk.counts, rows[i].cost)
			blk.counts = binary.AppendVarint(blk.counts, rows[i].checks)
		}

		if changed.names > round {
			for i := range rows {
				blk.names = binary.LittleEndian.AppendUint64(blk.names, rows[i].hash.hi)
				blk.names = binary.LittleEndian.AppendUint64(blk.names, rows[i].hash.lo)
				blk.names = append(blk.names, sh.namesOf(begin+i)...)
			}
		}

		blocks = append(blocks, blk)
	}
	return blocks
}

// eachChanged passes the blocks that have changed after a round to put, in
// groups of about size bytes. The last group may be empty.
func (l *ledger) eachChanged(round uint64, size int, put func(group []block, last bool) error) error {
	var changed, group []block
	bytes := 0
	for shard := range shards {
		changed = l.changedSince(round, shard, changed[:0])
		for _, blk := range changed {
			group = append(group, blk)
			bytes += len(blk.names) + len(blk.counts)
			if bytes < size {
				continue
			}

			if err := put(group, false); err != nil {
				return err
			}
			group = group[:0]
			bytes = 0
		}
	}
	return put(group, true)
}

// eachRow visits the rows of a block. whole is false if some of them can't be
// read. The rows refer to the block's memory.
func (blk *block) eachRow(visit func(h rowHash, row *Row)) (whole bool) {
	names, counts := wire.NewDecoder(blk.names), wire.NewDecoder(blk.counts)
	whole = true
	for names.More() {
		h := rowHash{hi: names.Uint64(), lo: names.Uint64()}
		var row Row
		row.decodeNames(names)
		if names.Failed() {
			return false
		}

		row.Cost = counts.Varint()
		row.Checks = counts.Varint()
		if counts.Failed() {
			row.Cost = 0
			row.Checks = 0
			whole = false
		}

		visit(h, &row)
	}
	return whole
}
