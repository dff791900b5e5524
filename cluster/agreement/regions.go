package agreement

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of Regions.
const (
	// MaxRegions bounds Regions.Committed.
	MaxRegions = 32
	// maxPrimaryEpoch bounds Regions.PrimaryEpoch: more than will ever be needed,
	// and far from overflow.
	maxPrimaryEpoch = 1 << 60
	// MaxRegionName bounds a region's name, in bytes.
	MaxRegionName = 64
	// MaxHeld bounds Regions.Held.
	MaxHeld = 64
	// MaxHeldBytes roughly bounds the size of the documents in Regions.Held. Four
	// may be held, whatever their size.
	MaxHeldBytes = 64 << 20
)

// Regions is the agreed state about regions. It is immutable.
type Regions struct {
	// World identifies the world whose rules these are. It is zero until this
	// region becomes the primary or follows one.
	World        WorldID  `json:"world"`
	PrimaryEpoch int64    `json:"term"`    // of the primary: rises each time another region becomes the primary
	Primary      string   `json:"primary"` // the region where rules are written; "" if there is none yet
	Committed    []string `json:"names"`   // the regions that the primary has committed, sorted; at most MaxRegions
	Held         []Held   `json:"held"`    // versions that still count, oldest and recorded first; the last is in force
	// Revision rises with each change of this struct in the primary; others copy
	// it.
	Revision uint64 `json:"revision"`

	cache *regionCache // nil: nothing is cached
}

// Held is a version of the rules that still counts for shares.
//
// If there are no global limits, or only one region uses them, each version
// counts as recorded at once, and only the one in force is held.
type Held struct {
	Version int64    `json:"version"`
	Regions []string `json:"names"` // the regions that share limits in this version, sorted
	// RecordedAt is the time, in Unix ms, that all regions have agreed on. From
	// then on, by every clock, no region uses an older version that divides limits
	// differently. 0: not recorded.
	RecordedAt int64 `json:"at,omitempty"`
	Candidate  bool  `json:"candidate,omitempty"` // all regions are asked to honour it; it is recorded next
	// Doubtful means that the version was not recorded when the primary or its
	// epoch changed. The former primary may have recorded it earlier than
	// RecordedAt, and a region may have relied on that.
	Doubtful bool       `json:"doubtful,omitempty"`
	Set      *rules.Set `json:"-"` // compiled, without shares
	Text     string     `json:"-"` // the document, in an Adopt only
}

// regionCache caches the results of SetFor, by region, and of AppendAdopt.
type regionCache struct {
	mu          sync.Mutex // guards the fields below
	byRegion    map[string]*rules.Set
	followBytes []byte // nil: not computed yet
}

// SetPrimary makes a region the primary, where rules are written. It begins a
// world if there is none yet, and commits the region. Repeating it changes
// nothing, unless its PrimaryEpoch is later than the current one.
type SetPrimary struct {
	Region string  `json:"region"`
	World  WorldID `json:"world"` // used if there is none yet; not zero
	// PrimaryEpoch is the lowest allowed value of the new primary epoch; 0 for any.
	// A primary that was behind another region sets it, to overtake that region.
	PrimaryEpoch int64 `json:"term,omitempty"`
	When         int64 `json:"when,omitempty"` // Unix ms
}

// ChangeRegion commits a region, or removes a region other than the primary. If
// there are rules, it makes a new version of them with the same document. Only
// the primary region's leader proposes it.
type ChangeRegion struct {
	Name   string `json:"name"`
	Remove bool   `json:"remove,omitempty"`
	By     string `json:"by,omitempty"`
	When   int64  `json:"when,omitempty"` // Unix ms
}

// Mark makes the version in force the candidate, which all regions are asked to
// honour, or records that they honour it. If the version is already recorded,
// Mark drops the earlier versions whose windows have ended. Only the primary
// region's leader proposes it.
type Mark struct {
	Version int64 `json:"version"`
	// At, in Unix ms, has three meanings. 0: Version becomes the candidate. If
	// Version is the candidate: it is recorded with this time, which no region's
	// clock had reached when that region began to use Version or a newer one. If
	// Version is recorded already: the earliest clock now, up to which windows have
	// ended everywhere.
	At int64 `json:"at,omitempty"`
}

// validRegion reports whether name is a valid region name.
func validRegion(name string) bool {
	return name != "" && len(name) <= MaxRegionName && utf8.ValidString(name)
}

// withNextRevision returns a copy of r to change, with the next revision.
func (r *Regions) withNextRevision() *Regions {
	next := *r
	next.Revision++
	next.cache = &regionCache{}
	return &next
}

// cacheOrNew returns the cache of r, or an empty one to discard.
func (r *Regions) cacheOrNew() *regionCache {
	if r.cache == nil {
		return &regionCache{}
	}
	return r.cache
}

// inForce returns the version in force, or nil if there is none.
func (r *Regions) inForce() *Held {
	if len(r.Held) == 0 {
		return nil
	}
	return &r.Held[len(r.Held)-1]
}

// SetFor returns the compiled rules in force, with a region's shares and the
// cluster's key for subjects. It returns nil before the first version. It also
// returns nil while there is no key, because counters must never use another
// key. The pointer stays the same until rules or regions change.
func (s *State) SetFor(region string) *rules.Set {
	r := s.Regions
	set := s.History.Set()
	if set == nil || len(s.SigningKey) == 0 {
		return nil
	}

	cache := r.cacheOrNew()
	cache.mu.Lock()
	defer cache.mu.Unlock()

	if cached := cache.byRegion[region]; cached != nil {
		return cached
	}
	if cache.byRegion == nil || len(cache.byRegion) > MaxRegions {
		cache.byRegion = map[string]*rules.Set{}
	}

	set = set.Keyed(s.SigningKey)
	if len(r.Held) > 0 {
		set = set.WithShares(r.dividingVersions(region))
	}

	cache.byRegion[region] = set
	return set
}

func (r *Regions) dividingVersions(region string) *rules.DividingVersions {
	versions := &rules.DividingVersions{Region: region}
	for _, h := range r.Held {
		versions.Held = append(versions.Held, rules.HeldVersion{Set: h.Set, Regions: h.Regions, RecordedAt: h.RecordedAt, Doubtful: h.Doubtful})
	}
	return versions
}

func (e SetPrimary) apply(next *State) Result {
	r := next.Regions
	switch {
	case !validRegion(e.Region):
		return rejected("a region's name has 1 to %d bytes of UTF-8", MaxRegionName)
	case e.World.IsZero():
		return rejected("the world has no ID")
	case e.PrimaryEpoch < 0 || e.PrimaryEpoch > maxPrimaryEpoch:
		return rejected("%d is not a valid primary epoch", e.PrimaryEpoch)
	case r.Primary == e.Region && slices.Contains(r.Committed, e.Region) && e.PrimaryEpoch <= r.PrimaryEpoch:
		return Result{}
	}

	changed := r.withNextRevision()
	if changed.Primary != e.Region {
		changed.Primary = e.Region
		changed.PrimaryEpoch++
	}

	changed.PrimaryEpoch = max(changed.PrimaryEpoch, e.PrimaryEpoch)

	begins := r.World.IsZero()
	if begins {
		changed.World = e.World
		changed.Committed = []string{e.Region}
		if h := r.inForce(); h != nil {
			// No other region has followed these rules, so there is none to wait for.
			changed.Held = []Held{{Version: h.Version, Regions: changed.Committed, RecordedAt: max(1, h.RecordedAt), Set: h.Set}}
		}
		next.Regions = changed
		return Result{}
	}

	if changed.PrimaryEpoch != r.PrimaryEpoch {
		changed.markDoubtful()
	}

	if slices.Contains(r.Committed, e.Region) {
		next.Regions = changed
		return Result{}
	}

	return next.commitRegion(changed, ChangeRegion{Name: e.Region, When: e.When})
}

// markDoubtful marks the versions that are not recorded here: another primary
// may have recorded them. r must not be shared yet.
func (r *Regions) markDoubtful() {
	r.Held = slices.Clone(r.Held)
	for i := range r.Held {
		r.Held[i].Doubtful = r.Held[i].Doubtful || r.Held[i].RecordedAt == 0
	}
}

func (e ChangeRegion) apply(next *State) Result {
	r := next.Regions
	committed := slices.Contains(r.Committed, e.Name)
	switch {
	case !validRegion(e.Name):
		return rejected("a region's name has 1 to %d bytes of UTF-8", MaxRegionName)
	case r.Primary == "":
		return rejected("there is no primary region yet")
	case e.Remove && e.Name == r.Primary:
		return rejected("%s is the primary region", e.Name)
	case e.Remove && !committed:
		return Result{Err: fmt.Errorf("remove region %q: %w", e.Name, document.ErrNotFound)}
	case !e.Remove && committed:
		return rejected("the region %s is already committed", e.Name)
	}

	return next.commitRegion(r.withNextRevision(), e)
}

// commitRegion applies e to changed, and puts the result in force. If there are
// rules, it writes a version with the same document: shares need a version.
func (s *State) commitRegion(changed *Regions, e ChangeRegion) Result {
	names := slices.Clone(changed.Committed)
	message := "region " + e.Name + " joins"
	if e.Remove {
		message = "region " + e.Name + " leaves"
		names = slices.DeleteFunc(names, func(name string) bool { return name == e.Name })
	} else {
		names = append(names, e.Name)
	}

	if len(names) > MaxRegions && !e.Remove {
		return rejected("there are already %d regions, the most allowed", MaxRegions)
	}
	slices.Sort(names)
	changed.Committed = names

	if s.Regions.inForce() == nil {
		s.Regions = changed
		return Result{}
	}

	_, last := s.History.Current()
	when := time.UnixMilli(e.When)
	if e.When == 0 {
		when = last.When
	}

	history, err := s.History.Reissue(message, e.By, when)
	if err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}
	if err := changed.holdVersion(history); err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}

	s.History = history
	s.Regions = changed
	_, v := history.Current()
	return Result{Version: v.Number}
}

// check returns an error if no sequence of entries could have produced r, which
// was read from outside. number is the version in force.
func (r *Regions) check(number int64) error {
	newest := int64(0) // the last version held; 0: there is none
	if len(r.Held) > 0 {
		newest = r.inForce().Version
	}

	hasPrimary := r.Primary != ""
	switch {
	case r.PrimaryEpoch < 0 || (r.PrimaryEpoch != 0) != hasPrimary || r.World.IsZero() == hasPrimary:
		return errors.New("the primary region, its epoch and its world do not fit together")
	case hasPrimary && !validRegion(r.Primary):
		return fmt.Errorf("%q is not a region's name", r.Primary)
	case len(r.Held) > MaxHeld || newest != number:
		return fmt.Errorf("the %d versions of the rules that are held do not end with version %d", len(r.Held), number)
	}

	if err := checkNames(r.Committed); err != nil {
		return err
	}

	candidates := 0
	for i, h := range r.Held {
		if err := checkNames(h.Regions); err != nil {
			return err
		}

		if h.Candidate {
			candidates++
		}

		before := Held{RecordedAt: 1}
		if i > 0 {
			before = r.Held[i-1]
		}

		// Versions are recorded in their order, and a candidate is not recorded yet.
		mayBeRecorded := !h.Candidate && before.RecordedAt != 0 && h.RecordedAt >= before.RecordedAt
		isImpossible := h.RecordedAt < 0 || h.RecordedAt > rules.MaxRecordedAt || h.RecordedAt != 0 && !mayBeRecorded
		if isImpossible || h.Version <= before.Version {
			return fmt.Errorf("version %d of the rules is out of order, or its record is impossible", h.Version)
		}
	}

	if candidates > 1 {
		return errors.New("there is more than one candidate")
	}

	return nil
}

func checkNames(names []string) error {
	if len(names) > MaxRegions {
		return fmt.Errorf("%d regions are more than %d", len(names), MaxRegions)
	}
	for i, name := range names {
		if !validRegion(name) || i > 0 && name <= names[i-1] {
			return fmt.Errorf("the region name %q is invalid or out of order", name)
		}
	}
	return nil
}
