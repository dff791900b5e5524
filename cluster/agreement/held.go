package agreement

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/rules"
)

// MaxClockSpread is how far the latest clock of any region may be ahead of the
// earliest one when a version is recorded. With a larger difference, nobody
// knows in which windows the older versions still count.
const MaxClockSpread = time.Minute

// windowSlack is how much longer than the longest window an old version is kept,
// in ms: MaxClockSpread, plus a minute for recordMargin (package cluster), which
// records a time ahead of every clock.
const windowSlack = int64((MaxClockSpread + time.Minute) / time.Millisecond)

// errTooManyHeld means that no further version can be held.
var errTooManyHeld = errors.New("too many versions of global limits are in use at once: wait until all regions have followed and the windows have ended, or remove a region that is gone")

// holdVersion makes h's version in force the last one that r holds. r must not
// be shared yet.
func (r *Regions) holdVersion(h *rules.History) error {
	_, v := h.Current()
	fresh := Held{Version: v.Number, Regions: r.Committed, Set: h.Set()}
	held := slices.Clone(r.Held)
	if !needsShares(append(held, fresh)) {
		// 0 would mean that the version is not recorded.
		fresh.RecordedAt = min(max(1, v.When.UnixMilli()), rules.MaxRecordedAt)
		r.Held = []Held{fresh}
		return nil
	}

	if !needsShares(held) {
		unrecordAll(held)
	}

	last := r.inForce()
	if last != nil && last.RecordedAt == 0 && !last.Candidate && !last.Doubtful &&
		last.sameShares(&fresh) {
		held = held[:len(held)-1] // fresh replaces the last one: both give regions the same shares
	}

	// Nothing is dropped here, because the time of a write comes from one node's
	// clock, which may be wrong by days.
	r.Held = append(held, fresh)
	return checkRoom(r.Held)
}

// unrecordAll marks versions as not recorded that counted as recorded without
// waiting for any region. Other regions may lag behind.
func unrecordAll(held []Held) {
	for i := range held {
		held[i].RecordedAt = 0
	}
}

// checkRoom returns an error if held exceeds its bounds.
func checkRoom(held []Held) error {
	size := 0
	for _, h := range held {
		size += h.Set.Document.TextSize()
	}

	n := len(held)
	if n > MaxHeld || n > 4 && size > MaxHeldBytes {
		return errTooManyHeld
	}
	return nil
}

// pruneHeld returns held without the recorded versions under which no current
// window can have begun. now is in Unix ms, and ahead of any region's clock by
// at most what windowSlack allows for.
func pruneHeld(held []Held, now int64) []Held {
	longest := time.Duration(0)
	for i := range held {
		longest = max(longest, held[i].Set.MaxGlobalSpan())
	}
	for len(held) > 1 && held[1].RecordedAt > 0 && held[1].RecordedAt+longest.Milliseconds()+windowSlack < now {
		held = held[1:]
	}
	return held
}

// errNothingToPrune means that every held version still counts.
var errNothingToPrune = errors.New("every held version of the rules still has open windows")

// prune returns r without the versions that no longer count at now, in Unix ms.
// All held versions must be recorded. Without prune, old versions would slow
// down every check until the rules change again.
func (r *Regions) prune(now int64) (*Regions, error) {
	kept := pruneHeld(r.Held, now)
	if len(kept) == len(r.Held) {
		return nil, errNothingToPrune
	}
	changed := r.withNextRevision()
	changed.Held = slices.Clone(kept)
	return changed, nil
}

// needsShares reports whether there are global limits, and several regions that share them.
func needsShares(held []Held) bool {
	hasLimits := false
	var names []string
	for _, h := range held {
		hasLimits = hasLimits || h.Set.MaxGlobalSpan() > 0
		names = append(names, h.Regions...)
	}

	slices.Sort(names)
	return hasLimits && len(slices.Compact(names)) > 1
}

// sameShares reports whether both versions give each region the same share of every limit.
func (h *Held) sameShares(other *Held) bool {
	return slices.Equal(h.Regions, other.Regions) && h.Set.DividesAs(other.Set)
}

func (e Mark) apply(next *State) Result {
	changed, err := next.Regions.withMark(e)
	if err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}
	next.Regions = changed
	return Result{}
}

// MarkRejection returns why e would be rejected now, or nil.
func (r *Regions) MarkRejection(e Mark) error {
	_, err := r.withMark(e)
	return err
}

// withMark returns r with e applied.
func (r *Regions) withMark(e Mark) (*Regions, error) {
	switch {
	case r.Primary == "" || r.inForce() == nil:
		return nil, errors.New("there is no primary region yet, or there are no rules")
	case e.At < 0 || e.At > rules.MaxRecordedAt:
		return nil, fmt.Errorf("%d is not a valid time", e.At)
	case e.At == 0:
		return r.withCandidate(e.Version)
	}
	return r.withRecord(e)
}

// candidateIndex returns the index of the candidate in Held, or -1 if there is none.
func (r *Regions) candidateIndex() int {
	return slices.IndexFunc(r.Held, func(h Held) bool { return h.Candidate })
}

// withCandidate returns r with version, the one in force, as the candidate.
func (r *Regions) withCandidate(version int64) (*Regions, error) {
	i := r.candidateIndex()
	if i >= 0 {
		return nil, fmt.Errorf("version %d of the rules is the candidate", r.Held[i].Version)
	}

	last := r.inForce()
	if version != last.Version || last.RecordedAt != 0 {
		return nil, fmt.Errorf("version %d of the rules is not in force, or already recorded", version)
	}

	changed := r.withNextRevision()
	changed.Held = slices.Clone(r.Held)
	changed.inForce().Candidate = true
	return changed, nil
}

// withRecord returns r with the candidate recorded as e says. If the version in
// force is recorded already, there is no candidate, and withRecord returns r
// without the old versions that no longer count.
func (r *Regions) withRecord(e Mark) (*Regions, error) {
	i := r.candidateIndex()
	last := r.inForce()
	if i < 0 && e.Version == last.Version && last.RecordedAt != 0 {
		return r.prune(e.At)
	}
	if i < 0 || r.Held[i].Version != e.Version {
		return nil, fmt.Errorf("version %d of the rules is not the candidate", e.Version)
	}

	changed := r.withNextRevision()
	changed.Held = slices.Clone(r.Held)
	changed.recordCandidate(i, e.At)
	return changed, nil
}

// recordCandidate marks the candidate, Held[i], as recorded at a time, and drops
// versions that no longer count. r must not be shared yet.
func (r *Regions) recordCandidate(i int, at int64) {
	now := at
	// Versions are recorded in order: none earlier than the one before.
	if i > 0 {
		at = max(at, r.Held[i-1].RecordedAt)
	}

	r.Held[i].Candidate = false
	for j := range r.Held[:i+1] {
		// A version without a time is the candidate, or an earlier one that was never a
		// candidate. A region may have used an earlier one in this window, so it counts
		// as recorded at the same time.
		if r.Held[j].RecordedAt == 0 {
			r.Held[j].RecordedAt = at
		}
	}

	recorded := joinAlike(r.Held[:i+1])
	r.Held = pruneHeld(append(recorded, r.Held[i+1:]...), now)
}

// joinAlike returns recorded versions with those joined that divide all limits
// alike: they count as one, recorded when the first of them was. A doubtful
// version stays, because its doubt lowers shares.
func joinAlike(list []Held) (joined []Held) {
	for _, h := range list {
		n := len(joined)
		if n > 0 && !joined[n-1].Doubtful && joined[n-1].sameShares(&h) {
			h.RecordedAt = joined[n-1].RecordedAt
			joined = joined[:n-1]
		}
		joined = append(joined, h)
	}
	return joined
}
