package usage

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/persist"
)

// storeCopy stores changes of another node's open ledger, or its statement.
func (t *Totals) storeCopy(body []byte) ([]byte, error) {
	d := wire.NewDecoder(body)
	var header copyHeader
	if err := json.Unmarshal(d.View(len(body)), &header); err != nil {
		return nil, errMessage
	}

	reply := copyReply{Now: t.meter.config.Now()}
	var err error
	switch {
	case header.Statement != nil:
		reply.Missing, err = t.storeStatement(&header)
	case !header.Ledger.Source.IsZero():
		err = t.storeBlocks(header.Ledger, d)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(reply)
}

// storeBlocks stores blocks of an open ledger. Only the statement that follows makes them count.
func (t *Totals) storeBlocks(ledger ledgerID, d *wire.Decoder) error {
	m := t.meter
	if err := m.checkCopy(ledger); err != nil {
		return err
	}

	var blocks []block
	for d.More() {
		blk := block{shard: int(d.Byte())}
		blk.number = int(d.UpTo(int64(m.config.Rows+maxOthers) / blockRows))
		blk.names = d.View(d.Len())
		blk.counts = d.View(d.Len())
		if len(blk.names) == 0 {
			blk.names = nil
		}
		if d.Failed() || !blk.eachRow(func(rowHash, *Row) {}) {
			return errRow
		}

		blocks = append(blocks, blk)
	}

	id := bucketID{ledgerID: ledger}
	return m.file.Update(func(tx persist.Tx) error {
		// A new copy has no head yet. Its round is 0, so it counts only after a
		// statement.
		head, _ := readHead(tx, id)
		head.Copy = true

		for _, blk := range blocks {
			if blk.names == nil {
				continue
			}
			before, _ := tx.Get(id.name(), blockKey(namesPart, blk.shard, blk.number)) // nil if damaged
			head.Bytes += len(blk.names) - len(before)
		}
		if head.Bytes > m.maxNameBytes() {
			return errors.New("the copy has more subjects than this node keeps in a month")
		}

		if err := putBlocks(tx, id, blocks); err != nil {
			return err
		}
		return putHead(tx, id, head)
	})
}

// storeStatement notes another node's statement, and returns those of its
// ledgers that are missing here. It writes only if more has changed than the
// statement's time, so that an idle node causes no writes.
func (t *Totals) storeStatement(header *copyHeader) (missing []version, err error) {
	h := &t.processRecords
	m := t.meter
	st := header.Statement
	if st.Source == m.config.Self || st.Source.IsZero() || len(st.Ledgers) > maxVersions {
		return nil, errors.New("invalid statement")
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if err := t.loadRecords(); err != nil {
		return nil, err
	}

	steps := slices.DeleteFunc(slices.Clone(header.Sent), func(changed step) bool {
		return m.checkCopy(changed.Ledger) != nil || changed.From == changed.To
	})
	if len(steps) > 0 {
		if err := m.file.Update(func(tx persist.Tx) error { return putSteps(tx, steps) }); err != nil {
			return nil, err
		}
	}

	held, err := m.holdings(allMonths)
	if err != nil {
		return nil, err
	}

	missing = st.missing(held)
	ofMember := isMember(t.members(), st.Source)
	records, changed := h.recordsAfter(st, held, len(missing) == 0, ofMember, m.config.Now())
	if changed {
		if err := m.file.Update(func(tx persist.Tx) error { return putRecords(tx, records) }); err != nil {
			return nil, err
		}
	}

	h.records = records
	return missing, nil
}

func putSteps(tx persist.Tx, steps []step) error {
	for i := range steps {
		if err := steps[i].put(tx); err != nil {
			return err
		}
	}
	return nil
}

// put records that this node has everything of an open ledger up to the round
// To, if it had everything up to From. It drops closed copies that have no
// more.
func (s *step) put(tx persist.Tx) error {
	id := bucketID{ledgerID: s.Ledger}
	head, ok := readHead(tx, id)
	if !ok || s.From != 0 && head.Round != s.From {
		return nil // this node has lost the copy, and will say that it is missing
	}

	head.Node = s.Node
	head.Damaged = s.Damaged
	head.Round = s.To
	if err := putHead(tx, id, head); err != nil {
		return err
	}

	list, err := listBuckets(tx)
	for _, other := range list {
		if other.ledgerID == s.Ledger && other.round > 0 && other.round <= s.To && err == nil {
			err = tx.Drop(other.name())
		}
	}
	return err
}

// watch notes which of the processes whose copies are here have ended.
func (t *Totals) watch() {
	h := &t.processRecords
	m := t.meter
	members := t.members()
	now := m.config.Now()

	h.mu.Lock()
	defer h.mu.Unlock()
	if t.loadRecords() != nil {
		return
	}

	changed := false
	for i, r := range h.records {
		next := r.observe(now, isMember(members, r.Source), t.peers.ProcessGone(r.Source))
		h.records[i] = next
		changed = changed || next.EndIsFinal != r.EndIsFinal || len(r.Ledgers) > 0 && next.Ended != r.Ended
	}
	if !changed {
		return
	}

	// If this fails, a process will count as ended later, but only after a restart
	// of this node.
	if err := m.file.Update(func(tx persist.Tx) error { return putRecords(tx, h.records) }); err != nil {
		m.config.Logger.Debug("can't write when a node has ended", "error", err)
	}
}

// mergeRecords adds what another node knows about processes that have ended. It
// ignores records that add nothing to what this node knows.
func (t *Totals) mergeRecords(theirs []*processRecord) {
	h := &t.processRecords
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(theirs) == 0 || t.loadRecords() != nil {
		return
	}

	held, err := t.meter.holdings(allMonths)
	if err != nil {
		return
	}

	changed := false
	for _, r := range theirs {
		if !t.meter.acceptsRecord(r) || h.knows(r, held) {
			continue
		}

		// The record replaces those that it supersedes.
		r.isComplete = true
		r.heard = time.Now()
		h.records = slices.DeleteFunc(slices.Clone(h.records), func(ours *processRecord) bool {
			return ours.Source == r.Source && (ours.Boot == r.Boot || r.supersedes(ours, held))
		})
		h.records = append(h.records, r)
		changed = true
	}

	if changed && !t.meter.file.HasNoFile() {
		// If this fails, other nodes still have the records.
		_ = t.meter.file.Update(func(tx persist.Tx) error { return putRecords(tx, h.records) })
	}
}

// acceptsRecord reports whether r, which another node sent, is within bounds,
// is not of this node, and is of a time that bills may still ask for.
func (m *Meter) acceptsRecord(r *processRecord) bool {
	if r == nil || r.Source.IsZero() || r.Source == m.config.Self || len(r.Ledgers) > maxVersions {
		return false
	}
	oldest := (MonthOf(m.config.Now()) - Month(m.config.Months)).Begin()
	return max(r.Ended, r.AsOf) >= oldest
}
