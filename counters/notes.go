package counters

import (
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

// DefaultReservations is the room for reservations of a new table, in bytes.
const DefaultReservations = notes.DefaultReservations

// Copies, hand-overs and checkpoints carry the notes of a partition as records, like its counters.

// recordOf returns n as a record.
func recordOf(n *notes.Note) Record {
	return Record{Key: Key{Subject: n.Subject, Counter: n.ID}, Kind: noteKind, FreshAt: n.Until, Note: n}
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

// recordsOf appends list to records.
func recordsOf(list []notes.Note, records []Record) []Record {
	for i := range list {
		records = append(records, recordOf(&list[i]))
	}
	return records
}

// noteReaders returns by as a set of readers of notes.
func noteReaders(by readers) (list notes.Readers) {
	if by&checkpoints != 0 {
		list |= notes.Checkpoints
	}
	if by&replicas != 0 {
		list |= notes.Replicas
	}
	return list
}

// isDebtor reports whether notes of kind k say what the counters include.
func isDebtor(k notes.Kind) bool { return k == notes.Debtor }

// changedDebtors returns the changed notes that say which debts the counters
// include.
func (t *Table) changedDebtors() (list []Record) {
	for p := range ring.Partitions {
		list = recordsOf(t.notes.Changes(p, notes.Checkpoints, isDebtor, nil), list)
	}
	return list
}

// changedNotes is Changed for notes: for debtors, which were collected before
// the counters, and for all others. It reuses buf.
func (t *Table) changedNotes(debtors, buf []Record, yield func([]Record) error) error {
	isOther := func(k notes.Kind) bool { return !isDebtor(k) }

	buf = append(buf[:0], debtors...)
	for p := range ring.Partitions {
		buf = recordsOf(t.notes.Changes(p, notes.Checkpoints, isOther, nil), buf)
		if len(buf) < changedBatch && p < ring.Partitions-1 || len(buf) == 0 {
			continue
		}
		if err := yield(buf); err != nil {
			t.markChanged(buf, checkpoints)
			return err
		}
		buf = buf[:0]
	}

	return nil
}
