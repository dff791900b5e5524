package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// Usage reports what one subject has used.
type Usage struct {
	Rule      *rules.Rule
	Namespace string   // of an inline subject; empty for a rule's
	Key       []string // normalised, as counted
	Limits    []LimitUsage
	Hash      rules.Hash     // of rule and subject
	Unlimited []*rules.Limit // those of its limits that say that there is no limit
	// Unknown is how many further counters the subject has whose limits this node
	// does not know; see Limiter.Usage.
	Unknown int
	// Blocked is how much longer the rule blocks the subject; zero if it does not.
	// Nothing remains of its limits until then.
	Blocked time.Duration
	// BlockedUntil is when that ends, in Unix ms, rounded up; zero if the rule
	// does not block the subject, and [entries.Forever] if the block has no end.
	BlockedUntil int64
	At           algorithms.Instant // when the usage was read

	// Shares holds each region's share of the first limit of a global rule, by the
	// version in force. It is nil for other rules, or if the regions were not
	// asked.
	Shares map[string]int64
	// Regions lists all regions that divide the limits, sorted by name.
	Regions []RegionUsage

	Adjusted bool // the limits say what was applied

	blocks     []*rules.Limit // of the rule
	limitName  string         // Query.LimitName
	billedOnly []UnitCost     // what an adjustment only bills: in units without limit
}

// LimitUsage reports what a subject has used of one limit. Its Decision is that
// of a peek with a cost of 0, except that Used leaves out what is leased. Used
// is above Share while the subject is in debt. Remaining is Share − Used −
// Leased, but never negative, and 0 while the subject is blocked or must queue.
type LimitUsage struct {
	Limit *rules.Limit
	algorithms.Decision
	// Share is what there is to use where the counter is: in this region with
	// loans, or at this node for a local rule.
	Share      int64
	Leased     int64 // debited for other nodes, which have not spent it
	Lent       int64 // to other regions
	Borrowed   int64 // from other regions
	Applied    int64 // by how much an adjustment raised usage; a reward takes off no more than there was
	Estimated  bool  // a node did not say what it has left of its leases, which counts as used
	isAdjusted bool  // the adjustment has a cost in the limit's unit

	// Holders are the slots that are held of a limit of slots: at most MaxHolders,
	// those that end soonest first. NumHolders is how many slots are held in all.
	// Only Usage and GET /v1/usage list them.
	Holders    []Holder
	NumHolders int
}

// MaxHolders bounds the slots of a limit that Usage lists.
const MaxHolders = 100

// Holder is a slot that is held.
type Holder struct {
	ID      uint64        // see ShortSlotID
	Slots   int64         // how many of the limit's slots it takes
	Age     time.Duration // since it was acquired
	Expires time.Duration // until it ends, unless it is renewed
	Who     string        // at most MaxWho bytes
}

func (h *Holder) code(c *wire.Coder) {
	wire.Fixed(c, &h.ID)
	wire.Number(c, &h.Slots, algorithms.MaxAmount)
	wire.Number(c, &h.Age, math.MaxInt64)
	wire.Number(c, &h.Expires, math.MaxInt64)
	c.Text(&h.Who, MaxWho)
}

// Locate returns a subject and its limits, without their usage. q names one
// subject: by its rule and key, or as the only one of q.Subjects, which need
// not come with limits. The error wraps ErrUnknownRule, ErrKey, ErrInline or
// ErrNamespace.
func (l *Limiter) Locate(q *Query) (*Usage, error) {
	var match rules.Match
	active := l.active.Load()
	if len(q.Subjects) > 0 {
		if subj := &q.Subjects[0]; subj.Node != nil {
			return &Usage{Rule: subj.Node.Rule, Key: subj.Node.Key(subj.Entries),
				Hash: subj.Node.Subject(subj.Entries), Limits: []LimitUsage{{Limit: subj.Node.Limit()}}}, nil
		}
		return locateInline(active.set, &q.Subjects[0].InlineSubject)
	}

	rule, err := l.findRule(active, q.Rule)
	if err != nil {
		return nil, err
	}
	if err := active.set.MatchKey(rule, q.Key, &match); err != nil {
		return nil, err
	}

	if active.hasDividedLimits { // without shares the clock may be nil
		active.set.ApplyShares(&match, l.clock.Now().Wall)
	}

	active.lowerLimits(&match)
	u := &Usage{Rule: rule, Key: rule.NormalKey(q.Key)}
	for i := range match.Unlimited {
		u.Hash = match.Unlimited[i].Subject
		u.Unlimited = match.Unlimited[i].Limits
	}

	for i := range match.Hits {
		u.Hash = match.Hits[i].Subject
		u.blocks = match.Hits[i].Rule.Blocks
		for _, limit := range match.Hits[i].Limits {
			u.Limits = append(u.Limits, LimitUsage{Limit: limit})
		}
	}

	return u, nil
}

// locateInline is Locate for an inline subject.
func locateInline(set *rules.Set, subj *rules.InlineSubject) (*Usage, error) {
	u := &Usage{Rule: &rules.Rule{Name: rules.InlineName, Inline: true},
		Namespace: cmp.Or(subj.Namespace, rules.InlineName), Key: subj.Key}
	if len(subj.Limits) == 0 {
		var err error
		u.Hash, err = set.LocateInline(subj)
		return u, err
	}

	var match rules.Match
	if err := set.MatchInline(subj, true, &match); err != nil {
		return nil, err
	}

	h := &match.Hits[0]
	u.Rule = h.Rule
	u.Hash = h.Subject

	for _, limit := range slices.SortedFunc(slices.Values(h.Limits),
		func(a, b *rules.Limit) int { return cmp.Compare(a.CallIndex, b.CallIndex) }) {
		u.Limits = append(u.Limits, LimitUsage{Limit: limit})
	}

	return u, nil
}

// coversAllCounters reports whether u stands for all counters of an inline
// subject that came without limits.
func (u *Usage) coversAllCounters() bool { return u.Namespace != "" && len(u.Limits) == 0 }

// Usage asks the owner what a subject has used of each of its limits, and
// whether the subject is blocked. For a local rule, it reports what this node
// has counted. For limits that regions divide, it reports the usage of this
// region's share, and asks the other regions for theirs, for up to half a
// second.
//
// For an inline subject without limits, Usage reports the counters whose limits
// this node keeps. It counts the others in Unknown, because a counter does not
// contain its limit. The error wraps ErrNoOwner or one of Locate's.
func (l *Limiter) Usage(q *Query) (*Usage, error) {
	u, err := l.usageInRegion(q)
	if err == nil {
		l.askRegions(u)
	}
	return u, err
}

// usageInRegion is Usage without the other regions.
func (l *Limiter) usageInRegion(q *Query) (*Usage, error) {
	u, err := l.Locate(q)
	if err != nil {
		return nil, err
	}
	if !u.coversAllCounters() {
		return u, l.applyChange(newChange(verbUsage, u, nil), u)
	}
	return u, l.usageOfAll(u)
}

// usageOfAll fills in u, an inline subject, by the limits that this node keeps.
func (l *Limiter) usageOfAll(u *Usage) error {
	list := &change{verb: verbList, inlineSubject: u.Hash.Hi}
	if err := list.apply(context.Background(), l); err != nil {
		return fmt.Errorf("usage of %q: %w", u.Rule.Name, err)
	}

	known := make(map[uint64]*rules.Limit, len(list.counters)) // by Key.Counter
	for _, counter := range list.counters {
		known[counter] = nil
	}

	h := rules.Hit{Rule: u.Rule, Subject: u.Hash}
	for limit := range l.Rules().InternedLimits() {
		counter := counterKey(&h, limit).Counter
		have, found := known[counter]
		if found && (have == nil || limit.Capacity() > have.Capacity()) {
			known[counter] = limit
		}
	}

	for _, counter := range list.counters {
		if known[counter] == nil {
			u.Unknown++
			continue
		}
		u.Limits = append(u.Limits, LimitUsage{Limit: known[counter]})
	}

	for chunk := range slices.Chunk(u.Limits, maxSubjectOps) {
		part := &Usage{Rule: u.Rule, Hash: u.Hash, Limits: chunk}
		if err := l.applyChange(newChange(verbUsage, part, nil), part); err != nil {
			return err
		}
	}

	return nil
}

// Errors of changes.
var (
	// ErrUnknownLimit means that the subject has no limit with that name.
	ErrUnknownLimit = errors.New("unknown limit")
	// ErrNotBilled means that the rule is in no bill.
	ErrNotBilled = errors.New("not billed")
)

// Applied returns what an adjustment applied in each unit that has a cost. If
// several limits have the unit, it returns the most that was applied to one.
func (u *Usage) Applied() (list []UnitCost) {
	for i := range u.Limits {
		lu := &u.Limits[i]
		at := slices.IndexFunc(list, func(cost UnitCost) bool { return cost.Unit == lu.Limit.Unit })
		switch {
		case !lu.isAdjusted:
		case at < 0:
			list = append(list, UnitCost{Unit: lu.Limit.Unit, Cost: lu.Applied})
		default:
			list[at].Cost = furtherFromZero(list[at].Cost, lu.Applied)
		}
	}
	return append(list, u.billedOnly...)
}

// selectLimit removes all limits from u except the one that q names. If q names
// none, all stay. The error wraps ErrUnknownLimit.
func (u *Usage) selectLimit(q *Query) error {
	u.limitName = q.LimitName
	if q.LimitName == "" {
		return nil
	}

	names := make([]string, len(u.Limits))
	for i := range u.Limits {
		names[i] = u.Limits[i].Limit.Name
	}

	u.Limits = slices.DeleteFunc(u.Limits, func(lu LimitUsage) bool { return lu.Limit.Name != q.LimitName })
	if len(u.Limits) == 0 {
		return fmt.Errorf("%w %q: limit_name must be one of %q", ErrUnknownLimit, q.LimitName, names)
	}

	return nil
}
