package partitions

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// fallbackReportDelay is the least delay of fallback debts: when an owner is
	// back, they wait between one and two times fallbackReportDelay, at random. All
	// nodes have debts to report at that time, while the owner must bring its
	// standbys up to date.
	fallbackReportDelay = time.Second
	// maxDebtsWaiting bounds the messages about debts that wait for standbys. The
	// owner refuses further ones, and their senders try again.
	maxDebtsWaiting = 64
	// debtsPerMessage bounds the debts in one message.
	debtsPerMessage = 4096
)

// encodeDebts returns the message that reports debts. The caller must hold mu.
func (k *Keeper) encodeDebts(list []*debt, now algorithms.Instant) []byte {
	b := k.appendHeader(nil, 0)
	for _, d := range list {
		b = d.append(b, 0, now)
	}
	return b
}

// reportDebts reports debts to the owners that can be reached. Each debt is
// reported again until its owner acknowledges it. The caller must hold sendMu.
func (k *Keeper) reportDebts() {
	state := k.adopted.Load()
	now := k.config.Now()
	reports := map[ring.NodeID][]*debt{}
	k.mu.Lock()
	k.pruneDebts(now)

	for p := range k.debts.byPartition {
		if k.parts[p].phase == owning {
			if k.config.Authority() {
				k.includeOwnDebts(p)
			}
			continue
		}

		// delaysFallback is called even if nothing can be sent now: the delay begins
		// with the first call that finds the owner back.
		owner := k.debtOwner(state, p)
		tooEarly := k.delaysFallback(owner)
		if !k.mayReportTo(state, owner) {
			continue
		}

		list := k.nextReport(p, debtsPerMessage-len(reports[owner]), tooEarly)
		if len(list) > 0 {
			reports[owner] = append(reports[owner], list...)
		}
	}

	messages := map[ring.NodeID][]byte{}
	for owner, list := range reports {
		k.callsInFlight[callKey{owner, MethodDebts}] = true
		messages[owner] = k.encodeDebts(list, now)
	}
	k.mu.Unlock()

	for owner, list := range reports {
		k.config.Calls.Go(owner, MethodDebts, messages[owner], debtsTimeout, func(reply []byte, err error) {
			k.handleDebtsReply(owner, list, reply, err)
		})
	}
}

// debtOwner returns the node to report the debts of p to. While p moves, the
// token may be at the new owner already. The caller must hold mu.
func (k *Keeper) debtOwner(state *adoptedState, p int) ring.NodeID {
	from, to := state.Owners(p)
	if from != to && (k.movedRevision[p].Load() == state.Revision || k.parts[p].phase == handedOver) {
		return to
	}
	return from
}

// mayReportTo reports whether debts may be reported to owner now. The caller
// must hold mu.
func (k *Keeper) mayReportTo(state *adoptedState, owner ring.NodeID) bool {
	return !owner.IsZero() && owner != k.config.Self && !k.callsInFlight[callKey{owner, MethodDebts}] &&
		state.registered && k.canSendTo(owner)
}

// nextReport returns the debts of p to report next, at most room of them, and
// makes them final. New debts wait until those reported before are acknowledged,
// so that the debts of a counter stay few. If fallbackWaits is true, it returns
// none unless some are a standby's. Fallback debts go along with these: an owner
// that has noted a later number would take earlier ones for debited. The caller
// must hold mu.
func (k *Keeper) nextReport(p, room int, fallbackWaits bool) []*debt {
	list := k.debts.inOrder(p)
	if fallbackWaits && !slices.ContainsFunc(list, func(d *debt) bool { return !d.fallback }) {
		return nil
	}

	reportedBefore := list[0].number.isFinal()
	n := 0
	for n < min(len(list), room) && list[n].number.isFinal() == reportedBefore {
		k.debts.makeFinal(list[n])
		n++
	}
	return list[:n]
}

// delaysFallback reports whether fallback debts must not be reported to owner
// yet: it is away, or has only just come back. The delay begins with the first
// call that finds it back. The caller must hold mu.
func (k *Keeper) delaysFallback(owner ring.NodeID) bool {
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

// pruneDebts prunes expired debts from time to time: after a long cut, only the
// last windows matter. The caller must hold mu.
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

// An owner answers each debt with one of these bytes.
const (
	debtTaken   byte = iota
	debtRefused      // it is reported again, under the same number
	debtNoRoom       // the owner has no room for it
)

// handleDebtsReply handles an owner's answers to reported debts.
func (k *Keeper) handleDebtsReply(owner ring.NodeID, list []*debt, answers []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	delete(k.callsInFlight, callKey{owner, MethodDebts})

	if err != nil || len(answers) != len(list) {
		k.backOff(owner)
		return
	}

	for i, d := range list {
		switch answers[i] {
		case debtTaken:
			k.debts.remove(d)
			continue
		case debtNoRoom:
			k.debts.renumber(d)
		case debtRefused: // it is reported again
		}
		k.backOff(owner)
	}
}

// acceptDebts debits what another node admitted while it could not reach this
// one.
//
//   - It refuses a debt whose counter this node does not own, and all debts while
//     it has no authority: a node that has been ended would forget them.
//   - The debtor drops the debts that are taken, so the answer waits until each
//     standby that can be reached has them. If a standby does not get them in
//     time, the debts taken in its partition are refused.
//   - While this node pulls copies from the debtor, it debits what the debtor
//     reports and acknowledges none of it, because a copy from another node may
//     still replace the counters here.
func (k *Keeper) acceptDebts(c *peer.Call, dec *wire.Decoder) {
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
	var list []*debt
	var answers []byte
	debited, refused := map[int]bool{}, map[int]bool{} // partitions

	for dec.More() {
		d := decodeDebt(dec, now, 0)
		if !d.number.isFinal() {
			dec.Failf("a debt without a number")
		}
		if dec.Failed() {
			break
		}

		p := d.key.Partition()
		answer := debtRefused
		// Once a debt is refused, later ones in its partition are refused, too: the
		// note of a later debt would make the refused one count as debited.
		if !refused[p] {
			answer = k.acceptDebt(c.From.Node, d, now, merging)
			if answer == debtRefused {
				refused[p] = true
			} else {
				debited[p] = true
			}
		}

		list = append(list, d)
		answers = append(answers, answer)
	}

	if dec.Failed() {
		c.Fail(codeMalformed, dec.Err().Error())
		return
	}
	if merging {
		c.Fail(codeBusy, "copies are being merged")
		return
	}

	// The answer gets a goroutine of its own: other messages must not wait for the
	// standbys.
	k.debtsWaiting.Add(1)
	k.loops.Go(func() {
		defer k.debtsWaiting.Add(-1)

		k.awaitStandbys(debited, refused)
		refuseDebited(list, answers, refused)
		k.answerDebts(c, generation, answers)
	})
}

// refuseDebited refuses the debts that were debited in refused partitions. A
// debt that found no room keeps that answer, so that it gets another number:
// under its present one, it would count as debited once another debt of its
// counter has found room.
func refuseDebited(list []*debt, answers []byte, refused map[int]bool) {
	for i, d := range list {
		if refused[d.key.Partition()] && answers[i] == debtTaken {
			answers[i] = debtRefused
		}
	}
}

// answerDebts answers a report of debts, which this node has debited in the
// given generation. If this node was ended in the meantime, it has forgotten
// the debts, and the next owner continues without them.
func (k *Keeper) answerDebts(c *peer.Call, generation int64, answers []byte) {
	if k.ctx.Err() != nil || !k.config.Authority() || k.adopted.Load().Generation(k.config.Self) != generation {
		c.Fail(codeRefused, "this node no longer has authority")
		return
	}
	c.Reply(answers)
}

// acceptDebt debits a debt of node once, and returns the answer to it. If merging is
// true, this node takes the debt even while it still searches for its counters.
func (k *Keeper) acceptDebt(node ring.NodeID, d *debt, now algorithms.Instant, merging bool) (answer byte) {
	k.debitMu.Lock()
	defer k.debitMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()

	ph := k.parts[d.key.Partition()].phase
	switch {
	case ph != owning && !(merging && ph == recovering):
		return debtRefused
	case !k.debts.debitOnce(node, d, now):
		return debtNoRoom
	}
	return debtTaken
}

// reportDebtsFirst reports to node the debts that are in the copies it is about
// to get. The node debits them from its own counters, too. A merge keeps the
// more used of two counters; now both include the debts. They stay here until
// node's standbys have them, too: see reportDebts.
func (k *Keeper) reportDebtsFirst(node ring.NodeID, list []int) {
	now := k.config.Now()
	var included []*debt
	k.mu.Lock()
	for _, p := range list {
		for _, d := range k.debts.inOrder(p) {
			if d.number.isFinal() {
				included = append(included, d)
			}
		}
	}

	var messages [][]byte
	for chunk := range slices.Chunk(included, debtsPerMessage) {
		messages = append(messages, k.encodeDebts(chunk, now))
	}
	k.mu.Unlock()

	for _, message := range messages {
		ctx, cancel := context.WithTimeout(k.ctx, debtsTimeout)
		// A node that merges copies debits the debts and still answers with an error.
		// So the error is ignored.
		_, _ = k.config.Calls.Call(ctx, node, MethodDebts, message)
		cancel()
	}
}

// DebtChanges returns a number that changes whenever the debts do.
func (k *Keeper) DebtChanges() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.changes
}

// AppendDebts appends the debts to b, for the next process of this node to restore.
func (k *Keeper) AppendDebts(b []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.append(b, k.config.Now())
}

// RestoreDebts adopts the debts that an earlier process of this node wrote, as
// AppendDebts encoded them. Debts already recorded stay as they are. It returns
// the number of counters whose debts it has adopted; after an error, of those
// before it.
func (k *Keeper) RestoreDebts(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.restore(b, k.config.Now())
}
