package usage

import (
	"context"
	"errors"
	"fmt"
	"maps"
)

// ErrNotHandedOver means that no other node has all that was counted here.
var ErrNotHandedOver = errors.New("the usage counted here could not be handed over")

// HandOver closes all ledgers of this node and sends them to another member,
// together with what this node holds for nodes that are gone. Later counts
// begin new ledgers; call HandOver again to hand them over. With final set, the
// caller must count nothing any more. HandOver returns nil if another member
// has everything on disk, even if an earlier call sent it and nobody can be
// reached now, and else an error that wraps ErrNotHandedOver.
func (t *Totals) HandOver(ctx context.Context, final bool) error {
	t.meter.closeAll()
	var errs []error
	for _, to := range t.candidates() {
		err := t.handOverTo(ctx, to, final)
		if err == nil {
			t.exchangeNotesWithAll(ctx)
			return nil
		}

		errs = append(errs, fmt.Errorf("%s: %w", to.Name, err))
		if ctx.Err() != nil {
			break
		}
	}

	// When all nodes stop together, a node that has handed over before may find
	// nobody. Nothing is lost if it has counted nothing since.
	if t.isHandedOver() {
		return nil
	}
	if len(errs) == 0 {
		return fmt.Errorf("%w: there is no other member", ErrNotHandedOver)
	}
	return fmt.Errorf("%w: %w", ErrNotHandedOver, errors.Join(errs...))
}

// Stay says that this node stays a member although it has handed over its
// ledgers: they are merged here again.
func (t *Totals) Stay() {
	c := &t.copier
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handedOver = nil
}

// isHandedOver reports whether the last HandOver that succeeded gave away all
// that was counted here so far.
func (t *Totals) isHandedOver() bool {
	c := &t.copier
	c.mu.Lock()
	defer c.mu.Unlock()

	var inMemory []holding
	for _, l := range t.meter.inMemory() {
		round := l.endRound()
		if round > 0 {
			inMemory = append(inMemory, holding{Ledger: l.id, Round: round})
		}
	}

	for _, h := range t.ownHoldings(inMemory) {
		round, given := c.handedOver[h.Ledger]
		if !given || round < h.Round {
			return false
		}
	}
	return c.handedOver != nil
}

// closeAll closes all ledgers. One that can't be written stays in memory and is
// handed over from there.
func (m *Meter) closeAll() {
	m.writing.Lock()
	defer m.writing.Unlock()
	for _, l := range m.inMemory() {
		if err := m.closeLedger(l); err != nil {
			m.config.Logger.Error("can't write usage to disk; handing it over from memory", "error", err)
		}
	}
}

// handOverTo gives another node all ledgers of this node, and all
// orphaned ledgers here.
// Each reply names the ledgers that the other node lacks. handOverTo sends
// these up to twice, and the third reply must name none.
func (t *Totals) handOverTo(ctx context.Context, to Member, final bool) error {
	t.copier.mu.Lock()
	defer t.copier.mu.Unlock()

	for range 2 {
		missing, err := t.sendChanges(ctx, to, false)
		if err != nil {
			return err
		}
		if err := t.sendLedgers(ctx, to, missing.closed); err != nil {
			return err
		}
	}

	missing, err := t.sendChanges(ctx, to, final)
	if err != nil {
		return err
	}
	if missing.ledgers() > 0 {
		return fmt.Errorf("it lacks %d ledgers", missing.ledgers())
	}
	if err := t.sendOrphans(ctx, to); err != nil {
		return err
	}

	t.copier.handedOver = maps.Clone(t.copier.lastStated)
	t.copier.ended = t.copier.ended || final
	return nil
}

// exchangeNotesWithAll exchanges notes with all nodes that are alive.
func (t *Totals) exchangeNotesWithAll(ctx context.Context) {
	for _, node := range t.candidates() {
		if !node.Alive {
			continue
		}
		if err := t.exchangeNotes(ctx, node); err != nil {
			t.meter.config.Logger.Debug("can't exchange notes about usage", "node", node.Name, "error", err)
		}
	}
}
