package entries

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors of changes.
var (
	// ErrFull means that there is no room for another entry.
	ErrFull = errors.New("there are too many entries")
	// ErrNotFound means that there is no such entry.
	ErrNotFound = errors.New("there is no such entry")
	// ErrScope means that a token with the scope entries may not change an entry,
	// because somebody with wider rights wrote it.
	ErrScope = errors.New("the scope entries may only change what was written under it")
)

// Digest stands for the whole history of changes: each change is hashed
// together with the digest before it.
type Digest [16]byte

// MarshalText returns hexadecimal digits.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText is the inverse of MarshalText.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("a digest has %d digits", len(text))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Change adds or replaces an entry, or removes one. The change's time and
// author may differ from the entry's: a restored entry keeps its own.
type Change struct {
	Entry  *Entry `json:"entry,omitempty"` // to add or replace; a removal needs only the fields that identify it
	Remove bool   `json:"remove,omitempty"`
	When   int64  `json:"when"` // by the leader's clock, in Unix ms
	By     string `json:"by,omitempty"`
	// Scoped means that the author has the scope entries and not admin.
	Scoped bool `json:"scoped,omitempty"`
}

// State is the agreed entries. It is immutable.
type State struct {
	version    int64
	digest     Digest
	byID       Tree[Text, *Entry]
	counts     [kinds]int
	bytes      int
	expiring   int             // entries with an end
	byToken    Tree[Text, int] // entries with an end, by the token that wrote them
	nextExpiry int64           // no entry ends earlier, in Unix ms; 0: none ends
	log        changeLog
}

// New returns the state before the first change.
func New() *State { return &State{} }

// Version returns the number of changes so far.
func (s *State) Version() int64 { return s.version }

// Digest returns the digest of all changes so far.
func (s *State) Digest() Digest { return s.digest }

// Len returns the number of entries.
func (s *State) Len() int { return s.byID.Len() }

// Count returns the number of entries of a kind.
func (s *State) Count(k Kind) int { return s.counts[k] }

// Bytes returns about how many bytes all entries take.
func (s *State) Bytes() int { return s.bytes }

// Get returns the entry with an ID, or nil.
func (s *State) Get(id string) *Entry {
	e, _ := s.byID.Get(Text(id))
	return e
}

// All calls yield for each entry, in any order.
func (s *State) All(yield func(*Entry) bool) {
	s.byID.All(func(_ Text, e *Entry) bool { return yield(e) })
}

// Sorted returns all entries, sorted by ID.
func (s *State) Sorted() []*Entry {
	list := make([]*Entry, 0, s.Len())
	for e := range s.All {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *Entry) int { return strings.Compare(a.id, b.id) })
	return list
}

// Diff calls yield for each entry that differs between old and s: before and
// after are nil where it is missing.
func (s *State) Diff(old *State, yield func(before, after *Entry)) {
	s.byID.diff(old.byID, func(_ Text, before, after *Entry) {
		if before != after {
			yield(before, after)
		}
	})
}

// With returns s after a change; s stays as it is. The error wraps ErrInvalid,
// ErrFull, ErrNotFound or ErrScope.
func (s *State) With(c Change) (*State, error) {
	if c.Entry == nil {
		return nil, fmt.Errorf("%w: a change without an entry", ErrInvalid)
	}
	if len(c.By) > maxAuthor || c.When < 0 {
		return nil, fmt.Errorf("%w: its author or its time", ErrInvalid)
	}

	id := c.Entry.ID()
	before := s.Get(id)
	switch {
	case c.Remove && before == nil:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, shorten(c.Entry.String()))
	case c.Scoped && before != nil && !before.Scoped:
		return nil, fmt.Errorf("change %s: %w", shorten(c.Entry.String()), ErrScope)
	}

	next := *s
	if c.Remove {
		next.remove(before)
		next.record(Record{When: c.When, By: c.By, Before: before})
		return &next, nil
	}

	if err := c.Entry.Check(); err != nil {
		return nil, err
	}

	e := c.Entry.withID()
	if before != nil {
		// The old entry is removed before the bounds are checked, so that the new one
		// may take its place.
		next.remove(before)
	}

	if err := next.checkRoom(e); err != nil {
		return nil, err
	}

	next.put(e)
	next.record(Record{When: c.When, By: c.By, Before: before, After: e})
	return &next, nil
}

// checkRoom returns an error if there is no room for e.
func (s *State) checkRoom(e *Entry) error {
	mine, _ := s.byToken.Get(Text(e.Token))
	switch {
	case s.Len() >= MaxEntries:
		return fmt.Errorf("%w: at most %d", ErrFull, MaxEntries)
	case s.bytes+e.size() > MaxBytes:
		return fmt.Errorf("%w: together they may take %d MiB", ErrFull, MaxBytes>>20)
	case e.Until != 0 && s.expiring >= maxExpiring:
		return fmt.Errorf("%w: at most %d may have an end", ErrFull, maxExpiring)
	case e.Until != 0 && e.Token != "" && mine >= maxExpiringOfToken:
		return fmt.Errorf("%w: at most %d of one token may have an end", ErrFull, maxExpiringOfToken)
	}
	return nil
}

// edit prepares s, which must not be shared yet, for many changes in a row. done must follow.
func (s *State) edit() {
	s.byID = s.byID.Edit()
	s.byToken = s.byToken.Edit()
}

// done ends what edit began.
func (s *State) done() {
	s.byID = s.byID.Done()
	s.byToken = s.byToken.Done()
}

// put adds e, which s must not have. s must not be shared yet.
func (s *State) put(e *Entry) {
	s.byID = s.byID.With(Text(e.id), e)
	s.counts[e.Kind]++
	s.bytes += e.size()
	if e.Until == 0 {
		return
	}
	s.countExpiring(e, 1)
	if s.nextExpiry == 0 || e.Until < s.nextExpiry {
		s.nextExpiry = e.Until
	}
}

// remove removes e, which s must have. s must not be shared yet.
func (s *State) remove(e *Entry) {
	s.byID = s.byID.Without(Text(e.id))
	s.counts[e.Kind]--
	s.bytes -= e.size()
	if e.Until != 0 {
		s.countExpiring(e, -1)
	}
}

// countExpiring adds by to the numbers of entries with an end: of all, and of
// those that e's token wrote.
func (s *State) countExpiring(e *Entry, by int) {
	s.expiring += by
	n, _ := s.byToken.Get(Text(e.Token))
	n += by
	if n == 0 {
		s.byToken = s.byToken.Without(Text(e.Token))
		return
	}
	s.byToken = s.byToken.With(Text(e.Token), n)
}

// record appends r to the log as the next version. s must not be shared yet.
func (s *State) record(r Record) {
	s.version++
	r.Version = s.version
	h := sha256.New()
	h.Write(s.digest[:])
	text, _ := json.Marshal(r) // strings and numbers can't fail, and Limits was checked
	h.Write(text)
	copy(s.digest[:], h.Sum(nil))
	r.digest = s.digest
	s.log = s.log.with(r)
}

// maxExpired bounds the entries that one Expire removes.
const maxExpired = 4096

// FirstEnd returns when the first entry ends, in Unix ms; 0: none ends. A time
// after now may be too early. Only if an entry may have ended by now does
// FirstEnd look at them all.
func (s *State) FirstEnd(now int64) int64 {
	if s.nextExpiry == 0 || s.nextExpiry > now {
		return s.nextExpiry
	}

	first := int64(0)
	for e := range s.All {
		if e.Until != 0 && (first == 0 || e.Until < first) {
			first = e.Until
		}
	}
	return first
}

// Expire returns s without the entries that have ended by now, in Unix ms, and how
// many it has removed. If more than maxExpired have ended, it removes those that
// ended first. If none have, it returns s itself.
func (s *State) Expire(now int64) (*State, int) {
	var ended []*Entry
	next := *s
	next.nextExpiry = 0
	for e := range s.All {
		if e.IsOver(now) {
			ended = append(ended, e)
		} else if e.Until != 0 && (next.nextExpiry == 0 || e.Until < next.nextExpiry) {
			next.nextExpiry = e.Until
		}
	}

	if len(ended) == 0 {
		return s, 0
	}

	// All nodes must remove the same entries in the same order, and the order
	// of a tree differs from process to process.
	slices.SortFunc(ended,
		func(a, b *Entry) int { return cmp.Or(cmp.Compare(a.Until, b.Until), strings.Compare(a.id, b.id)) })
	if len(ended) > maxExpired {
		next.nextExpiry = ended[maxExpired].Until
		ended = ended[:maxExpired]
	}

	next.edit()
	for _, e := range ended {
		next.remove(e)
		next.record(Record{When: now, Before: e, Ended: true})
	}
	next.done()

	return &next, len(ended)
}

// shorten returns a text that is short enough for a message.
func shorten(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
