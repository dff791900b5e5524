package simulation

import (
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Times of pushes. pushInterval is the time between two pushes of changes.
const (
	pushInterval = 100 * time.Millisecond
	// pushAgain is the pause before a push to a follower that rejected one.
	pushAgain = 400 * time.Millisecond
)

// followerKey is a partition and a node that gets copies of it.
type followerKey struct{ partition, node int }

// progress is a follower's progress.
type progress struct {
	boot      int  // of the follower
	copySent  bool // the complete copy was sent: only changes follow
	copyAcked bool // the complete copy was acknowledged
	// sent and acked are the sequence numbers of the last push sent and the last one acknowledged.
	sent, acked uint64
}

// replica is a process's copy of a partition that it follows.
type replica struct {
	source   int // 1 + the node that pushes; 0 without a copy
	boot     int
	whole    bool
	lineage  uint64
	sequence uint64
}

// push is a message to a follower with one partition's changes, or with all its records.
type push struct {
	partition int
	lineage   uint64
	sequence  uint64
	whole     bool
	packed    []byte // encoded records
	n         int
}

// schedulePush schedules a push, because counters may have changed.
func (p *process) schedulePush() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.schedulePushLocked()
}

func (p *process) schedulePushLocked() {
	if p.pushing || len(p.heldPartitions) == 0 {
		return
	}
	p.pushing = true
	p.w.after(pushInterval, func() {
		if p.pushing = false; p.alive {
			p.pushChanges()
		}
	})
}

// followers lists the nodes that should have copies of q while p has its token.
func (p *process) followers(q int, buf []int) []int {
	add := func(id ring.NodeID) {
		i := indexOf(id)
		for _, have := range buf {
			if have == i {
				return
			}
		}
		if i >= 0 && i != p.index {
			buf = append(buf, i)
		}
	}
	v := p.view
	switch from, to := v.from.Owner(q), v.to.Owner(q); {
	case from == to:
		add(v.to.Standby(q))
		add(v.from.Standby(q))
	case from == p.id:
		add(to)
		add(v.from.Standby(q))
	default:
		add(from)
		add(v.to.Standby(q))
	}

	return buf
}

func (p *process) isSynced(q, node int) bool {
	if node < 0 {
		return true
	}
	f := p.progress[followerKey{q, node}]
	return f != nil && f.copyAcked && f.boot == p.view.boots[node]
}

func (p *process) dropFollowers(q int) {
	p.lagging = true
	for k := range p.progress {
		if k.partition == q {
			delete(p.progress, k)
		}
	}
}

// forgetFollowers drops the progress of nodes that have lost their copies.
func (p *process) forgetFollowers(old, a *agreed) {
	for k, f := range p.progress {
		if f.boot != a.boots[k.node] || old.generation[k.node] != a.generation[k.node] {
			delete(p.progress, k)
		}
	}
}

// pushChanges sends changes to the nodes that get copies, and complete copies to those that have none.
func (p *process) pushChanges() {
	var records []counters.Record
	all, left := p.lagging, false
	p.lagging = false

	for _, q := range p.heldPartitions {
		if !all && len(p.w.subjectsIn[q]) == 0 {
			continue // an empty partition, and its followers know
		}
		if records = p.table.ReplicatePartition(q, records); len(records) > 0 || all {
			left = p.pushOne(q, records) || left
		}
	}

	if left {
		p.schedulePushLocked() // try again
	}
}

// pushOne is pushChanges for one partition. It reports whether a follower could not be reached.
func (p *process) pushOne(q int, records []counters.Record) (left bool) {
	w := p.w
	var buf [3]int

	var all []counters.Record
	for _, node := range p.followers(q, buf[:0]) {
		key := followerKey{q, node}
		f := p.progress[key]
		switch {
		case f != nil && f.copySent && len(records) == 0:
		case !w.net.reachable(w.now(), p.index, node):
			delete(p.progress, key)
			p.lagging, left = true, true
		case f != nil && f.copySent:
			p.send(key, f, records)
		default:
			if all == nil {
				_ = p.table.Copy(q, func(r []counters.Record) error {
					all = append(all, r...)
					return nil
				})
			}

			f = &progress{boot: p.view.boots[node]}
			p.progress[key] = f
			p.send(key, f, all)
			f.copySent = true
		}
	}

	return left
}

// send sends records to a follower: all of the partition, unless the follower already has them.
func (p *process) send(key followerKey, f *progress, records []counters.Record) {
	w := p.w
	p.sequence++
	f.sent = p.sequence
	m := push{partition: key.partition, lineage: p.lineages[key.partition].Load(), sequence: p.sequence, whole: !f.copySent, n: len(records)}
	now := w.clock.Now()
	for i := range records {
		m.packed = counters.AppendRecord(m.packed, &records[i], now)
	}

	lost := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.progress[key] == f {
			delete(p.progress, key)
			p.lagging = true
			w.after(pushAgain, p.schedulePushLocked)
		}
	}
	w.transmitLocked(p, key.node, func(to *process) {
		taken := to.receive(p, &m)
		w.transmit(to, p.index, func(back *process) {
			if back != p {
				return
			}
			if !taken {
				lost()
				return
			}

			w.mu.Lock()
			defer w.mu.Unlock()

			if f.acked = max(f.acked, m.sequence); m.whole && p.progress[key] == f {
				f.copyAcked = true
			}

			p.wakeConfirmers()
		}, lost)
	}, lost)
}

// receive applies a push and reports whether it accepted it.
func (p *process) receive(from *process, m *push) bool {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()

	c := p.copies[m.partition]
	known := p.view != nil && from.generation >= p.view.generation[from.index]
	if ph := p.phases[m.partition]; !known || ph == held || ph == freezing {
		return false
	}

	if m.whole {
		p.table.Drop(m.partition)
		p.markDebtsAbsent(m.partition)
		c = replica{source: from.index + 1, boot: from.boot, whole: true, lineage: m.lineage}
	}

	if c.source != from.index+1 || c.boot != from.boot || c.lineage != m.lineage || m.sequence <= c.sequence {
		return false
	}

	c.sequence = m.sequence
	p.copies[m.partition] = c
	now := w.clock.Now()

	d := wire.NewDecoder(m.packed)
	for range m.n {
		var r counters.Record
		if counters.DecodeRecord(d, &r, now); d.Failed() {
			w.ledger.Fail("decode a push: %v", d.Err())
			return false
		}
		p.table.Put(now, r)
		if d := p.debts[r.Key]; d != nil {
			d.absent = true
		}
	}

	return true
}

// copyFrom replaces p's records of q with those of from.
func (p *process) copyFrom(from *process, q int) {
	now := p.w.clock.Now()
	p.table.Drop(q)
	_ = from.table.Copy(q, func(records []counters.Record) error {
		for _, r := range records {
			p.table.Put(now, r)
		}
		return nil
	})
}
