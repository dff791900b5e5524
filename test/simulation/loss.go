package simulation

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// countUnacked counts the debits of p that its followers don't have: they are forgotten if a follower takes over. The
// caller holds the mutex, at the moment at which p stops deciding.
func (p *process) countUnacked() {
	w := p.w
	var buf [3]int
	for _, q := range p.heldPartitions {
		w.unacked[q] = nil
		if len(w.subjectsIn[q]) == 0 {
			continue
		}

		own := p.records(q)
		for _, node := range p.followers(q, buf[:0]) {
			copied := w.nodes[node].process.records(q)
			for key, r := range own {
				i, known := w.subjectByKey[key]
				if n := MissingInCopy(&r, copied[key]) - missingLent(own, copied, key); known && n > w.unacked[q][i] {
					if w.unacked[q] == nil {
						w.unacked[q] = map[int]int64{}
					}
					w.unacked[q][i] = n
				}
			}
		}
	}
}

// noteLoss records the debits that the new owner of q does not have; with anew, it has none.
func (w *World) noteLoss(q int, anew bool) {
	now := w.now()
	for _, i := range w.subjectsIn[q] {
		l := OwnerLoss{Subject: i, At: now, Amount: w.unacked[q][i], Anew: anew}
		w.ledger.Losses = append(w.ledger.Losses, l)
	}
	w.unacked[q] = nil
	w.ledger.Counts.Begun++
	if anew {
		w.ledger.Counts.Anew++
	}
}

func (p *process) records(q int) map[counters.Key]counters.Record {
	all := map[counters.Key]counters.Record{}
	_ = p.table.Copy(q, func(records []counters.Record) error {
		for _, r := range records {
			all[r.Key] = r
		}
		return nil
	})
	return all
}

// missingLent returns how much of the missing debits was lent to other regions. The borrower was told only after the
// followers, so this excuses nothing. It is 0 for buckets, in which the cost drains.
func missingLent(own, copied map[counters.Key]counters.Record, key counters.Key) int64 {
	r, lent := own[key.LentKey()]
	if !lent || r.Kind != algorithms.FixedWindow {
		return 0
	}
	return MissingInCopy(&r, copied[key.LentKey()])
}

// MissingInCopy returns how much of a counter's cost its copy does not have, or an upper bound where that is unknown.
func MissingInCopy(own *counters.Record, copied counters.Record) int64 {
	o, c := own.State, copied.State
	switch {
	case own.Kind == algorithms.SlidingLog:
		return missingInLog(own.Log, copied.Log)
	case own.Kind.Bucket():
		return max(0, o.Count+1-c.Count) // the fraction counts as one
	case own.Kind == algorithms.FixedWindow:
		if o.At != c.At {
			return o.Count
		}
		return max(0, o.Count-c.Count)
	}

	switch o.At - c.At {
	case 0:
		return max(0, o.Count-c.Count) + max(0, o.Part-c.Part)
	case 1:
		return o.Count + max(0, o.Part-c.Count)
	}

	return o.Count + o.Part
}

func missingInLog(own, copied []algorithms.Entry) (n int64) {
	known := map[int64]int64{}
	for _, e := range copied {
		known[e.At] += e.N
	}
	for _, e := range own {
		n += max(0, e.N-known[e.At])
	}
	return n
}
