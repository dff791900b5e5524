package usage

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// copyInterval is how often a node sends what it has counted to the node that holds the copy.
	copyInterval = time.Second
	// copyTimeout bounds one round of sending, and one exchange of notes.
	copyTimeout = 2 * time.Second
	// holderPatience is how long a node keeps trying to reach the holder before it chooses another.
	holderPatience = 5 * time.Second
	// copyGrace is how long this node's ledgers may be without a whole copy before it warns.
	copyGrace = time.Minute
	// givenUpTime is how long a node that was given up as the holder is chosen again
	// only if all others were given up, too.
	givenUpTime = 30 * time.Second
	// sendBytes is the approximate size of a message with changes, in bytes.
	sendBytes = 1 << 20
	// lastTimeout bounds sendLast.
	lastTimeout = 2 * time.Second
)

var (
	errNoHolder = errors.New("there is no other node")
	errAllDown  = errors.New("no other node is alive")
)

// lock is a mutex that may be held during calls. It is a channel, because in
// tests the virtual clock stops while a goroutine waits for a sync.Mutex: the
// calls would then never end.
type lock chan struct{}

// Lock waits until nobody else has the lock.
func (lk lock) Lock() { lk <- struct{}{} }

// Unlock gives the lock back.
func (lk lock) Unlock() { <-lk }

// copier sends what this node counts to another node, the holder of its copy.
type copier struct {
	// completeAt is a time in Unix nanoseconds. All that was counted before it is
	// at another node, too, unless there was no other node.
	completeAt atomic.Int64
	sending    atomic.Bool // a goroutine is sending closed ledgers
	warned     bool        // used by run only
	// estimated and lost are the numbers of nodes whose counts are estimated or
	// lost, as reviewBills last found.
	estimated, lost atomic.Int64

	mu     lock      // guards the fields below; held during calls
	ended  bool      // the last statement is sent: nothing is counted any more
	holder Member    // zero: none
	since  time.Time // when the holder last answered, or was chosen
	// givenUp has the holders that were given up in the last half minute, and
	// when.
	givenUp    map[ring.NodeID]time.Time
	sent       map[ledgerID]uint64 // the rounds up to which the holder has the live ledgers
	closed     []holding           // the closed ledgers of this data directory, as they were last read
	number     uint64              // of the last statement
	lastStated map[ledgerID]uint64 // the ledgers of the last statement, and their rounds
	handedOver map[ledgerID]uint64 // those that the last HandOver gave away; nil: there was none
}

// copyChanges sends changes to the holder, and notes whether the holder has
// everything.
func (t *Totals) copyChanges() {
	c := &t.copier

	// The time is read first: the copy may lack counts that are made while it is
	// sent.
	began := time.Now()
	c.mu.Lock()
	to, missing, err := t.copyOnce()
	c.mu.Unlock()

	if err == nil && len(missing.closed) > 0 {
		t.sendInBackground(to, missing.closed)
	}

	complete := err == nil && missing.ledgers() == 0
	if complete || errors.Is(err, errNoHolder) || !t.meter.hasOwn() {
		c.completeAt.Store(began.UnixNano())
	}

	log := t.meter.config.Logger
	late := c.age() > copyGrace
	switch {
	case late && !c.warned:
		c.warned = true
		log.Warn("no other node has a copy of what this node counts for bills: if this node is lost, bills will be too low",
			"for", c.age().Round(time.Second), "error", err)
	case complete && c.warned:
		c.warned = false
		log.Info("another node has a copy of what this node counts for bills again", "node", to.Name)
	}
}

// age returns how old the copy is.
func (c *copier) age() time.Duration { return time.Since(time.Unix(0, c.completeAt.Load())) }

// copyOnce chooses a holder and sends it what has changed. The caller must hold
// copier.mu.
func (t *Totals) copyOnce() (to Member, missing lack, err error) {
	c := &t.copier
	if c.ended {
		return c.holder, lack{}, nil
	}

	to, err = t.chooseHolder()
	if err != nil {
		return to, lack{}, err
	}

	ctx, cancel := context.WithTimeout(t.ctx, copyTimeout)
	defer cancel()

	missing, err = t.sendChanges(ctx, to, false)
	if err == nil {
		c.since = time.Now()
	}
	return to, missing, err
}

// sendLast sends the last changes of a process that ends, if the holder was
// chosen or has answered recently. If it succeeds, the copy has all that the
// live ledgers have.
func (t *Totals) sendLast() {
	c := &t.copier
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.ended || c.holder.ID.IsZero() || time.Since(c.since) > holderPatience {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()

	// The first reply may say that the holder lacks live ledgers: it has lost its
	// copy since. Then the second attempt sends all of them.
	missing, err := t.sendChanges(ctx, c.holder, true)
	if err == nil && missing.live > 0 {
		_, _ = t.sendChanges(ctx, c.holder, true) // nothing else can be tried
	}
}

// chooseHolder returns the node to which copies go: the present one, unless it
// is gone or has not answered for a while. The caller must hold copier.mu.
func (t *Totals) chooseHolder() (Member, error) {
	c := &t.copier
	list := t.candidates()
	if len(list) == 0 {
		return Member{}, errNoHolder
	}

	present := slices.IndexFunc(list, func(node Member) bool { return node.ID == c.holder.ID })
	if present >= 0 && list[present].Alive && time.Since(c.since) < holderPatience {
		return list[present], nil
	}

	now := time.Now()
	maps.DeleteFunc(c.givenUp, func(id ring.NodeID, at time.Time) bool { return now.Sub(at) > givenUpTime })
	if present >= 0 {
		c.givenUp[c.holder.ID] = now
	}

	// Take the first that was not given up recently, or else the one that was given
	// up first.
	alive := slices.DeleteFunc(list, func(node Member) bool { return !node.Alive })
	if len(alive) == 0 {
		return Member{}, errAllDown
	}
	next := slices.MinFunc(alive, func(a, b Member) int { return c.givenUp[a.ID].Compare(c.givenUp[b.ID]) })
	c.use(next)

	// The new holder has holderPatience to answer.
	c.since = now
	return next, nil
}

// use makes a node the holder. A new holder gets everything.
func (c *copier) use(node Member) {
	if c.holder.ID != node.ID {
		clear(c.sent)
	}
	c.holder = node
}

// lack is what the holder of a copy lacks, by its own reply.
type lack struct {
	closed []holding // the caller must send these page by page
	live   int       // how many others: the next call of sendChanges sends all of these
}

// ledgers returns how many ledgers the holder lacks.
func (lk lack) ledgers() int { return len(lk.closed) + lk.live }

// sendChanges sends what was counted since the last call, and then a statement.
// It returns what the other node lacks. final means that the process counts
// nothing more. The caller must hold copier.mu.
func (t *Totals) sendChanges(ctx context.Context, to Member, final bool) (missing lack, err error) {
	c := &t.copier
	m := t.meter
	c.use(to)

	// The holder's time is asked for first, so that the rounds that end below
	// include all that was counted before that time.
	hello, err := t.sendCopy(ctx, to, &copyHeader{}, nil)
	if err != nil {
		return lack{}, err
	}

	var sent []step
	var holdings []holding
	for _, l := range m.inMemory() {
		next := step{Ledger: l.id, Node: l.node, Damaged: l.damaged, From: c.sent[l.id], To: l.endRound()}
		if next.To == 0 {
			continue
		}
		holdings = append(holdings, holding{Ledger: l.id, Node: l.node, Damaged: l.damaged, Round: next.To})

		// If an earlier process counted this ledger, the copy may have got further than
		// the file, or may be intact where the file is damaged. So the ledger is
		// treated like a closed one: it is sent page by page, and only if the holder
		// has less of it.
		if !m.isLive(l) {
			continue
		}

		if err := t.sendLive(ctx, to, l, &next); err != nil {
			return lack{}, err
		}
		sent = append(sent, next)
	}
	holdings = t.ownHoldings(holdings)

	// The statement comes last: the blocks before it count only once the holder
	// has it.
	st := t.nextStatement(holdings, hello.Now, final)
	reply, err := t.sendCopy(ctx, to, &copyHeader{Statement: st, Sent: sent}, nil)
	if err != nil {
		return lack{}, err
	}
	return c.recordSent(sent, holdings, reply.Missing), nil
}

// sendLive sends the blocks of a live ledger that have changed in a step.
func (t *Totals) sendLive(ctx context.Context, to Member, l *ledger, next *step) error {
	if next.To <= next.From {
		return nil
	}
	return l.eachChanged(next.From, sendBytes, func(group []block, last bool) error {
		if len(group) == 0 {
			return nil
		}
		_, err := t.sendCopy(ctx, to, &copyHeader{Ledger: l.id}, group)
		return err
	})
}

// nextStatement makes the next statement of this process. asOf is the holder's
// time before the rounds of holdings ended. The caller must hold copier.mu.
func (t *Totals) nextStatement(holdings []holding, asOf int64, final bool) *statement {
	c := &t.copier
	m := t.meter
	c.number++
	st := &statement{
		Source: m.config.Self, Name: m.config.Name, Boot: m.config.Boot, Started: m.started,
		Number: c.number, AsOf: asOf, Final: final,
	}

	for _, h := range holdings {
		if h.Ledger.Source == st.Source {
			st.Ledgers = append(st.Ledgers, version{h.Ledger.Month, h.Ledger.Number, h.Round})
		}
	}
	return st
}

// ownHoldings returns the ledgers that were counted in this data directory:
// those in memory, as given, and the closed ones. If the file can't be read
// now, the closed ones are those that were last read. The caller must hold
// copier.mu.
func (t *Totals) ownHoldings(inMemory []holding) []holding {
	c := &t.copier
	list, err := t.meter.holdings(allMonths)
	if err == nil {
		open := t.meter.inMemory()
		c.closed = slices.DeleteFunc(list, func(h holding) bool {
			return h.Copy || slices.ContainsFunc(open, func(l *ledger) bool { return l.id == h.Ledger })
		})
	}

	all := slices.Clone(inMemory)
	for _, h := range c.closed {
		if !slices.ContainsFunc(inMemory, func(given holding) bool { return given.Ledger == h.Ledger }) {
			all = append(all, h)
		}
	}
	return all
}

// recordSent records what the holder has after the steps in sent, and returns which
// of holdings it lacks. lacking are those that it named.
func (c *copier) recordSent(sent []step, holdings []holding, lacking []version) (missing lack) {
	clear(c.sent)
	for _, s := range sent {
		c.sent[s.Ledger] = s.To
	}

	c.lastStated = make(map[ledgerID]uint64, len(holdings))
	for _, h := range holdings {
		c.lastStated[h.Ledger] = h.Round
	}

	for _, h := range holdings {
		isLacking := slices.ContainsFunc(lacking,
			func(v version) bool { return v.Month == h.Ledger.Month && v.Number == h.Ledger.Number })
		if !isLacking {
			continue
		}

		if _, live := c.sent[h.Ledger]; live {
			delete(c.sent, h.Ledger) // the next call of sendChanges sends all of it
			missing.live++
		} else {
			missing.closed = append(missing.closed, h)
		}
	}
	return missing
}

// sendCopy sends a MethodCopy message.
func (t *Totals) sendCopy(
	ctx context.Context, to Member, header *copyHeader, blocks []block,
) (reply copyReply, err error) {
	text, _ := json.Marshal(header) // names and numbers
	body := appendBlocks(wire.AppendText(nil, text), blocks)
	answer, err := t.ask(ctx, to, MethodCopy, body)
	if err == nil {
		err = json.Unmarshal(answer, &reply)
	}
	return reply, err
}

// appendBlocks appends blocks as storeBlocks reads them.
func appendBlocks(b []byte, blocks []block) []byte {
	for i := range blocks {
		blk := &blocks[i]
		b = append(b, byte(blk.shard))
		b = binary.AppendUvarint(b, uint64(blk.number))
		b = wire.AppendText(b, blk.names)
		b = wire.AppendText(b, blk.counts)
	}
	return b
}

// sendInBackground sends closed ledgers to the holder, unless it is sending
// some already. Sending may take long, and must not delay the copy of what is
// being counted.
func (t *Totals) sendInBackground(to Member, list []holding) {
	if t.copier.sending.Swap(true) {
		return
	}

	started := t.background.Go(func() {
		defer t.copier.sending.Store(false)
		if err := t.sendLedgers(t.ctx, to, list); err != nil {
			t.meter.config.Logger.Debug("can't copy a ledger of usage", "node", to.Name, "error", err)
		}
	})
	if !started {
		t.copier.sending.Store(false)
	}
}
