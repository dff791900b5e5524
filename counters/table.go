package counters

import "github.com/rlnode/rlnode/algorithms"

type place struct{}

// Table holds counters. All methods may be called concurrently.
type Table struct{}

// New returns an empty table of at most max counters.
func New(max int64) *Table { panic("stub") }

// Close frees the table's memory. Nothing may use it afterwards.
func (t *Table) Close() { panic("stub") }

// Take debits all of ops, or none if one that is not Shadow refuses, and reports which. Each op gets its
// Decision.
func (t *Table) Take(now algorithms.Now, ops []Op) bool { panic("stub") }

// Peek is what Take would have answered; nothing is taken.
func (t *Table) Peek(now algorithms.Now, ops []Op) bool { panic("stub") }

// Stats describes the table.
type Stats struct {
	Counters   int64 // held now, logs included
	Logs       int64 // of those, sliding-window logs
	LogEntries int64
	Bytes      int64 // of records, used and free
	Max        int64
	Evicted    int64 // since the start: dropped before they were fresh, for want of room
	Expired    int64 // since the start: dropped as fresh
	Refused    int64 // since the start: new subjects refused because only refused counters were left
}

// Stats returns the present figures.
func (t *Table) Stats() Stats { panic("stub") }

// Sweep drops expired counters from the next part (0…1) of the table; calling it ten times with 0.1 visits all.
func (t *Table) Sweep(now algorithms.Now, part float64) { panic("stub") }

// Changed hands every counter that changed since the last call to yield, in batches of some ten thousand; the
// slice is reused. A record with Level 0 and a zero State was reset. When yield fails, its batch and the rest
// count as changed still, and the error is returned.
func (t *Table) Changed(yield func([]Record) error) error { panic("stub") }

// Restore puts back a record read from disk, unless the table already has that counter. It reports false when
// there was no room.
func (t *Table) Restore(now algorithms.Now, r Record) bool { panic("stub") }
