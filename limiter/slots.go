package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// A slot is acquired, renewed and released. An acquire is a check that always
// asks the owners. Each owner stores its slots, and answers only once they
// would survive its death; see docs/design/slots.md.

const (
	// MaxSlotTTL is the longest time for which a slot is held unless it is renewed.
	// The shortest is algorithms.MinWindow.
	MaxSlotTTL = algorithms.MaxSlotTTL
	// MaxWho bounds what a slot says of its holder, in bytes.
	MaxWho = notes.MaxWho
	// MaxSlots bounds the slots that one call acquires of each limit.
	MaxSlots = algorithms.MaxSlots

	// outliveTimeout bounds how long an owner waits until a slot would outlive it.
	outliveTimeout = 500 * time.Millisecond
	// rollbackTimeout bounds how long a refused acquire waits until its slots are
	// released. After that, they are released in the background.
	rollbackTimeout = 100 * time.Millisecond
	// defaultSlotTTL is the ttl of a slot to which no limit of slots applied.
	defaultSlotTTL = time.Minute
	// slotDrift divides a slot's ttl. The holder must give the slot up that part
	// of the ttl before the owner does: their clocks may run at different rates.
	slotDrift = 1024
)

// Errors of slots.
var (
	// ErrAcquire means that a check or a count names a limit of slots.
	ErrAcquire = errors.New("the rule limits how many slots are held at once: use POST /v1/acquire, or /v1/reserve (mode peek works here)")
	// ErrNoSlots means that an acquire names only limits of another kind.
	ErrNoSlots = errors.New("the rule has no limit of algorithm: concurrency: use POST /v1/check")
	// ErrSlotTTL means that the caller asks for a longer time than the limit allows.
	ErrSlotTTL = errors.New("ttl_ms")
	// ErrUnknownSlot means that the ID is not a slot's, or that the slot is over:
	// the caller holds it no longer.
	ErrUnknownSlot = errors.New("the slot has ended or was released")
	// ErrTryAgain means that no node may decide about the slot for now. Holders
	// keep what they have.
	ErrTryAgain = errors.New("no node may decide about slots of this subject for the moment; try again")
	// ErrTooManySlots means that the subject's owner has no room for another slot,
	// or no more for one of this rule or subject.
	ErrTooManySlots = errors.New("too many slots of this rule or subject are held at its owner")

	// errUnconfirmed means that the slots were stored, but might not outlive their
	// owner. They are taken back.
	errUnconfirmed = fmt.Errorf("%w", ErrTryAgain)
)

// Slot is what Acquire returns.
type Slot struct {
	ID      string
	Expires time.Duration // how long it is held, counted from when the caller sent its request
	// isRecalled means that an earlier attempt of the request acquired it.
	isRecalled bool
}

// Acquire decides q as Check does, and takes slots of its limits of slots:
// q.Slots of each, for q.SlotTTL or the limit's ttl, whichever is shorter. If q
// is allowed, any node can renew and release them by the returned ID
// ([Limiter.RenewSlot], [Limiter.ReleaseSlot]). If q's RequestID holds slots
// already, Acquire returns these, and takes nothing. After an error the caller
// holds nothing, but repeating q may return slots that were acquired by then.
// The error wraps one of Check's errors, ErrNoSlots, ErrSlotTTL,
// ErrTooManySlots, ErrRequestIDReused or ErrTryAgain.
func (l *Limiter) Acquire(q *Query, a *Answer) (Slot, error) {
	defer a.addTerms(func(t *terms) { t.takesSlots = true })()
	done, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return Slot{}, err
	}
	if err := a.validateSlots(q); err != nil {
		return Slot{}, err
	}

	if q.RequestID == "" || done || !hasSlots(a.scratch.ops) {
		return l.acquire(q, a, a.newAcquisition(q), done)
	}
	return l.acquireOnce(q, a)
}

// acquire decides q, for which a is prepared, and takes what hd says. done means
// that prepare has already decided it.
func (l *Limiter) acquire(q *Query, a *Answer, hd *acquisition, done bool) (slot Slot, err error) {
	// No lease has slots, and outlivesHere needs the subjects of a cluster
	// check.
	defer a.addTerms(func(t *terms) { t.bypassesLeases = true })()
	if !done {
		err = l.resolveAcquisition(q, a, hd, func() error { return l.resolve(q, a) })
	}
	if err != nil {
		return Slot{}, err
	}

	// The earlier attempt was counted, and is on the bill.
	if !hd.isRecalled {
		l.recordMetrics(q, a)
	}
	if !a.Allowed {
		return Slot{}, nil
	}

	sl := hd.slot(l, a)
	if sl.alone {
		l.tellSlot(sl)
	}
	return Slot{ID: sl.pack(l), Expires: sl.expires(), isRecalled: hd.isRecalled}, nil
}

// validateSlots returns an error if q, for which a is prepared, can't acquire slots.
func (a *Answer) validateSlots(q *Query) error {
	longest := time.Duration(0)
	hasSlots := false
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind == algorithms.Concurrency {
			longest = max(longest, op.Limit.Window)
			hasSlots = true
		}
	}

	named := q.ByKey || len(q.Subjects) > 0
	switch {
	case !hasSlots && named && len(a.scratch.ops) > 0 && !a.scratch.matchDecides:
		return ErrNoSlots
	case hasSlots && q.SlotTTL > longest:
		return fmt.Errorf("%w is %d; the limit's ttl is %d ms", ErrSlotTTL,
			q.SlotTTL.Milliseconds(), longest.Milliseconds())
	}

	return nil
}

// acquisition says which slots a check in progress acquires.
type acquisition struct {
	id     uint64        // derived from the request's id, if it has one
	nonce  uint64        // of this attempt
	ttl    time.Duration // 0: as long as the limits say
	who    string
	groups map[uint64]uint32 // by Key.Subject
	// sources has the Source of each limit of slots.
	sources map[counters.Key]uint64
	// taken are the slots that owners may have stored: they are released unless the check is admitted.
	taken    []slotPart
	alone    bool // some were granted here, by on_partition: allow
	isAtHome bool // the owner of the first slots decides; see acquireHere
	// isRecalled means that an earlier attempt holds them. Its caller may know of
	// them.
	isRecalled bool
}

// newAcquisition returns what a prepared q would acquire.
func (a *Answer) newAcquisition(q *Query) *acquisition {
	hd := &acquisition{id: rand.Uint64(), nonce: rand.Uint64(), ttl: q.SlotTTL, who: q.Who,
		groups: map[uint64]uint32{}, sources: map[counters.Key]uint64{}}
	for i := range a.scratch.match.Hits {
		hit := &a.scratch.match.Hits[i]
		hd.groups[hit.Subject.Hi] = groupOf(q, i, hit)
		for _, limit := range hit.Limits {
			if limit.Kind == algorithms.Concurrency {
				hd.sources[counterKey(hit, limit)] = limit.Source
			}
		}
	}
	return hd
}

// holder returns the acquisition as the table of counters takes it; nil if there is none.
func (hd *acquisition) holder() *counters.Holder {
	if hd == nil {
		return nil
	}
	return &counters.Holder{ID: hd.id, Nonce: hd.nonce, TTL: hd.ttl, Who: hd.who,
		Group: func(subject uint64) uint32 { return hd.groups[subject] }}
}

// partOf returns the slots that op acquires.
func (hd *acquisition) partOf(op *counters.Op) slotPart {
	return slotPart{
		SlotPart: counters.SlotPart{
			Key: op.Key, Units: op.Cost, TTL: op.Limit.Window, Group: hd.groups[op.Key.Subject],
		},
		holdFor: min(cmp.Or(hd.ttl, op.Limit.Window), op.Limit.Window), shadow: op.Shadow, source: hd.sources[op.Key],
	}
}

// markStored records that an owner may have stored the slots of ops.
func (hd *acquisition) markStored(ops []counters.Op) {
	if hd == nil {
		return
	}
	for i := range ops {
		op := &ops[i]
		isNoted := func(part slotPart) bool { return part.Key == op.Key }
		if op.Limit.Kind == algorithms.Concurrency && op.Mode == counters.CheckMode &&
			!slices.ContainsFunc(hd.taken, isNoted) {
			hd.taken = append(hd.taken, hd.partOf(op))
		}
	}
}

// mayHold reports whether the owner of subject may have stored slots.
func (hd *acquisition) mayHold(subject uint64) bool {
	return hd != nil && slices.ContainsFunc(hd.taken, func(part slotPart) bool { return part.Key.Subject == subject })
}

// forget records that the owner of subject has certainly stored nothing.
func (hd *acquisition) forget(subject uint64) {
	if hd != nil {
		hd.taken = slices.DeleteFunc(hd.taken, func(part slotPart) bool { return part.Key.Subject == subject })
	}
}

// markAlone records that this node, which is cut off, decides about slots.
func (hd *acquisition) markAlone() {
	if hd != nil {
		hd.alone = true
	}
}

// slot returns the slot that a caller holds once a is allowed.
func (hd *acquisition) slot(l *Limiter, a *Answer) *slot {
	sl := &slot{id: hd.id, nonce: hd.nonce, alone: hd.alone, left: cmp.Or(hd.ttl, defaultSlotTTL)}
	if hd.alone {
		sl.granter = l.membership.Self
		sl.made = a.Now.Wall
	}

	first := true
	for i := range a.Limits {
		op := &a.scratch.ops[i]
		if op.Limit.Kind != algorithms.Concurrency || op.Cost == 0 {
			continue
		}

		part := hd.partOf(op)
		sl.parts = append(sl.parts, part)
		left := cmp.Or(op.SlotLeft(), part.holdFor)
		if first || left < sl.left {
			sl.left = left
			first = false
		}
	}

	return sl
}

// resolveAcquisition decides q, for which a is prepared, with resolve and with the
// loans that q awaits. hd says which slots q acquires; nil if it acquires none.
func (l *Limiter) resolveAcquisition(q *Query, a *Answer, hd *acquisition, resolve func() error) error {
	began := a.Now.Steady
	withLoan := func() error { return l.resolveWithLoan(began, q, a, resolve) }
	if hd == nil {
		return withLoan()
	}
	return l.hold(q, a, hd, withLoan)
}

// hold runs attempt, which decides q, and makes sure that the slots that q
// acquires would outlive their owners. If q is not admitted in the end, hold
// releases them. If a partition moves meanwhile, hold takes everything back and
// decides q again at the next owner, for as long as a check would wait for a
// pending partition.
func (l *Limiter) hold(q *Query, a *Answer, hd *acquisition, attempt func() error) error {
	began := time.Now()
	if a.scratch.deadline.IsZero() {
		defer a.addTerms(func(t *terms) { t.deadline = began.Add(checkTimeout - replySlack) })()
	}

	for pause := firstHoldPause; ; pause *= 4 {
		err := l.tryHold(q, a, hd, attempt)

		// An acquire that is decided at home is not tried again here: acquireHere
		// grants the slot of its own attempt, by its nonce. If the slots have moved, it
		// leaves the acquire to the next owner.
		if !errors.Is(err, errUnconfirmed) || hd.isAtHome || time.Since(began)+pause > pendingTimeout {
			return err
		}

		time.Sleep(pause)
		if done, err := l.prepare(l.clock.Now(), q, a); err != nil || done {
			return err
		}
		*hd = *a.newAcquisition(q) // a late release of this attempt's slots must not release the next one's
	}
}

// firstHoldPause is the pause before hold decides anew. The later ones are longer.
const firstHoldPause = time.Millisecond

// tryHold makes one attempt of hold.
func (l *Limiter) tryHold(q *Query, a *Answer, hd *acquisition, attempt func() error) error {
	defer a.addTerms(func(t *terms) { t.holding = hd })()
	err := attempt()
	switch {
	case err != nil:
	case a.Allowed && !l.outlivesHere(a):
		// The costs of the other limits go back here. The slots are released below.
		a.scratch.cluster.rollBack()
		err = errUnconfirmed
	case !a.Allowed && a.lacksSlotRoom():
		err = ErrTooManySlots
	}

	rest := hd.taken
	if hd.isRecalled && (err != nil || !a.Allowed) {
		// The caller of the earlier attempt may hold them.
		rest = nil
	}
	// Newer rules may have fewer limits than those by which the first round took
	// slots. Release the slots of the other limits.
	if err == nil && a.Allowed {
		isHeld := func(part slotPart) bool {
			return slices.ContainsFunc(a.scratch.ops, func(op counters.Op) bool { return op.Key == part.Key })
		}
		rest = slices.DeleteFunc(slices.Clone(rest), isHeld)
	}
	if len(rest) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		l.releaseParts(ctx, slotRequest{verb: slotRelease, id: hd.id, nonce: hd.nonce}, rest)
	}
	return err
}

// lacksSlotRoom reports whether an owner refused a for lack of room for its slots.
func (a *Answer) lacksSlotRoom() bool {
	return slices.ContainsFunc(a.Limits, func(la LimitAnswer) bool {
		return la.Full && la.Limit.Kind == algorithms.Concurrency && !la.Rule.Shadow
	})
}

// outlivesHere reports whether the slots that this node has stored for a, as
// their owner, would outlive it.
func (l *Limiter) outlivesHere(a *Answer) bool {
	if l.membership == nil {
		return true
	}
	var stored []storedAt
	c := a.scratch.cluster
	for i := range c.subjects {
		s := &c.subjects[i]
		if s.undo == undoHere && hasSlots(c.ops(s)) {
			stored = append(stored, storedAt{ring.PartitionOf(s.subject), s.life.Lineage})
		}
	}
	return l.outlive(stored)
}

// storedAt is a partition in which slots were stored, and the lineage that it had before.
type storedAt struct {
	partition int
	lineage   uint64
}

// outlive waits until what was stored in the partitions of list would outlive
// this node. It returns false if the partitions did not confirm that in time,
// or if this node does not own them any more.
func (l *Limiter) outlive(list []storedAt) bool {
	m := l.membership
	if m == nil || len(list) == 0 {
		return true
	}

	ctx, cancel := context.WithTimeout(m.ctx, outliveTimeout)
	defer cancel()

	// The confirmations run at the same time: together they may take no longer
	// than one.
	results := make(chan bool, len(list))
	for _, at := range list {
		confirm := func() { results <- m.Backup == nil || m.Backup.ConfirmNotes(ctx, at.partition) == nil }
		if len(list) == 1 {
			confirm()
		} else {
			go confirm()
		}
	}

	outlives := true
	for range list {
		outlives = <-results && outlives
	}

	// A partition that has moved or begun anew meanwhile may lack the slots.
	for _, at := range list {
		outlives = outlives && l.table.IsOpen(at.partition) && l.table.Lineage(at.partition) == at.lineage
	}

	return outlives && m.Authority()
}

// hasSlots reports whether one of ops is of slots.
func hasSlots(ops []counters.Op) bool {
	return slices.ContainsFunc(ops, func(op counters.Op) bool { return op.Limit.Kind == algorithms.Concurrency })
}

// RenewSlot makes a slot last for ttl from now on, or for as long as it was
// acquired for if ttl is zero, but no longer than its limit says. The error
// wraps ErrUnknownSlot if the slot is over, or ErrTryAgain if not all owners
// have confirmed the renewal.
func (l *Limiter) RenewSlot(id string, ttl time.Duration) (expires time.Duration, err error) {
	sl, err := l.parseSlot(id)
	if err != nil {
		return 0, err
	}

	l.prolong(sl, ttl)
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()

	back := sl.alone && l.clock.Now().Wall < sl.made+int64(maxAloneSlot)

	_, errs := l.askSlots(ctx, slotRequest{verb: slotRenew, id: sl.id, nonce: sl.nonce, mayRestore: back}, sl.parts)
	var gone, later bool
	for i, err := range errs {
		switch {
		case err == nil || sl.parts[i].shadow: // a shadow limit refuses nothing, whatever it counts
		case errors.Is(err, ErrUnknownSlot):
			gone = true
		default:
			later = true
		}
	}

	switch {
	case gone: // the parts that are left are of no use to the holder
		l.releaseParts(ctx, slotRequest{verb: slotRelease, id: sl.id, nonce: sl.nonce}, sl.parts)
		return 0, ErrUnknownSlot
	case later:
		return 0, ErrTryAgain
	}

	return sl.expires(), nil
}

// prolong makes sl last for ttl from now on, or for as long as it was acquired
// for if ttl is zero, but no longer than its limits allow now.
func (l *Limiter) prolong(sl *slot, ttl time.Duration) {
	sl.left = cmp.Or(ttl, defaultSlotTTL)
	for i := range sl.parts {
		part := &sl.parts[i]
		longest := l.longestTTL(part)
		part.holdFor = min(cmp.Or(ttl, part.holdFor), longest)
		if i == 0 || part.holdFor < sl.left {
			sl.left = part.holdFor
		}
	}
}

// maxAloneSlot is how long renewals may put a slot that a cut-off node has
// granted back above the limit. After that time, the owners know of the slot.
const maxAloneSlot = MaxSlotTTL

// longestTTL returns the longest ttl that the rules in force allow a slot: that
// of its limit or, if there is no longer such a limit, the longest of its rule.
func (l *Limiter) longestTTL(part *slotPart) time.Duration {
	active := l.inForce.Load()
	if active == nil || part.Key.IsInline() {
		return part.TTL
	}

	if ttl, found := active.set.SlotTTL(part.source); found {
		return ttl
	}
	if ttl, found := active.slotTTL(part.Group); found {
		return ttl
	}
	return part.TTL
}

// ReleaseSlot releases a slot, and reports whether it was held. A second call
// releases nothing. The error wraps ErrUnknownSlot if id is not a slot's, or
// ErrTryAgain. The slot is then released as soon as its owner can be reached,
// unless this node does not know the cluster's secret yet and can't read id.
func (l *Limiter) ReleaseSlot(id string) (held bool, err error) {
	sl, err := l.parseSlot(id)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	held, done := l.releaseParts(ctx, slotRequest{verb: slotRelease, id: sl.id, nonce: sl.nonce}, sl.parts)
	if !done {
		return false, ErrTryAgain
	}
	return held, nil
}

// ReleaseUnanswered releases a slot whose caller did not get the answer. If a
// repetition of the request was answered with the same slot, its caller holds
// it, and it stays. If the slot can't be released now, it is released as soon
// as its owners can be reached.
func (l *Limiter) ReleaseUnanswered(s Slot) {
	sl, err := l.parseSlot(s.ID)
	if err != nil || s.isRecalled || len(sl.parts) == 0 { // without parts, no limit of slots applied
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	req := slotRequest{verb: slotRelease, id: sl.id, nonce: sl.nonce}
	if sl.alone { // no repetition was answered with it
		l.releaseParts(ctx, req, sl.parts)
		return
	}

	// The owner of the first slots knows whether a repetition was answered with
	// the slot. If so, no part of it may be released.
	first := sl.first()
	req.verb = slotReleaseUnanswered
	req.list = sl.parts[first : first+1]
	req.rest = slices.Delete(slices.Clone(sl.parts), first, first+1)
	if !req.try(ctx, l, 0) {
		l.keepSlot(req)
	}
}

// first returns the index of the part whose owner has decided the acquire, if it
// had a request id; see Answer.firstSlots.
func (sl *slot) first() int {
	first := slices.IndexFunc(sl.parts, func(part slotPart) bool { return !part.shadow })
	return max(0, first)
}

// slotTTL returns the longest ttl that a rule, identified by its group, has for
// slots. found is false if it has none.
func (active *activeRules) slotTTL(group uint32) (ttl time.Duration, found bool) {
	rule := active.slotRules()[group]
	if rule == nil {
		return 0, false
	}
	return rule.longest, true
}

// slotRule is a rule with limits of slots.
type slotRule struct {
	name    string
	longest time.Duration // the longest ttl
	stats   *ruleStats
}

// slotIndex finds rules with limits of slots. It is made when it is needed.
type slotIndex struct {
	once    sync.Once
	byGroup map[uint32]*slotRule
}

// slotRules returns the rules with limits of slots, by their group.
func (active *activeRules) slotRules() map[uint32]*slotRule {
	active.slots.once.Do(func() {
		active.slots.byGroup = map[uint32]*slotRule{}
		for name, longest := range active.set.SlotTTLs() {
			if rule := active.set.Rule(name); rule != nil {
				active.slots.byGroup[groupOfRule(name, false)] = &slotRule{name, longest, active.stats[rule.Index]}
			}
		}
	})
	return active.slots.byGroup
}

// slotsNeedAcquire returns an error if h has a limit of slots, but the call is
// neither an acquire, nor a reservation, nor a peek.
func (a *Answer) slotsNeedAcquire(h *rules.Hit, mode counters.Mode) error {
	if a.scratch.takesSlots || mode == counters.PeekMode || !rules.HasSlots(h.Limits) {
		return nil
	}
	return fmt.Errorf("rule %q: %w", h.Rule.Name, ErrAcquire)
}

// SlotOf returns the slot that was acquired with a reservation just made, or
// renewed with one just repeated. It is held as long as its limit says, and
// settling the reservation releases it. found is false if the reservation has
// none.
func (l *Limiter) SlotOf(reservation string) (sl Slot, found bool) {
	key, known := l.reservations.signingKey("reservation")
	rv, err := parseReservation(reservation, key)
	if !known || err != nil || rv.slot == nil {
		return Slot{}, false
	}
	l.prolong(rv.slot, 0)
	return Slot{ID: rv.slot.pack(l), Expires: rv.slot.expires()}, true
}

// renewSlotOf renews the slot of a reservation that is repeated: the caller
// counts the slot's time from the repetition. The error is as for RenewSlot.
func (l *Limiter) renewSlotOf(reservation string) error {
	sl, some := l.SlotOf(reservation)
	if !some {
		return nil
	}
	_, err := l.RenewSlot(sl.ID, 0)
	return err
}

// holdersOf lists the slots that are held of op's limit, of which this node has the notes.
func (l *Limiter) holdersOf(op *counters.Op, now algorithms.Instant) (held heldSlots) {
	if op.Limit.Kind != algorithms.Concurrency {
		return held
	}
	list, all := l.table.Slots(now, op.Key, MaxHolders)
	held.all = all
	for i := range list {
		info := &list[i]
		held.list = append(held.list, Holder{
			ID: info.ID, Slots: info.Units, Age: time.Duration(now.Steady - info.Acquired),
			Expires: time.Duration(info.End - now.Steady), Who: info.Who,
		})
	}
	return held
}

// releaseByShortID releases the slot of u's subject that has a short ID,
// whatever its nonce. The next renewal of the slot finds that it is over. The
// error wraps ErrUnknownSlot if the slot is not held, or ErrNoOwner.
func (l *Limiter) releaseByShortID(u *Usage, short string) error {
	id, err := strconv.ParseUint(short, 16, 64)
	if err != nil || len(short) != len(ShortSlotID(0)) {
		return fmt.Errorf("%w: its id has 16 hexadecimal digits", ErrUnknownSlot)
	}

	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()

	h := rules.Hit{Rule: u.Rule, Subject: u.Hash}

	held := false
	for i := range u.Limits {
		limit := u.Limits[i].Limit
		if limit.Kind != algorithms.Concurrency || limit.Unlimited {
			continue
		}

		part := slotPart{SlotPart: counters.SlotPart{Key: counterKey(&h, limit), Units: 1,
			TTL: limit.Limit.Window}, holdFor: limit.Limit.Window}
		result, err := l.askSlot(ctx, &slotRequest{verb: slotReleaseAny, id: id, list: []slotPart{part}})
		if err != nil {
			return fmt.Errorf("release a slot of %q: %w", u.Rule.Name, err)
		}

		held = held || result.units > 0
	}

	if !held {
		return ErrUnknownSlot
	}

	return nil
}
