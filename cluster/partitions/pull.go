package partitions

import (
	"context"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// answerCopyRequest tells an owner how new the copies here are, or sends the
// owner the copies. They include the costs that this node admitted as a
// standby.
func (k *Keeper) answerCopyRequest(state *adoptedState, c *peer.Call, ended bool, d *wire.Decoder) {
	list := decodePartitions(d)
	if err := d.Done("list of partitions"); err != nil {
		c.Fail(codeMalformed, err.Error())
		return
	}

	k.mu.Lock()
	if !ended && k.anyNotOwnedBy(state, c.From.Node, list) {
		k.mu.Unlock()
		c.Fail(codeRefused, "the sender does not own the partition")
		return
	}

	if ended {
		list = k.onlyWithCounters(list)
	}

	if c.Method == MethodCopyInfo {
		infos := k.appendCopyInfos(nil, list, ended)
		k.mu.Unlock()
		c.Reply(infos)
		return
	}

	versions := k.prepareCopies(list, ended)
	k.mu.Unlock()

	// Sending waits for answers. Other nodes' messages must not wait behind it.
	k.loops.Go(func() { k.sendCopies(c, list, versions) })
}

// appendCopyInfos appends the infos about the copies of list to b. The caller
// must hold mu.
func (k *Keeper) appendCopyInfos(b []byte, list []int, ended bool) []byte {
	for _, p := range list {
		pt := &k.parts[p]
		b = appendCopyInfo(b, p, copyInfo{whole: pt.isWhole(ended), version: pt.version})
	}
	return b
}

// prepareCopies debits this node's debts into the complete copies of list, which
// are about to be sent, and returns their versions; zero for the others. The
// caller must hold mu.
func (k *Keeper) prepareCopies(list []int, ended bool) []version {
	versions := make([]version, len(list))
	for i, p := range list {
		pt := &k.parts[p]
		if !pt.isWhole(ended) {
			continue
		}

		// The version is noted before the copy is read. So the copy may be newer than
		// its version says, but never older.
		versions[i] = pt.version
		// A standby may have debts, and so may an owner that does not know of its end
		// and has decided alone.
		if pt.phase == away || pt.phase == owning {
			k.debts.debitIntoCopy(p, k.config.Now())
		}
	}
	return versions
}

// isWhole reports whether another owner may continue from the counters here
// alone. ended means that this node was ended.
func (pt *partState) isWhole(ended bool) bool {
	return pt.copyComplete || ended && pt.hasAllCounters()
}

// anyNotOwnedBy reports whether some of the partitions are not node's to
// continue, as far as this node knows. The caller must hold mu.
func (k *Keeper) anyNotOwnedBy(state *adoptedState, node ring.NodeID, list []int) bool {
	return slices.ContainsFunc(list, func(p int) bool {
		from, _ := state.Owners(p)
		return from != node || k.parts[p].phase == owning
	})
}

// sendCopies sends the copies here to the caller of c, and replies once the
// caller has them.
func (k *Keeper) sendCopies(c *peer.Call, list []int, versions []version) {
	k.reportDebtsFirst(c.From.Node, list)

	s := copySender{keeper: k, to: c.From.Node}
	for i, p := range list {
		if err := s.add(p, versions[i]); err != nil {
			c.Fail(codeRefused, err.Error())
			return
		}
	}

	if err := s.send(); err != nil {
		c.Fail(codeRefused, err.Error())
		return
	}
	c.Reply(nil)
}

// copyMessageTimeout bounds the call that sends one message of a copy.
const copyMessageTimeout = 5 * time.Second

// copySender sends the copies that a node asked for, in messages of about
// messageSize bytes.
type copySender struct {
	keeper  *Keeper
	to      ring.NodeID
	message []byte // being assembled
}

// add adds the copy of p, which is at least as new as at, and sends every full
// message.
func (cs *copySender) add(p int, at version) error {
	s := section{p: p, version: at, flags: sectionCopy | sectionBegins}
	err := cs.keeper.config.Table.Copy(p, func(records []counters.Record) error { return cs.addRecords(&s, records) })
	if err != nil {
		return err
	}

	// Only now is it known that there are no more batches, so an empty section
	// ends the copy.
	s.flags |= sectionEnds
	return cs.addRecords(&s, nil)
}

// addRecords adds records of s.p, in as many sections as needed.
func (cs *copySender) addRecords(s *section, records []counters.Record) (err error) {
	k := cs.keeper
	s.wall = k.config.Table.WallIn(k.config.Now(), s.p)

	for more := true; more && err == nil; more = len(records) > 0 {
		if len(cs.message) == 0 {
			cs.message = k.appendHeader(cs.message, 0)
		}
		cs.message, records = s.append(cs.message, records, k.config.Now())
		if len(cs.message) >= messageSize {
			err = cs.send()
		}
	}

	return err
}

// send sends the message, unless it is empty, and waits for the answer.
func (cs *copySender) send() error {
	if len(cs.message) == 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(cs.keeper.ctx, copyMessageTimeout)
	defer cancel()
	_, err := cs.keeper.config.Calls.Call(ctx, cs.to, MethodCopies, cs.message)
	cs.message = cs.message[:0]
	return err
}

// incomingCopy is a copy that is arriving from a node. The counters here stay until it is complete.
type incomingCopy struct {
	section
	records []counters.Record
}

// acceptCopies receives copies that this node asked for.
func (k *Keeper) acceptCopies(c *peer.Call, d *wire.Decoder) {
	now := k.config.Now()
	for d.More() {
		var s section
		var records []counters.Record
		decodeSection(d, now, func(head section) bool {
			s = head
			return phase(k.phases[s.p].Load()) == recovering
		}, func(rec counters.Record) {
			// The decoder reuses the log's memory for the next record.
			rec.Log = slices.Clone(rec.Log)
			records = append(records, rec)
		})

		if !d.Failed() {
			k.receiveCopy(c.From.Node, s, records)
		}
	}

	answerCall(c, d, nil)
}

// receiveCopy collects one section of a copy, and adopts the copy with its last section.
func (k *Keeper) receiveCopy(from ring.NodeID, s section, records []counters.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.parts[s.p].phase != recovering || !k.callsInFlight[callKey{from, MethodPull}] {
		return
	}

	arriving := k.incoming[from]
	if s.flags&sectionBegins != 0 {
		arriving = &incomingCopy{section: section{p: s.p, version: s.version}}
		k.incoming[from] = arriving
	}

	if arriving == nil || arriving.p != s.p || arriving.version != s.version {
		return // the beginning of its copy is missing
	}

	arriving.records = append(arriving.records, records...)
	arriving.wall = max(arriving.wall, s.wall)

	arriving.sectionNumber++
	if s.flags&sectionEnds == 0 {
		return
	}

	delete(k.incoming, from)
	if arriving.sectionNumber == s.sectionNumber {
		k.adoptCopy(from, arriving)
	}
}

// adoptCopy adopts a copy that has arrived. If the copy here is complete and of
// the same lineage, a newer one replaces it, and an older one is ignored. In all
// other cases, the two are merged: the more used one of two counters stays. The
// caller must hold mu.
func (k *Keeper) adoptCopy(from ring.NodeID, arriving *incomingCopy) {
	now := k.config.Now()
	table := k.config.Table
	pt := &k.parts[arriving.p]

	// The copy of a node that was ended does not count as whole: others may have
	// owned the partition since, and granted slots that this copy lacks.
	info := pt.search.found[from]
	if info.whole && (arriving.version == info.version || arriving.after(info.version)) && k.adopted.Load().InRing(from) {
		pt.search.gotWhole = true
	}

	switch {
	case pt.copyComplete && arriving.after(pt.version):
		table.Drop(arriving.p)
		table.FollowClock(now, arriving.p, arriving.wall)
		for _, rec := range arriving.records {
			table.Put(now, rec)
		}
		k.debts.markDropped(arriving.p)
		pt.version = arriving.version
		pt.source = from

	case !pt.copyComplete || arriving.lineage != pt.lineage:
		// This is measured before FollowClock, which brings the two clocks together.
		apart := time.Duration(arriving.wall - table.WallIn(now, arriving.p)).Abs()
		table.FollowClock(now, arriving.p, arriving.wall)
		for _, rec := range arriving.records {
			table.Merge(now, rec, apart <= mergeTolerance)
		}

	default: // the copy here is as new or newer
	}
}

// mergeTolerance is how far apart the clocks of two copies may be for the
// windows of their counters to tell which is newer. It allows for the time that
// a copy takes to arrive.
const mergeTolerance = time.Second

// endedNodes lists the nodes that were once ended, are in no ring now, and can
// be reached.
//
// A node that was ended because it stopped applying the log is still alive, and
// may hold counters that no other node has: it kept pushing to the standbys of
// the last state it applied. A new owner without a complete copy asks it. The
// ended node need not know that it was ended: it lost its authority before the
// end was agreed on, so its counters are final. The new owner may be a new
// process that never saw the ring with the ended node, so it asks every ended
// node that can be reached, whatever it owned.
func (k *Keeper) endedNodes(state *adoptedState) (list []ring.NodeID) {
	for id := range state.Generations {
		if id != k.config.Self && state.Boot(id) != 0 && !state.InRing(id) && k.config.Calls.Reachable(id) {
			list = append(list, id)
		}
	}
	return list
}

// onlyWithCounters returns those of the partitions that this node still has counters
// of, after it has lost its authority. If it has authority again, it has applied
// its end and forgotten them, so there are none. The caller must hold mu.
func (k *Keeper) onlyWithCounters(list []int) []int {
	if k.config.Authority() {
		return nil
	}
	return slices.DeleteFunc(list, func(p int) bool { return !k.parts[p].hasCounters() })
}
