package partitions

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// fallbackReportDelay is the delay before fallback debts are reported to an owner that is back, plus as much again
	// at random. By then all nodes have debts to report, and the owner has to bring its standbys up to date.
	fallbackReportDelay = time.Second
	// pruneInterval is the time between two searches for expired debts.
	pruneInterval = 10 * time.Second
	// debtsTimeout bounds how long an owner may take to acknowledge debts.
	debtsTimeout = 2 * time.Second
	// standbyWait bounds how long an owner waits until its standbys have the debts reported to it, before it refuses
	// them. It is shorter than debtsTimeout.
	standbyWait = time.Second
	// maxDebtsWaiting bounds the messages about debts that wait for standbys. The owner refuses further ones, and their
	// senders try again.
	maxDebtsWaiting = 64
	// debtsPerMessage bounds the debts in one message.
	debtsPerMessage = 4096
)

// debtReport is a message that reports debts.
type debtReport struct {
	body    []byte
	batches []*debtBatch
	entries int
}

// add adds a batch if there is room for it, and reports whether there was.
func (r *debtReport) add(batch *debtBatch, now algorithms.Instant) bool {
	if r.entries > 0 && r.entries+len(batch.entries) > debtsPerMessage {
		return false
	}
	batch.reported = true
	r.body = batch.append(r.body, now)
	r.batches, r.entries = append(r.batches, batch), r.entries+len(batch.entries)
	return true
}

// reportDebts reports debts to the owners that can be reached. Each debt is reported again until its owner acknowledges it. It
// runs in the loop.
func (k *Keeper) reportDebts() {
	state := k.adopted.Load()
	now := k.config.Now()
	reports := map[ring.NodeID]*debtReport{}
	k.mu.Lock()
	k.pruneDebts(now)

	for p := range k.debts.byPartition {
		owner, to := state.Owner(p)
		if owner != to && (k.learned[p].Load() == state.Revision || k.parts[p].phase == handedOver) {
			owner = to
		}

		if k.parts[p].phase == owning {
			// This node was cut off and has its authority back, with all of its counters.
			if k.config.Authority() {
				k.debts.debitOwnDebts(p, now)
			}
			continue
		}

		tooEarly := k.isTooEarlyForFallback(owner)
		if owner.IsZero() || owner == k.config.Self || k.pending[pendingCall{owner, MethodDebts}] || !state.member || !k.canSendTo(owner) {
			continue
		}

		// Debts as a standby take fallback debts with them. A batch on disk may have both, and once the owner has noted a later
		// number, it would take that batch for debited when the next process reports it.
		if k.debts.dissolveUnreported(p); len(k.debts.batches[p]) == 0 && !(tooEarly && k.debts.onlyFallback(p)) {
			k.debts.batchDebts(p)
		}

		for _, batch := range k.debts.batches[p] {
			if reports[owner] == nil {
				reports[owner] = &debtReport{body: k.appendHeader(nil, 0)}
			}
			if !reports[owner].add(batch, now) {
				break // a partition's batches are reported in order
			}
		}
	}

	for owner := range reports {
		k.pending[pendingCall{owner, MethodDebts}] = true
	}
	k.mu.Unlock()

	for owner, report := range reports {
		k.config.Calls.Go(owner, MethodDebts, report.body, debtsTimeout, func(reply []byte, err error) {
			d := wire.NewDecoder(reply)
			refused, noRoom := decodeIndexes(d, len(report.batches)), decodeIndexes(d, report.entries)
			if err == nil {
				err = d.Done("answer to debts")
			}
			k.debtsAnswered(owner, report, refused, noRoom, err)
		})
	}
}

// isTooEarlyForFallback reports whether it is too early to report fallback debts to owner: it is away, or has only just come
// back. The caller holds mu.
func (k *Keeper) isTooEarlyForFallback(owner ring.NodeID) bool {
	if !k.config.Calls.Reachable(owner) {
		delete(k.reportFallbackAt, owner)
		return true
	}
	at, known := k.reportFallbackAt[owner]
	if !known {
		at = time.Now().Add(fallbackReportDelay + rand.N(fallbackReportDelay))
		k.reportFallbackAt[owner] = at
	}
	return time.Now().Before(at)
}

// pruneDebts prunes expired debts from time to time: after a long cut, only the last windows matter. The caller holds mu.
func (k *Keeper) pruneDebts(now algorithms.Instant) {
	if k.debts.total == 0 {
		clear(k.reportFallbackAt) // the next cut starts from scratch
		return
	}
	if time.Since(k.lastPrune) < pruneInterval {
		return
	}
	k.lastPrune = time.Now()
	k.debts.prune(now)
}

// debtsAnswered handles an owner's answer to reported debts. refused holds the indexes of the batches that it refused, noRoom
// those of single debts that it has no room for.
func (k *Keeper) debtsAnswered(owner ring.NodeID, report *debtReport, refused, noRoom map[int]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	delete(k.pending, pendingCall{owner, MethodDebts})

	if err != nil || len(refused)+len(noRoom) > 0 {
		k.backOff(owner)
	}

	if err != nil {
		return
	}

	firstEntry := 0
	for i, batch := range report.batches {
		if !refused[i] {
			k.debts.acknowledge(batch, func(j int) bool { return !noRoom[firstEntry+j] })
		}
		firstEntry += len(batch.entries)
	}
}

// acceptDebts debits the costs that another node admitted while it could not reach this one. It answers with the indexes of
// those it can't debit, because it does not own their counters or has no room. Without authority it accepts none: if it has
// been ended, they would be forgotten. The debtor drops the entries once they are acknowledged, so the standbys must have
// them first, except those that can't be reached. Otherwise it refuses the batches, and the debtor reports them again under the
// same numbers. A node that this one is pulling copies from reports the debts in them, and gets no acknowledgement: a copy
// from another node may yet replace the counters here.
func (k *Keeper) acceptDebts(c *peer.Call, d *wire.Decoder) {
	merging := k.isPullingFrom(c.From.Node)
	if !k.config.Authority() && !merging {
		c.Fail(codeRefused, "this node has no authority")
		return
	}
	if k.debtsWaiting.Load() >= maxDebtsWaiting { // only this goroutine adds one
		c.Fail(codeRefused, "too many debts at once")
		return
	}

	generation := k.adopted.Load().Generation(k.config.Self)
	now := k.config.Now()
	var partitions, noRoom []int                       // the partition of each batch, and the indexes of debts
	debited, refused := map[int]bool{}, map[int]bool{} // partitions

	entries := 0
	for d.More() {
		batch := decodeBatch(d, now, 0)
		if d.Failed() {
			break
		}

		p := batch.partition
		if partitions = append(partitions, p); !refused[p] { // noting a later batch would make a refused one count as debited
			batchNoRoom, ok := k.debit(c.From.Node, batch, now, merging)
			debited[p], refused[p] = ok, !ok
			for _, j := range batchNoRoom {
				noRoom = append(noRoom, entries+j)
			}
		}

		entries += len(batch.entries)
	}

	if d.Failed() {
		c.Fail(codeMalformed, d.Err().Error())
		return
	}
	if merging {
		c.Fail(codeBusy, "copies are being merged")
		return
	}

	k.debtsWaiting.Add(1)
	k.loops.Go(func() {
		defer k.debtsWaiting.Add(-1)

		k.awaitStandbys(debited, refused)

		// If this node was ended in the meantime, it has forgotten them, and the next owner continues without them.
		if k.ctx.Err() != nil || !k.config.Authority() || k.adopted.Load().Generation(k.config.Self) != generation {
			c.Fail(codeRefused, "this node has no authority any more")
			return
		}

		var refusedBatches []int
		for i, p := range partitions {
			if refused[p] {
				refusedBatches = append(refusedBatches, i)
			}
		}

		c.Reply(appendPartitions(appendPartitions(nil, refusedBatches), noRoom))
	})
}

// debit debits a batch of node once. It reports false if this node is not the owner. If merging is true, an owner that
// still searches for its counters debits it, too.
func (k *Keeper) debit(node ring.NodeID, batch *debtBatch, now algorithms.Instant, merging bool) (noRoom []int, ok bool) {
	k.debiting.Lock()
	defer k.debiting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if ph := k.parts[batch.partition].phase; ph != owning && !(merging && ph == recovering) {
		return nil, false
	}
	return k.debts.debit(node, batch, now), true
}

// reportDebtsFirst reports to node the debts that are in the copies it is about to get. The node debits them from its own
// counters, so that a merge, which keeps the more used one of two counters, includes them in either case. The debts stay
// here until node's standbys have them, too: see reportDebts.
func (k *Keeper) reportDebtsFirst(node ring.NodeID, list []int) {
	now := k.config.Now()
	var reports []*debtReport
	k.mu.Lock()

	for _, p := range list {
		for _, batch := range k.debts.batches[p] {
			if n := len(reports); n == 0 || !reports[n-1].add(batch, now) {
				next := &debtReport{body: k.appendHeader(nil, 0)}
				next.add(batch, now)
				reports = append(reports, next)
			}
		}
	}
	k.mu.Unlock()

	for _, report := range reports {
		ctx, cancel := context.WithTimeout(k.ctx, debtsTimeout)
		_, _ = k.config.Calls.Call(ctx, node, MethodDebts, report.body)
		cancel()
	}
}

// DebtsChanged returns a number that changes whenever the debts do.
func (k *Keeper) DebtsChanged() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.changes
}

// AppendDebts appends the debts to b, for the next process of this node to restore.
func (k *Keeper) AppendDebts(b []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.adopted.Load().member { // otherwise numbers could repeat those of the previous process
		k.debts.batchForDisk()
	}
	return k.debts.append(b, k.config.Now())
}

// RestoreDebts adopts the debts that an earlier process of this node wrote, as AppendDebts encoded them. Debts already
// recorded stay as they are. It returns the number of adopted debts; after an error, those are the ones before it.
func (k *Keeper) RestoreDebts(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.restore(b, k.config.Now())
}
