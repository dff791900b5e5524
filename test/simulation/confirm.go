package simulation

import (
	"context"
	"errors"
)

var errUnconfirmed = errors.New("simulation: no follower can confirm")

// CanConfirm implements limiter.Backup.
func (p *process) CanConfirm(q int) bool {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()

	if p.phases[q] != held {
		return false
	}

	var buf [3]int
	nodes := p.followers(q, buf[:0])
	for _, node := range nodes {
		if !p.isSynced(q, node) || !w.net.reachable(w.now(), p.index, node) {
			return false
		}
	}

	return len(nodes) > 0 // the model has no disks
}

// Confirm implements limiter.Backup; see [partitions.Keeper.Confirm].
func (p *process) Confirm(ctx context.Context, q int) error {
	w := p.w
	if w.config.Sabotage == LendUnconfirmed {
		return nil
	}

	w.mu.Lock()
	lineage := p.lineages[q].Load()

	if p.phases[q] == held {
		p.pushOne(q, p.table.ReplicatePartition(q, nil))
	}

	var buf [3]int
	marks := map[*progress]uint64{}
	for _, node := range p.followers(q, buf[:0]) {
		if f := p.progress[followerKey{q, node}]; f != nil {
			marks[f] = f.sent
		}
	}
	w.mu.Unlock()

	for {
		w.mu.Lock()
		over, err := p.checkConfirmed(q, lineage, marks)
		acks, changed := p.acks, p.changed
		w.mu.Unlock()

		if over {
			return err
		}

		select {
		case <-acks:
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// checkConfirmed returns over if all followers of q have acknowledged up to the marks, or never will; then err says
// which.
func (p *process) checkConfirmed(q int, lineage uint64, marks map[*progress]uint64) (over bool, err error) {
	w := p.w
	if !p.alive || p.phases[q] != held || p.lineages[q].Load() != lineage {
		return true, errUnconfirmed
	}

	var buf [3]int
	nodes := p.followers(q, buf[:0])
	for _, node := range nodes {
		f := p.progress[followerKey{q, node}]
		switch {
		case !w.net.reachable(w.now(), p.index, node):
			return true, errUnconfirmed
		case f == nil || !f.copyAcked || f.acked < marks[f]:
			return false, nil
		}
	}

	if len(nodes) == 0 {
		return true, errUnconfirmed
	}

	return true, nil
}

// wakeConfirmers wakes every Confirm that waits for an acknowledgement.
func (p *process) wakeConfirmers() {
	close(p.acks)
	p.acks = make(chan struct{})
}

// ConfirmNotes implements limiter.Backup.
func (p *process) ConfirmNotes(ctx context.Context, q int) error { return p.Confirm(ctx, q) }
