package agreement

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// snapshotFormat is the first byte of a snapshot. Then come, as in entries, the
// feature level needed to read the snapshot and the release that wrote it. Five
// parts follow, each prefixed with its length as a uvarint: the small fields as
// JSON; From; To; the documents of the versions that are held but not in force;
// and the entries beside the rules. From and To are empty before the first
// ring, and To is also empty if it is the same as From. Then come the rules
// and, little endian, a CRC32C of everything before it.
//
// Every release writes the format, the origin and the checksum in this way.
const snapshotFormat = 5

// The parts of a snapshot, in their order.
const (
	partFields = iota
	partFrom
	partTo
	partDocuments
	partEntries
	numParts
)

// ErrSnapshot means that bytes are not a snapshot, or that the snapshot is damaged.
var ErrSnapshot = errors.New("not a snapshot")

// AppendBinary calls [Build.AppendSnapshot] on [ThisBuild].
func (s *State) AppendBinary(b []byte) ([]byte, error) { return ThisBuild.AppendSnapshot(b, s) }

// AppendSnapshot appends the whole state to buf. The same build encodes equal
// states as equal bytes. On an error, it returns buf unchanged.
func (b *Build) AppendSnapshot(buf []byte, s *State) ([]byte, error) {
	parts := [numParts][]byte{}
	var err error

	parts[partFields], err = json.Marshal(s)
	if err != nil {
		return buf, fmt.Errorf("write the agreed state: %w", err)
	}

	parts[partDocuments], err = s.Regions.documents()
	if err != nil {
		return buf, fmt.Errorf("write the held versions of the rules: %w", err)
	}

	parts[partEntries], err = s.Entries.AppendBinary(nil)
	if err != nil {
		return buf, fmt.Errorf("write the entries beside the rules: %w", err)
	}

	if s.From != nil {
		parts[partFrom], err = s.From.AppendBinary(nil)
		if err != nil {
			return buf, fmt.Errorf("write a ring: %w", err)
		}
	}
	if s.To != nil && s.To != s.From {
		parts[partTo], err = s.To.AppendBinary(nil)
		if err != nil {
			return buf, fmt.Errorf("write a ring: %w", err)
		}
	}

	start := len(buf)
	buf = b.appendOrigin(append(buf, snapshotFormat), s.Level)
	for _, p := range parts {
		buf = wire.AppendText(slices.Grow(buf, len(p)+binary.MaxVarintLen64), p)
	}

	return wire.AppendSum(s.History.AppendBinary(buf), start), nil
}

// documents returns the documents of the held versions except the one in force.
func (r *Regions) documents() ([]byte, error) {
	var texts []string
	for i := range len(r.Held) - 1 {
		text, err := r.Held[i].Set.Document.Text()
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return appendTexts(nil, texts), nil
}

// compile is the inverse of documents.
func (r *Regions) compile(documents []byte, history *rules.History) error {
	if len(r.Held) > MaxHeld {
		return fmt.Errorf("%d versions of the rules are held, more than %d", len(r.Held), MaxHeld)
	}

	texts, err := parseTexts(documents, max(0, len(r.Held)-1))
	if err != nil {
		return err
	}
	for i, text := range texts {
		r.Held[i].Set, err = compileText(text, r.Held[i].Version)
		if err != nil {
			return err
		}
	}

	last := r.inForce()
	if last != nil {
		last.Set = history.Set()
	}

	return nil
}

// Parse is the inverse of AppendSnapshot. The error wraps [ErrSnapshot]. If the
// checksum is right, the error is an [*Unreadable].
func (b *Build) Parse(data []byte) (*State, error) {
	content, ok := wire.CutSum(data)
	if !ok || len(content) == 0 {
		return nil, fmt.Errorf("%w: it is truncated, or its checksum is wrong", ErrSnapshot)
	}

	d := wire.NewDecoder(content[1:])
	needs, release, err := decodeOrigin(d)

	var s *State
	switch {
	case data[0] != snapshotFormat:
		err = fmt.Errorf("unknown format %d", data[0])
	case err != nil:
	case needs > b.Level:
		err = errors.New("a later release wrote it")
	default:
		s, err = parse(d)
		if err == nil && s.Level != needs {
			err = fmt.Errorf("the state has level %d, not %d", s.Level, needs)
		}
	}

	if err != nil {
		return nil, b.unreadable(needs, release, fmt.Errorf("%w: %w", ErrSnapshot, err))
	}

	return s, nil
}

// parse reads the bytes between the origin and the checksum.
func parse(d *wire.Decoder) (_ *State, err error) {
	var parts [numParts][]byte
	for i := range parts {
		parts[i] = d.View(math.MaxInt)
	}

	if d.Failed() {
		return nil, d.Err()
	}

	s := New()
	s.Regions.cache = &regionCache{}

	if err := wire.StrictJSON(parts[partFields], s); err != nil {
		return nil, err
	}

	if len(parts[partFrom]) > 0 {
		s.From, err = ring.Parse(parts[partFrom])
		if err != nil {
			return nil, err
		}
	}

	s.To = s.From
	if len(parts[partTo]) > 0 {
		s.To, err = ring.Parse(parts[partTo])
		if err != nil {
			return nil, err
		}
	}

	s.Entries, err = entries.Parse(parts[partEntries])
	if err != nil {
		return nil, err
	}

	s.History, err = rules.ParseHistory(d.Rest())
	if err != nil {
		return nil, err
	}

	if s.Members == nil || s.Generations == nil || s.Processes == nil || s.Regions == nil {
		return nil, errors.New("a required field is missing")
	}
	if err := s.Regions.compile(parts[partDocuments], s.History); err != nil {
		return nil, err
	}

	if err := s.check(); err != nil {
		return nil, err
	}

	return s, nil
}

// check returns an error if no sequence of entries could have produced s, which
// was read from a snapshot.
func (s *State) check() error {
	_, v := s.History.Current()
	if err := s.Regions.check(v.Number); err != nil {
		return err
	}

	switch {
	case s.Level < 1:
		return errors.New("the feature level is below 1")
	case s.Cluster.IsZero() != (len(s.SigningKey) == 0) || len(s.SigningKey) != 0 && len(s.SigningKey) != secretBytes:
		return fmt.Errorf("the secret has %d bytes", len(s.SigningKey))
	case s.Epoch < 0 || (s.Epoch == 0) != (s.From == nil) || (s.From == nil) != (s.To == nil):
		return fmt.Errorf("epoch %d does not fit its rings", s.Epoch)
	case s.Settled != (s.From == s.To):
		return errors.New("it is settled with two rings, or unsettled with one")
	case s.ComparedHash.Index > s.Index || s.ComparedHash.Index%HashEvery != 0:
		return fmt.Errorf("the compared hash can't be as of entry %d", s.ComparedHash.Index)
	case max(s.LastEnded, s.Revision) > s.Index:
		return fmt.Errorf("entry %d or %d comes after the last one, %d", s.LastEnded, s.Revision, s.Index)
	case len(s.Members) > MaxKnown || len(s.Processes) > MaxProcesses || len(s.Answers) > KeptAnswers ||
		len(s.Strangers) > KeptStrangers || len(s.Removed) > KeptRemoved:
		return errors.New("a list is longer than its bound")
	}

	if err := s.checkDepartures(); err != nil {
		return err
	}

	// Each member of a ring must be known.
	for _, t := range []*ring.Table{s.From, s.To} {
		for _, id := range t.Members() {
			if _, known := s.Members[id]; !known {
				return fmt.Errorf("%s is in a ring, but not among the known nodes", id)
			}
		}
	}

	for id, m := range s.Members {
		if m.ID != id {
			return fmt.Errorf("node %s is listed as %s", m.ID, id)
		}
	}

	for id, p := range s.Processes {
		if !p.isPossible(s.Index) {
			return fmt.Errorf("the process of %s can't be %d, registered by entry %d after entry %d", id, p.Boot, p.Index, p.Former)
		}
	}

	// Each generation belongs to a known node or to a listed stranger.
	unknown := 0
	for id, g := range s.Generations {
		if _, known := s.Members[id]; !known {
			unknown++
		}
		if g < 1 {
			return fmt.Errorf("%s can't have generation %d", id, g)
		}
	}

	for i, id := range s.Strangers {
		if _, known := s.Members[id]; known || s.Generations[id] == 0 || slices.Contains(s.Strangers[:i], id) {
			return fmt.Errorf("%s is listed as a stranger, but is not one", id)
		}
	}

	if unknown != len(s.Strangers) {
		return errors.New("a stranger is missing from the list")
	}

	for _, a := range s.Answers {
		if a == nil {
			return errors.New("a remembered answer is null")
		}
	}
	return nil
}
