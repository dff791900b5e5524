package counters

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// Record is a counter in transit to or from disk or another node. Its times are
// on the steady clock of the process that holds it.
type Record struct {
	Key       Key
	Kind      algorithms.Kind
	State     algorithms.State   // for all kinds but the log
	Log       []algorithms.Entry // for the log
	Fullness  uint8              // how much of the capacity is used, 0…255; 255 means refusing
	ExpiresAt int64              // Unix seconds on the steady clock: when the counter equals a fresh one
	// Note, if not nil, is a note of the partition. The record then stands for the
	// note, not for a counter, and ExpiresAt is when the note expires.
	Note *notes.Note
}

// noteKind, in place of an algorithm, marks a record as a note. The note's own
// kind is then in place of the fullness. Concurrency has the same number, but
// it has no counters, so no record of a counter uses it.
const noteKind = algorithms.Kind(7)

// recordOf returns n as a record: copies, hand-overs and checkpoints carry the
// notes of a partition like its counters.
func recordOf(n *notes.Note) Record {
	return Record{Key: Key{Subject: n.Subject, Counter: n.ID}, Kind: noteKind, ExpiresAt: n.UntilSecond, Note: n}
}

// recordsOf appends list to records.
func recordsOf(list []notes.Note, records []Record) []Record {
	for i := range list {
		records = append(records, recordOf(&list[i]))
	}
	return records
}

// RecordID identifies a record among those of its table: a note may have the key of a counter.
type RecordID struct {
	Key    Key
	IsNote bool
	Kind   notes.Kind // of the note
}

// ID returns what identifies r.
func (r *Record) ID() RecordID {
	if r.Note == nil {
		return RecordID{Key: r.Key}
	}
	return RecordID{r.Key, true, r.Note.Kind}
}

func (r *Record) isFresh() bool {
	if r.Note != nil {
		return false
	}
	if r.Kind == algorithms.SlidingLog {
		return len(r.Log) == 0
	}
	return r.State.Fresh()
}

// asLog returns the log of r, or nil if r's algorithm is not sliding-window-log.
func (r *Record) asLog() *algorithms.Log {
	if r.Kind != algorithms.SlidingLog {
		return nil
	}
	return algorithms.NewLog(r.Log)
}

// recordAt returns a slot as a Record.
func (g *group) recordAt(slot int) Record {
	return Record{
		Key: g.entries[slot].key, Kind: g.kindFullnesses[slot].kind(), State: g.entries[slot].state,
		Fullness: g.kindFullnesses[slot].recordFullness(), ExpiresAt: int64(g.expiresAt[slot]),
	}
}

// asRecord returns k's log as a Record, with a copy of its entries.
func (ls *storedLog) asRecord(k Key) Record {
	return Record{
		Key: k, Kind: algorithms.SlidingLog, Log: ls.log.Entries(),
		Fullness: ls.kindFullness.recordFullness(), ExpiresAt: int64(ls.expiresAt),
	}
}

// ExtendSlot moves the end of r later by age nanoseconds, if r is a slot that is
// held, or the note of lost slots. age is how long ago r was written. So r has
// as much time left as it had then.
func (r *Record) ExtendSlot(age int64) {
	if r.Note == nil || r.Note.UntilSecond == 0 || r.Note.Kind != notes.Slot && r.Note.Kind != notes.Lost {
		return
	}
	r.Note.At += age
	r.Note.UntilSecond = min(r.Note.UntilSecond+(age+1e9-1)/1e9, math.MaxUint32)
	r.ExpiresAt = r.Note.UntilSecond
}

// IsReleasedSlot reports whether r is a slot that was released.
func (r *Record) IsReleasedSlot() bool {
	return r.Note != nil && r.Note.Kind == notes.Slot && r.Note.UntilSecond == 0
}
