package usage

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/persist"
)

const (
	// silentAfter is how long a node that is no longer a member must be silent
	// until its process counts as ended. A node that was removed while it was
	// alive goes on counting and sending.
	silentAfter = 3 * time.Second
	// stopTime is how long a process may take to end after its final statement.
	stopTime = 10 * time.Second
	// minLoss is the least loss that is assumed of a copy without a final
	// statement. Small steps of the clock must not make it smaller.
	minLoss = time.Second
	// maxRecords bounds the records. There is one for each process that sent copies
	// here, until a later process of the same node has all its ledgers.
	maxRecords = 4096
	// maxVersions bounds the ledgers of a statement.
	maxVersions = 1 << 16
)

// processRecord is the last statement of a process, as a holder of its ledgers keeps it.
type processRecord struct {
	statement
	// Ended is a time, on the holder's clock, when the process was certainly over,
	// or 0 if none is known yet. As far as the holder can tell, no other process of the
	// node has counted anything since then. After a final statement, Ended is AsOf,
	// until a process of the node is seen again.
	Ended int64 `json:"ended,omitempty"`
	// EndIsFinal means that Ended is no longer revised: the node is no longer a
	// member, or a later process speaks for the node.
	EndIsFinal bool `json:"settled,omitempty"`
	// Replaced means that a later process speaks for the node.
	Replaced bool `json:"replaced,omitempty"`

	isComplete bool      // everything in the statement was here when it arrived
	watched    bool      // since Ended, this node has seen without a break that no process of the node lives
	heard      time.Time // when the node was last heard of, or the record was loaded
}

// isExact reports whether the process counted nothing after the statement.
func (r *processRecord) isExact() bool { return r.Final && r.Ended != 0 && r.Ended <= r.AsOf }

// maxLoss returns how much time of counting the copy may lack, and in which months.
func (r *processRecord) maxLoss(now int64) (loss time.Duration, first, last Month) {
	ended := r.Ended
	if ended == 0 {
		ended = now
	}

	// A reservation is settled within an hour, in the month in which it was made.
	return max(minLoss, time.Duration(ended-r.AsOf)), MonthOf(r.AsOf - int64(time.Hour)), MonthOf(ended)
}

// observe notes what this node sees of the process. ofMember means that its
// node is a member, and dead that no process listens at the node's address. It
// returns the new record, or r if nothing has changed.
//
// The node has counted nothing since Ended only if its address has been dead
// without a break. Otherwise another process of the node may have started and
// counted, even if it was cut off from all other nodes.
func (r *processRecord) observe(now int64, ofMember, dead bool) *processRecord {
	next := *r
	silent := time.Since(r.heard)

	switch {
	case r.Replaced || r.EndIsFinal && !ofMember:
		return r
	case r.EndIsFinal: // it has come back, but has not spoken here
		next.EndIsFinal = false
		next.watched = false
	case !ofMember && silent < silentAfter:
		return r // it may have been removed while it was alive; then it goes on sending
	case !ofMember:
		next.EndIsFinal = true
		if !r.watched {
			next.Ended = now
		}
	case dead && !r.watched:
		next.Ended = now
		next.watched = true
	// A process lives. After a final statement, it may be the one that is ending.
	case !dead && r.watched && (!r.Final || silent > stopTime):
		next.watched = false
	default:
		return r
	}

	return &next
}

// chooseNewer returns the record that takes r's place when next, a later one of
// the same process, has come. It keeps r if r is complete and next is not,
// because a bill needs the last complete statement. r then counts as alive.
// Otherwise chooseNewer returns next.
func (r *processRecord) chooseNewer(next *processRecord) *processRecord {
	if !r.isComplete || next.isComplete {
		return next
	}

	alive := *r
	alive.Ended = 0
	alive.EndIsFinal = false
	alive.watched = false
	alive.heard = time.Now()
	return &alive
}

// replaced returns the record that takes r's place once a later process speaks
// for the node.
func (r *processRecord) replaced(now int64) *processRecord {
	next := *r
	if !r.watched && !r.EndIsFinal {
		next.Ended = now
	}
	next.EndIsFinal = true
	next.Replaced = true
	return &next
}

// processRecords keeps what this node knows about copies that it holds.
type processRecords struct {
	mu      sync.Mutex // guards the fields below; acquired before the file
	loaded  bool       // records has what the file had
	records []*processRecord
}

// loadRecords reads the records of earlier processes, once. The caller must
// hold processRecords.mu.
func (t *Totals) loadRecords() error {
	h := &t.processRecords
	if h.loaded {
		return nil
	}

	var found []*processRecord
	err := t.meter.file.View(func(tx persist.Tx) error {
		b, err := tx.Get(notesBucket, recordsKey)
		if err == nil && b != nil {
			err = json.Unmarshal(b, &found)
		}
		return err
	})
	if err != nil {
		return err
	}

	for _, r := range found {
		r.isComplete = true
		r.heard = time.Now()
	}
	h.records = append(found, h.records...)
	h.loaded = true
	return nil
}

// recordsKey is the key of the records, as JSON, in notesBucket.
var recordsKey = []byte("records")

func putRecords(tx persist.Tx, records []*processRecord) error {
	b, err := json.Marshal(records)
	if err != nil {
		return err
	}
	return tx.Put(notesBucket, recordsKey, b)
}

// list returns copies of the records, without the ends after which the process
// may have lived.
func (h *processRecords) list() (list []processRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.records {
		listed := *r
		if !r.EndIsFinal && !r.watched {
			listed.Ended = 0 // it may have lived since then
		}
		list = append(list, listed)
	}
	return list
}

// recordsAfter returns the records with st in place of the process's last
// statement, and whether more than times have changed. isComplete means that
// none of the ledgers of st is missing here: an incomplete statement does not
// replace a complete one. Records of earlier processes of the node go once st
// has their ledgers. ofMember means that the node is a member. The caller must
// hold mu.
func (h *processRecords) recordsAfter(
	st *statement, held []holding, isComplete, ofMember bool, now int64,
) (records []*processRecord, changed bool) {
	next := &processRecord{statement: *st, isComplete: isComplete, heard: time.Now()}
	if st.Final {
		next.Ended = st.AsOf
		next.watched = true
		next.EndIsFinal = !ofMember // it has left: no later process counts for the cluster, unless it joins again
	}

	known := false
	for _, r := range h.records {
		switch {
		case r.Source != st.Source:
		case r.Boot != st.Boot:
			if st.supersedes(r, held) {
				changed = changed || len(r.Ledgers) > 0
				continue
			}
			if !r.Replaced {
				r = r.replaced(now)
				changed = true
			}
		default:
			known = true
			isNews := !r.Final && r.Number <= st.Number
			if isNews {
				newer := r.chooseNewer(next)
				changed = changed || r.EndIsFinal || r.Final != newer.Final || !slices.Equal(r.Ledgers, newer.Ledgers)
				r = newer
			}
		}

		records = append(records, r)
	}

	if !known {
		records = append(records, next)
		changed = changed || len(st.Ledgers) > 0 || next.EndIsFinal
	}

	return records[max(0, len(records)-maxRecords):], changed
}

// knows reports whether r adds nothing: the record here of the same process is
// as new, or a later process of the node has all its ledgers. The caller must
// hold mu.
func (h *processRecords) knows(r *processRecord, held []holding) bool {
	return slices.ContainsFunc(h.records, func(ours *processRecord) bool {
		if ours.Source == r.Source && ours.Boot == r.Boot {
			return ours.Number >= r.Number || ours.Final
		}
		return ours.supersedes(r, held)
	})
}

// supersedes reports whether st is of a later process of the same node than
// earlier, and has all of earlier's ledgers. known has the merged ledgers that
// are known here, which may stand for them.
func (st *statement) supersedes(earlier *processRecord, known []holding) bool {
	return st.Source == earlier.Source && st.Started > earlier.Started &&
		!slices.ContainsFunc(earlier.Ledgers, func(v version) bool { return !st.has(v, known) })
}
