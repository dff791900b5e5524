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
	// contactPause is the delay before fallback debts are reported to an owner that is back, plus as much again at random.
	// By then all nodes have debts to report, and the owner has to bring its standbys up to date.
	contactPause = time.Second
	// debtsCheck is the time between two searches for expired debts.
	debtsCheck = 10 * time.Second
	// debtsTimeout bounds how long an owner may take to acknowledge debts.
	debtsTimeout = 2 * time.Second
	// standbyWait bounds how long an owner waits until its standbys have the debts reported to it. It is shorter than
	// debtsTimeout.
	standbyWait = time.Second
	// maxDebtsWaiting bounds the messages about debts that wait for standbys. The owner refuses further ones, and their
	// senders try again.
	maxDebtsWaiting = 64
	// debtsPerMessage bounds the debts in one message.
	debtsPerMessage = 4096
)

// payment is a message that reports debts.
type payment struct {
	body    []byte
	seals   []*seal
	entries int
}

// add adds a seal if there is room for it, and reports whether there was.
func (p *payment) add(s *seal, now algorithms.Now) bool {
	if p.entries > 0 && p.entries+len(s.entries) > debtsPerMessage {
		return false
	}
	s.reported = true
	p.body = s.append(p.body, now)
	p.seals, p.entries = append(p.seals, s), p.entries+len(s.entries)
	return true
}

// payDebts reports debts to the owners that can be reached. Each debt is reported again until its owner acknowledges it. It
// runs in the loop.
func (k *Keeper) payDebts() {
	v := k.view.Load()
	now := k.cfg.Now()
	payments := map[ring.NodeID]*payment{}
	k.mu.Lock()
	k.forgetDebts(now)
	for p := range k.debts.debts {
		owner, to := v.Owner(p)
		if owner != to && (k.learned[p].Load() == v.Revision || k.parts[p].phase == handedOver) {
			owner = to
		}
		if k.parts[p].phase == owning {
			// This node was cut off and has its authority back, with all of its counters.
			if k.cfg.Authority() {
				k.debts.debitOwn(p, now)
			}
			continue
		}
		waiting := k.waitsForOwner(owner)
		if owner.IsZero() || owner == k.cfg.Self || k.pending[pendingCall{owner, MethodDebts}] || !v.member || !k.ready(owner) {
			continue
		}
		if k.debts.reopen(p); len(k.debts.seals[p]) == 0 {
			k.debts.seal(p, waiting)
		}
		for _, s := range k.debts.seals[p] {
			if payments[owner] == nil {
				payments[owner] = &payment{body: k.appendHeader(nil, 0)}
			}
			if !payments[owner].add(s, now) {
				break // a partition's seals are reported in order
			}
		}
	}
	for owner := range payments {
		k.pending[pendingCall{owner, MethodDebts}] = true
	}
	k.mu.Unlock()
	for owner, pay := range payments {
		k.cfg.Calls.Go(owner, MethodDebts, pay.body, debtsTimeout, func(reply []byte, err error) {
			d := wire.NewDecoder(reply)
			refused, full := decodePlaces(d, len(pay.seals)), decodePlaces(d, pay.entries)
			if err == nil {
				err = d.Done("answer to debts")
			}
			k.paid(owner, pay, refused, full, err)
		})
	}
}

// waitsForOwner reports whether it is too early to report fallback debts to owner: it is away, or has only just come back.
// The caller holds mu.
func (k *Keeper) waitsForOwner(owner ring.NodeID) bool {
	if !k.cfg.Calls.Reachable(owner) {
		delete(k.tellDebtsAt, owner)
		return true
	}
	at, known := k.tellDebtsAt[owner]
	if !known {
		at = time.Now().Add(contactPause + rand.N(contactPause))
		k.tellDebtsAt[owner] = at
	}
	return time.Now().Before(at)
}

// forgetDebts prunes expired debts from time to time: after a long cut, only the last windows matter. The caller holds mu.
func (k *Keeper) forgetDebts(now algorithms.Now) {
	if k.debts.n == 0 {
		clear(k.tellDebtsAt) // the next cut starts from scratch
		return
	}
	if time.Since(k.checked) < debtsCheck {
		return
	}
	k.checked = time.Now()
	k.debts.prune(now)
}

// paid handles an owner's answer to reported debts. refused holds the indexes of the seals that it refused, full those of
// single debts that it has no room for.
func (k *Keeper) paid(owner ring.NodeID, pay *payment, refused, full map[int]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pending, pendingCall{owner, MethodDebts})
	if err != nil || len(refused)+len(full) > 0 {
		k.failed(owner)
	}
	if err != nil {
		return
	}
	place := 0
	for i, s := range pay.seals {
		if !refused[i] {
			k.debts.acknowledge(s, func(j int) bool { return !full[place+j] })
		}
		place += len(s.entries)
	}
}

// acceptDebts debits the costs that another node admitted while it could not reach this one. It answers with the indexes of
// those it can't debit, because it does not own their counters or has no room. Without authority it accepts none: if it has
// been ended, they would be forgotten. Once acknowledged, the debtor drops the entries, so the standbys must have them
// first, except those that can't be reached. A node that this one is pulling copies from reports the debts in them, and
// gets no acknowledgement: a copy from another node may yet replace the counters here.
func (k *Keeper) acceptDebts(c *peer.Call, d *wire.Decoder) {
	joins := k.pulling(c.From.Node)
	if !k.cfg.Authority() && !joins {
		c.Fail(codeRefused, "this node has no authority")
		return
	}
	if k.debtsWaiting.Load() >= maxDebtsWaiting { // only this goroutine adds one
		c.Fail(codeRefused, "too many debts at once")
		return
	}
	generation := k.view.Load().Generation(k.cfg.Self)
	now := k.cfg.Now()
	var refused, full []int
	touched, left := map[int]bool{}, map[int]bool{}
	entries := 0
	for i := 0; d.More(); i++ {
		s := decodeSeal(d, now, 0)
		if d.Failed() {
			break
		}
		p, none := s.partition, []int(nil)
		if !left[p] {
			none, touched[p] = k.debit(c.From.Node, s, now, joins)
		}
		if !touched[p] || left[p] {
			left[p], refused = true, append(refused, i) // noting a later seal would make this one count as debited
		}
		for _, j := range none {
			full = append(full, entries+j)
		}
		entries += len(s.entries)
	}
	if d.Failed() {
		c.Fail(codeMalformed, d.Err().Error())
		return
	}
	if joins {
		c.Fail(codeBusy, "copies are being merged")
		return
	}
	k.debtsWaiting.Add(1)
	k.done.Go(func() {
		defer k.debtsWaiting.Add(-1)
		k.awaitStandbys(touched)
		// If this node was ended meanwhile, it has forgotten them, and the next owner continues without them.
		if k.ctx.Err() != nil || !k.cfg.Authority() || k.view.Load().Generation(k.cfg.Self) != generation {
			c.Fail(codeRefused, "this node has no authority any more")
			return
		}
		c.Reply(appendPartitions(appendPartitions(nil, refused), full))
	})
}

// debit debits a seal of node once. It reports false if this node is not the owner, or can't note the number. If joins is
// true, an owner that still searches for its counters debits it, too.
func (k *Keeper) debit(node ring.NodeID, s *seal, now algorithms.Now, joins bool) (full []int, ok bool) {
	k.debiting.Lock()
	defer k.debiting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if ph := k.parts[s.partition].phase; ph != owning && !(joins && ph == recovering) {
		return nil, false
	}
	full, err := k.debts.debit(node, s, now)
	return full, err == nil
}

// reportDebtsFirst reports to node the debts that are in the copies it is about to get. The node debits them from its own
// counters, so that a merge, which keeps the more used one of two counters, includes them in either case. The debts stay
// here until node's standbys have them, too: see payDebts.
func (k *Keeper) reportDebtsFirst(node ring.NodeID, list []int) {
	now := k.cfg.Now()
	var payments []*payment
	k.mu.Lock()
	for _, p := range list {
		for _, s := range k.debts.seals[p] {
			if n := len(payments); n == 0 || !payments[n-1].add(s, now) {
				next := &payment{body: k.appendHeader(nil, 0)}
				next.add(s, now)
				payments = append(payments, next)
			}
		}
	}
	k.mu.Unlock()
	for _, pay := range payments {
		ctx, cancel := context.WithTimeout(k.ctx, debtsTimeout)
		_, _ = k.cfg.Calls.Call(ctx, node, MethodDebts, pay.body)
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
	if k.view.Load().member { // otherwise numbers could repeat those of the previous process
		k.debts.sealToWrite()
	}
	return k.debts.append(b, k.cfg.Now())
}

// RestoreDebts adopts the debts that an earlier process of this node wrote, as AppendDebts encoded them. Debts already
// recorded stay as they are. It returns the number of adopted debts; after an error, those are the ones before it.
func (k *Keeper) RestoreDebts(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.restore(b, k.cfg.Now())
}
