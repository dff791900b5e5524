package agreement

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// A snapshot is written as a byte for its format, the feature level that it takes to read it and the release that wrote it,
// as in entries, and four parts, each with its length before it as a uvarint: what is small, as JSON; From and To, of which
// there are none before the first ring, and To is left out when it is From; the documents of the versions of the rules that
// are held and not in force. Then come the rules, and a CRC32C of all before, little endian.
//
// Every release writes the format, the level, the release and the sum so.
const snapshotFormat = 3

// ErrSnapshot: these bytes are no snapshot, or a damaged one.
var ErrSnapshot = errors.New("not a snapshot")

// small is the part of a snapshot that is. Lists are in order: of members by ID, of answers and strangers by age.
type small struct {
	Cluster     ClusterID     `json:"cluster"`
	Secret      []byte        `json:"secret,omitempty"`
	Index       uint64        `json:"index"`
	Level       Level         `json:"level"`
	Hash        []byte        `json:"hash"`
	CheckIndex  uint64        `json:"check_index"`
	CheckHash   []byte        `json:"check_hash"`
	Revision    uint64        `json:"revision"`
	Epoch       int64         `json:"epoch"`
	Settled     bool          `json:"settled"`
	Members     []Member      `json:"members"`
	Generations []generation  `json:"generations"`
	Strangers   []ring.NodeID `json:"strangers"`
	Boots       []booted      `json:"boots"`
	LastEnded   uint64        `json:"last_ended"`
	Reign       uint64        `json:"reign"`
	Suspensions []suspended   `json:"suspensions"`
	Removed     []uint64      `json:"removed"`
	Answers     []*answer     `json:"answers"`
	Regions     *regionsHead  `json:"regions"`
}

// regionsHead is Regions without documents.
type regionsHead struct {
	World    WorldID    `json:"world"`
	Term     int64      `json:"term"`
	Primary  string     `json:"primary"`
	Names    []string   `json:"names"`
	Held     []heldHead `json:"held"`
	Revision uint64     `json:"revision"`
}

type generation struct {
	Node       ring.NodeID `json:"node"`
	Generation int64       `json:"generation"`
}

type booted struct {
	Node ring.NodeID `json:"node"`
	Booted
}

type suspended struct {
	Node ring.NodeID `json:"node"`
	Suspension
}

// AppendBinary is [Build.AppendSnapshot] of this build.
func (s *State) AppendBinary(b []byte) ([]byte, error) { return This.AppendSnapshot(b, s) }

// AppendSnapshot appends the whole state to b. Equal states are written with equal bytes by one release.
func (w *Build) AppendSnapshot(b []byte, s *State) ([]byte, error) {
	head := small{
		Cluster: s.Cluster, Secret: s.Secret, Index: s.Index, Level: s.Level,
		Hash: s.Hash[:], CheckIndex: s.Check.Index, CheckHash: s.Check.Hash[:], Revision: s.Revision,
		Epoch: s.Epoch, Settled: s.Settled, LastEnded: s.LastEnded, Reign: s.Reign,
		Strangers: s.strangers, Removed: s.removed, Answers: s.answers,
	}
	for _, id := range inOrder(s.Members) {
		head.Members = append(head.Members, s.Members[id])
	}
	for _, id := range inOrder(s.Generations) {
		head.Generations = append(head.Generations, generation{id, s.Generations[id]})
	}
	for _, id := range inOrder(s.Boots) {
		head.Boots = append(head.Boots, booted{id, s.Boots[id]})
	}
	for _, id := range inOrder(s.Suspensions) {
		head.Suspensions = append(head.Suspensions, suspended{id, s.Suspensions[id]})
	}
	parts := [4][]byte{}
	var err error
	if head.Regions, parts[3], err = s.Regions.head(); err != nil {
		return b, fmt.Errorf("write what is agreed about regions: %w", err)
	}
	if parts[0], err = json.Marshal(head); err != nil {
		return b, fmt.Errorf("write what is agreed: %w", err)
	}
	for i, t := range []*ring.Table{s.From, s.To} {
		if t == nil || i == 1 && t == s.From {
			continue
		}
		if parts[1+i], err = t.AppendBinary(nil); err != nil {
			return b, fmt.Errorf("write ring: %w", err)
		}
	}
	start := len(b)
	b = w.signature(append(b, snapshotFormat), s.Level)
	for _, p := range parts {
		b = wire.AppendText(slices.Grow(b, len(p)+binary.MaxVarintLen64), p)
	}
	if b, err = s.History.AppendBinary(b); err != nil {
		return b[:start], fmt.Errorf("write rules: %w", err)
	}
	return wire.AppendSum(b, start), nil
}

// plain is r without documents.
func (r *Regions) plain() *regionsHead {
	head := &regionsHead{World: r.World, Term: r.Term, Primary: r.Primary, Names: r.Names, Revision: r.Revision}
	for _, h := range r.Held {
		head.Held = append(head.Held, heldHead{h.Version, h.Names, h.At, h.Candidate, h.Doubtful})
	}
	return head
}

// head is r as it is kept, with the documents but for the one in force.
func (r *Regions) head() (*regionsHead, []byte, error) {
	head := r.plain()
	var texts []string
	for i, h := range r.Held {
		if i == len(r.Held)-1 {
			break
		}
		text, err := h.Set.Document.Text()
		if err != nil {
			return nil, nil, err
		}
		texts = append(texts, text)
	}
	return head, appendTexts(nil, texts), nil
}

// parseRegions is the inverse of head.
func parseRegions(head *regionsHead, documents []byte, history *rules.History) (*Regions, error) {
	if head == nil {
		return nil, errors.New("nothing is in it about regions")
	}
	r := &Regions{
		World: head.World, Term: head.Term, Primary: head.Primary, Names: head.Names, Revision: head.Revision, sets: &sets{},
	}
	if len(head.Held) > MaxHeld {
		return nil, fmt.Errorf("%d versions of the rules are held, more than %d", len(head.Held), MaxHeld)
	}
	texts, err := parseTexts(documents, max(0, len(head.Held)-1))
	if err != nil {
		return nil, err
	}
	for i, h := range head.Held {
		held := Held{Version: h.Version, Names: h.Names, At: h.At, Candidate: h.Candidate, Doubtful: h.Doubtful, Set: history.Set()}
		if i < len(texts) {
			if held.Set, err = compileText(texts[i], h.Version); err != nil {
				return nil, err
			}
		}
		r.Held = append(r.Held, held)
	}
	return r, nil
}

func inOrder[V any](m map[ring.NodeID]V) []ring.NodeID {
	return slices.SortedFunc(maps.Keys(m), ring.NodeID.Compare)
}

// Parse is the inverse of [State.AppendBinary]. The error wraps [ErrSnapshot], and is an [*Unreadable] if the snapshot is
// whole, and there is something in it that is not known here.
func Parse(b []byte) (*State, error) { return This.Parse(b) }

// Parse is the inverse of AppendSnapshot.
func (w *Build) Parse(b []byte) (*State, error) {
	content, ok := wire.CutSum(b)
	if !ok || len(content) == 0 {
		return nil, fmt.Errorf("%w: it is cut off, or the checksum is wrong", ErrSnapshot)
	}
	d := wire.NewDecoder(content[1:])
	needs, release, err := decodeSignature(d)
	var s *State
	switch {
	case b[0] != snapshotFormat:
		err = fmt.Errorf("unknown format %d", b[0])
	case err != nil:
	case needs > w.Level:
		err = errors.New("it is of a later release")
	default:
		if s, err = parse(d); err == nil && s.Level != needs {
			err = fmt.Errorf("its level is %d, and not %d", s.Level, needs)
		}
	}
	if err != nil {
		return nil, w.unreadable(needs, release, fmt.Errorf("%w: %w", ErrSnapshot, err))
	}
	return s, nil
}

// parse reads what stands between the signature and the sum.
func parse(d *wire.Decoder) (_ *State, err error) {
	var parts [4][]byte
	for i := range parts {
		parts[i] = d.View(math.MaxInt)
	}
	if d.Failed() {
		return nil, d.Err()
	}
	var head small
	if err := strict(parts[0], &head); err != nil {
		return nil, err
	}
	if len(head.Hash) != len(Hash{}) || len(head.CheckHash) != len(Hash{}) || head.CheckIndex > head.Index || head.CheckIndex%CheckEvery != 0 {
		return nil, errors.New("its hash is none")
	}
	s := &State{
		Cluster: head.Cluster, Secret: head.Secret, Index: head.Index, Level: head.Level,
		Hash: Hash(head.Hash), Check: Check{head.CheckIndex, Hash(head.CheckHash)}, Revision: head.Revision,
		Epoch: head.Epoch, Settled: head.Settled, LastEnded: head.LastEnded, Reign: head.Reign,
		strangers: head.Strangers, removed: head.Removed, answers: head.Answers,
		Members: make(map[ring.NodeID]Member, len(head.Members)), Generations: make(map[ring.NodeID]int64, len(head.Generations)),
		Boots: make(map[ring.NodeID]Booted, len(head.Boots)), Suspensions: make(map[ring.NodeID]Suspension, len(head.Suspensions)),
	}
	for _, m := range head.Members {
		s.Members[m.ID] = m
	}
	for _, g := range head.Generations {
		s.Generations[g.Node] = g.Generation
	}
	for _, b := range head.Boots {
		s.Boots[b.Node] = b.Booted
	}
	for _, n := range head.Suspensions {
		s.Suspensions[n.Node] = n.Suspension
	}
	if len(s.Suspensions) != len(head.Suspensions) ||
		len(s.Members) != len(head.Members) || len(s.Generations) != len(head.Generations) || len(s.Boots) != len(head.Boots) {
		return nil, errors.New("a node is in it twice")
	}
	if len(parts[1]) > 0 {
		if s.From, err = ring.Parse(parts[1]); err != nil {
			return nil, err
		}
	}
	s.To = s.From
	if len(parts[2]) > 0 {
		if s.To, err = ring.Parse(parts[2]); err != nil {
			return nil, err
		}
	}
	if s.History, err = rules.ParseHistory(d.Rest()); err != nil {
		return nil, err
	}
	if s.Regions, err = parseRegions(head.Regions, parts[3], s.History); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// check holds a state that was read to what entries could have made.
func (s *State) check() error {
	_, v := s.History.Current()
	if err := s.Regions.check(v.Number); err != nil {
		return err
	}
	switch {
	case s.Level < 1:
		return errors.New("there is no feature level 0")
	case s.Cluster.IsZero() != (len(s.Secret) == 0) || len(s.Secret) != 0 && len(s.Secret) != secretBytes:
		return fmt.Errorf("a secret of %d bytes", len(s.Secret))
	case s.Epoch < 0 || (s.Epoch == 0) != (s.From == nil) || (s.From == nil) != (s.To == nil):
		return fmt.Errorf("epoch %d and its rings do not fit", s.Epoch)
	case s.Settled != (s.From == s.To):
		return errors.New("it is not settled and has only one ring, or the reverse")
	case max(s.LastEnded, s.Revision) > s.Index:
		return fmt.Errorf("entries %d and %d behind the last, %d", s.LastEnded, s.Revision, s.Index)
	case len(s.Members) > MaxKnown || len(s.Boots) > MaxBoots || len(s.answers) > KeptRequests ||
		len(s.strangers) > KeptStrangers || len(s.removed) > KeptRemoved:
		return errors.New("there is more in it than is ever kept")
	}
	for _, t := range []*ring.Table{s.From, s.To} {
		for _, id := range t.Members() {
			if _, known := s.Members[id]; !known {
				return fmt.Errorf("%s is in a ring and not known", id)
			}
		}
	}
	for id, b := range s.Boots {
		if !b.possible(s.Index) {
			return fmt.Errorf("%s has process %d, named by entry %d, after %d", id, b.Boot, b.Index, b.Former)
		}
	}
	for id, n := range s.Suspensions {
		if _, known := s.Members[id]; !known || n.Times < 1 || n.Times > maxSuspended {
			return fmt.Errorf("%s was taken out of the ring %d times", id, n.Times)
		}
	}
	unknown := 0
	for id, g := range s.Generations {
		if _, known := s.Members[id]; !known {
			unknown++
		}
		if g < 1 {
			return fmt.Errorf("%s has generation %d", id, g)
		}
	}
	for i, id := range s.strangers {
		if _, known := s.Members[id]; known || s.Generations[id] == 0 || slices.Contains(s.strangers[:i], id) {
			return fmt.Errorf("%s is no stranger", id)
		}
	}
	if unknown != len(s.strangers) {
		return errors.New("not all strangers are in it")
	}
	for _, a := range s.answers {
		if a == nil || a.Error != "" && !slices.Contains([]string{conflict, notFound, mistakes, other}, a.Error) {
			return errors.New("an answer is not one")
		}
	}
	return nil
}
