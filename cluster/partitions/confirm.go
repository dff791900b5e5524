package partitions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// CanConfirm reports whether Confirm can succeed for p now, as far as this node knows.
func (k *Keeper) CanConfirm(p int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.parts[p].phase != owning {
		return false
	}

	var buf [3]ring.NodeID
	nodes := k.adopted.Load().copyTargetsOf(k.config.Self, p, buf[:0])
	for _, node := range nodes {
		if !k.targets.hasCopy(p, node) || !k.canSendTo(node) {
			return false
		}
	}

	return len(nodes) > 0 || k.config.Save != nil
}

// Confirm returns once every change made in p before the call would survive the
// loss of this process. It pushes the changes to the standby at once, or saves
// them to disk if there is no standby. The error wraps ErrNotOwner,
// ErrUnconfirmed or ErrBusy, or the error of ctx or Config.Save. After an
// error, the changes may still survive.
func (k *Keeper) Confirm(ctx context.Context, p int) error {
	return k.confirm(ctx, &confirmation{p: p})
}

// ConfirmNotes is Confirm for changes of the notes of p. If there is neither a
// standby nor a disk, nothing can survive, and it returns nil at once.
func (k *Keeper) ConfirmNotes(ctx context.Context, p int) error {
	return k.confirm(ctx, &confirmation{p: p, forNotes: true})
}

func (k *Keeper) confirm(ctx context.Context, c *confirmation) error {
	err := k.addConfirmation(c)
	if err != nil {
		return err
	}

	defer k.dropConfirmations(c)

	k.pushForConfirms()
	err = k.await(ctx, c)
	if errors.Is(err, errNoCopyTargets) {
		if c.forNotes && k.config.Save == nil {
			err = nil // nothing can survive: see ConfirmNotes
		} else {
			err = k.save(ctx)
		}
	}

	if err != nil {
		return fmt.Errorf("confirm partition %d: %w", c.p, err)
	}

	// The token may have left since, for example while the disk was slow. Then
	// another node continues, perhaps without the changes.
	if k.config.Table.Lineage(c.p) != c.lineage || phase(k.phases[c.p].Load()) != owning {
		return fmt.Errorf("confirm partition %d: %w", c.p, ErrNotOwner)
	}

	return nil
}

// standbyWait bounds how long an owner waits until its standbys have the debts
// that were reported to it. After that, it refuses these debts. It is shorter
// than debtsTimeout, for which the debtor waits.
const standbyWait = time.Second

// awaitStandbys waits, at most for standbyWait, until the standbys that can be
// reached have every change made in the debited partitions before the call. It
// adds to refused the partitions for which that fails.
func (k *Keeper) awaitStandbys(debited, refused map[int]bool) {
	// All confirmations are registered before the push, so one push serves them
	// all.
	var list []*confirmation
	for p := range debited {
		c := &confirmation{p: p, forDebts: true}
		if k.addConfirmation(c) != nil {
			refused[p] = true
		} else {
			list = append(list, c)
		}
	}

	defer k.dropConfirmations(list...)

	k.pushForConfirms()
	ctx, cancel := context.WithTimeout(k.ctx, standbyWait)
	defer cancel()

	for _, c := range list {
		if err := k.await(ctx, c); err != nil && !errors.Is(err, errNoCopyTargets) {
			refused[c.p] = true
		}
	}
}

// await waits for a confirmation, whose push is under way, and returns its result.
func (k *Keeper) await(ctx context.Context, c *confirmation) error {
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	case <-k.ctx.Done():
		return ErrNotOwner
	}

	select {
	case err := <-c.done: // the result came together with the end of ctx
		return err
	default:
		return ctx.Err()
	}
}

// pushForConfirms pushes the changes that new confirmations wait for. If
// another goroutine is sending messages at this moment, the loop pushes the
// changes next, for all waiting confirmations at once. Otherwise this goroutine
// pushes them, without waking another one.
func (k *Keeper) pushForConfirms() {
	if !k.sendMu.TryLock() {
		wake.Signal(k.confirmWake)
		return
	}

	defer k.sendMu.Unlock()
	k.advanceConfirmations()
}

// advanceConfirmations pushes the changes that new confirmations wait for, and
// finishes the confirmations whose result is known. The caller must hold
// sendMu.
func (k *Keeper) advanceConfirmations() {
	k.mu.Lock()
	waiting := slices.Clone(k.confirms) // later ones wait for the next run
	k.mu.Unlock()

	if len(waiting) == 0 {
		return
	}

	k.pushFor(waiting)
	k.mu.Lock()
	defer k.mu.Unlock()

	state := k.adopted.Load()
	for _, c := range waiting {
		if c.mustAck == nil {
			c.mustAck = k.lastNumbers(state, c.p)
		}
	}

	k.finishConfirmations()
}

// pushFor pushes the changes that new confirmations wait for. Debts concern
// many partitions, so one pass over all changes takes less time than a pass
// over each partition. The caller must hold sendMu.
func (k *Keeper) pushFor(waiting []*confirmation) {
	isNew := func(c *confirmation) bool { return c.mustAck == nil }
	if slices.ContainsFunc(waiting, func(c *confirmation) bool { return isNew(c) && c.forDebts }) {
		k.pushChanges()
		return
	}

	var list partitionSet
	for _, c := range waiting {
		if isNew(c) {
			list.put(c.p, true)
		}
	}
	k.pushPartitions(&list)
}

// lastNumbers returns, for each copy target of p, the number of the last
// message sent to it. The caller must hold mu.
func (k *Keeper) lastNumbers(state *adoptedState, p int) map[*copyProgress]uint64 {
	var buf [3]ring.NodeID
	last := map[*copyProgress]uint64{}
	for _, node := range state.copyTargetsOf(k.config.Self, p, buf[:0]) {
		progress := k.targets.progressOf(p, node)
		if progress != nil {
			last[progress] = k.targets.nodes[node].lastNumber
		}
	}
	return last
}

// saving lets concurrent calls of save share checkpoints.
type saving struct {
	turn  chan struct{} // holds an element while a call saves
	begun atomic.Uint64 // checkpoints begun; written by the holder of turn
	saved uint64        // number of the last successful checkpoint; guarded by turn
}

// save returns once a checkpoint that began after the call has succeeded.
func (k *Keeper) save(ctx context.Context) error {
	if k.config.Save == nil {
		return ErrUnconfirmed
	}

	// A checkpoint that has begun already may lack the changes, so only later
	// numbers count.
	s := &k.saving
	before := s.begun.Load()

	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}

	defer func() { <-s.turn }()

	if s.saved > before {
		return nil
	}

	number := s.begun.Add(1)
	if err := k.config.Save(ctx); err != nil {
		return fmt.Errorf("save counters: %w", err)
	}

	s.saved = number
	return nil
}
