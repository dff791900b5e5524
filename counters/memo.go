package counters

import (
	"errors"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// ErrRequestIDReused means that the memo belongs to a request with the same id but other content.
var ErrRequestIDReused = errors.New("a request with this id asked for something else")

// Memo is the answer to a request with an id. It is kept as a note of the
// request's subject, so that a repetition gets the same answer.
type Memo struct {
	// Key has a Kind that says what the request was: notes.Answer, notes.Write or
	// notes.Retry. Its ID is derived from the request's.
	Key         notes.Key
	Inline      bool   // the subject came with its limits
	Group       uint32 // identifies the rule of an answer to a check
	ContentHash uint64 // of the request
	Until       int64  // when it expires: Unix seconds on the steady clock
	Answer      []byte
}

// note returns m as a note made at now.
func (m *Memo) note(now algorithms.Instant) *notes.Note {
	return &notes.Note{
		Key: m.Key, Rank: m.ContentHash, At: now.Steady, UntilSecond: m.Until, Inline: m.Inline,
		Group: m.Group, Body: string(m.Answer),
	}
}

// Recall sets m.Answer and reports whether there is one. It fails with ErrShut,
// or with ErrRequestIDReused if the memo belongs to a request with other
// content or of another kind.
func (t *Table) Recall(now algorithms.Instant, m *Memo) (found bool, err error) {
	p := m.Key.Partition()
	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(p) {
		return false, ErrShut
	}
	return m.recall(lp)
}

func (m *Memo) recall(lp notes.LockedPartition) (found bool, err error) {
	for _, kind := range [...]notes.Kind{notes.Answer, notes.Write, notes.Retry} {
		// An id counts as used, whichever kind of request used it.
		k := m.Key
		k.Kind = kind

		n, found := lp.Get(k)
		switch {
		case !found:
			continue
		case kind != m.Key.Kind || n.ContentHash() != m.ContentHash:
			return true, ErrRequestIDReused
		}

		m.Answer = []byte(n.Body)
		return true, nil
	}

	return false, nil
}

// Remember stores m. If it fails with ErrShut, notes.ErrWrites or, for an
// answer of more than notes.MaxBody bytes, ErrNoRoom, nothing changes.
func (t *Table) Remember(now algorithms.Instant, m *Memo) error {
	n := m.note(now)
	if len(n.Body) > notes.MaxBody {
		return ErrNoRoom
	}

	// Room is made before the partition is locked: MakeRoom may have to lock
	// others, to drop their notes.
	if err := t.notes.MakeRoom(n, now.Steady); err != nil {
		return err
	}

	p := m.Key.Partition()
	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(p) {
		return ErrShut
	}
	lp.Put(n)
	t.notes.AddEvictable(n)
	return nil
}
