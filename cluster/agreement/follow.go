package agreement

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

const (
	// MaxFollow is how many bytes what regions follow has at most: it goes in one message.
	MaxFollow = 15 << 20

	maxFollowHead = 1 << 20                            // bytes of its JSON
	maxTexts      = MaxHeldBytes + 5*rules.MaxDocument // bytes of all documents in it
	deflateFrom   = 64 << 10                           // bytes of documents that are written smaller
)

// Adopt takes over what the primary's state says about regions and rules, as [State.AppendFollow] wrote it there. It is
// accepted from another world, and else if its term, its version and its revision are later than what is here, in this order.
type Adopt struct {
	World    WorldID
	Term     int64
	Primary  string
	Names    []string
	Revision uint64
	Held     []Adopted     // oldest first; the last is the version in force
	InForce  rules.Version // what History tells of it; zero without one
}

// Adopted is a version of the rules on its way to another region. See [Held].
type Adopted struct {
	Version   int64
	Names     []string
	At        int64
	Candidate bool
	Doubtful  bool
	Text      string // of the document
}

// followHead is Adopt without the documents.
type followHead struct {
	World    WorldID    `json:"world"`
	Term     int64      `json:"term"`
	Primary  string     `json:"primary"`
	Names    []string   `json:"names"`
	Revision uint64     `json:"revision"`
	Held     []heldHead `json:"held,omitempty"`
	When     int64      `json:"when,omitempty"` // Unix ms; this and what follows is of the version in force
	By       string     `json:"by,omitempty"`
	What     string     `json:"what,omitempty"`
	Size     int        `json:"size,omitempty"`
}

// heldHead is Held without the document.
type heldHead struct {
	Version   int64    `json:"version"`
	Names     []string `json:"names"`
	At        int64    `json:"at,omitempty"`
	Candidate bool     `json:"candidate,omitempty"`
	Doubtful  bool     `json:"doubtful,omitempty"`
}

// AppendFollow appends to b what other regions follow: at most [MaxFollow] bytes, or an error. They are worked out once, as
// long as neither rules nor regions change.
func (s *State) AppendFollow(b []byte) ([]byte, error) {
	kept := s.Regions.sets
	if kept == nil {
		kept = &sets{}
	}
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if kept.follow == nil {
		e, err := s.follow()
		if err != nil {
			return b, err
		}
		if kept.follow, err = appendAdopt(nil, e); err != nil {
			return b, err
		}
	}
	return append(b, kept.follow...), nil
}

// follow is what AppendFollow writes.
func (s *State) follow() (Adopt, error) {
	r := s.Regions
	e := Adopt{World: r.World, Term: r.Term, Primary: r.Primary, Names: r.Names, Revision: r.Revision}
	_, e.InForce = s.History.Current()
	for _, h := range r.Held {
		text, err := h.Set.Document.Text()
		if err != nil {
			return Adopt{}, fmt.Errorf("write version %d of the rules for other regions: %w", h.Version, err)
		}
		e.Held = append(e.Held, Adopted{h.Version, h.Names, h.At, h.Candidate, h.Doubtful, text})
	}
	return e, nil
}

// ParseFollow is the inverse of [State.AppendFollow]. The error wraps [ErrEntry].
func ParseFollow(b []byte) (Adopt, error) { return decodeAdopt(b) }

// How the documents are written in what is followed.
const (
	plainTexts = iota
	deflatedTexts
)

// appendAdopt writes a length as a uvarint, so many bytes of JSON, a byte for how the documents are written, and these.
func appendAdopt(b []byte, e Adopt) ([]byte, error) {
	head := followHead{
		World: e.World, Term: e.Term, Primary: e.Primary, Names: e.Names, Revision: e.Revision,
		By: e.InForce.By, What: e.InForce.What, Size: e.InForce.Size,
	}
	if len(e.Held) > 0 {
		head.When = e.InForce.When.UnixMilli()
	}
	var texts []string
	for _, h := range e.Held {
		head.Held = append(head.Held, heldHead{h.Version, h.Names, h.At, h.Candidate, h.Doubtful})
		texts = append(texts, h.Text)
	}
	text, err := json.Marshal(head)
	switch {
	case err != nil:
		return b, fmt.Errorf("%w: %w", ErrEntry, err)
	case len(text) > maxFollowHead:
		return b, fmt.Errorf("%w: what stands around the rules has %d bytes, more than %d", ErrEntry, len(text), maxFollowHead)
	}
	start := len(b)
	out := wire.AppendText(b, text)
	raw := appendTexts(nil, texts)
	if len(raw) < deflateFrom {
		return append(append(out, plainTexts), raw...), nil
	}
	if out, err = deflate(append(out, deflatedTexts), raw); err != nil {
		return b, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	if n := len(out) - start; n > MaxFollow {
		return b, fmt.Errorf("%w: the versions of the rules that regions still need have %d bytes, more than %d", ErrEntry, n, MaxFollow)
	}
	return out, nil
}

func deflate(b, raw []byte) ([]byte, error) {
	out := bytes.NewBuffer(b)
	w, err := flate.NewWriter(out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// inflate is the inverse of deflate, for as much as there may be.
func inflate(b []byte) ([]byte, error) {
	const around = 64 * MaxHeld
	return io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b)), maxTexts+around))
}

func decodeAdopt(b []byte) (Adopt, error) {
	d := wire.NewDecoder(b)
	text := d.View(maxFollowHead)
	if len(b) > MaxFollow || d.Failed() {
		return Adopt{}, fmt.Errorf("%w: what is followed is cut off, or too much", ErrEntry)
	}
	var head followHead
	if err := strict(text, &head); err != nil {
		return Adopt{}, fmt.Errorf("%w: what is followed: %w", ErrEntry, err)
	}
	if len(head.Held) > MaxHeld {
		return Adopt{}, fmt.Errorf("%w: %d versions of the rules are held, more than %d", ErrEntry, len(head.Held), MaxHeld)
	}
	raw := d.Rest()
	var err error
	switch {
	case len(raw) == 0 || raw[0] > deflatedTexts:
		err = errors.New("it is not known how they are written")
	case raw[0] == deflatedTexts:
		raw, err = inflate(raw[1:])
	default:
		raw = raw[1:]
	}
	if err != nil {
		return Adopt{}, fmt.Errorf("%w: rules that are followed: %w", ErrEntry, err)
	}
	texts, err := parseTexts(raw, len(head.Held))
	if err != nil {
		return Adopt{}, fmt.Errorf("%w: rules that are followed: %w", ErrEntry, err)
	}
	e := Adopt{World: head.World, Term: head.Term, Primary: head.Primary, Names: head.Names, Revision: head.Revision}
	for i, h := range head.Held {
		e.Held = append(e.Held, Adopted{h.Version, h.Names, h.At, h.Candidate, h.Doubtful, texts[i]})
		e.InForce = rules.Version{
			Number: h.Version, When: time.UnixMilli(head.When).UTC(), By: head.By, What: head.What, Size: head.Size,
		}
	}
	return e, nil
}

// appendTexts writes texts that are much alike: of each how many bytes it begins and ends with as the one before, and those
// between, with their length.
func appendTexts(b []byte, texts []string) []byte {
	before := ""
	for _, text := range texts {
		most := min(len(text), len(before))
		begin, end := 0, 0
		for begin < most && text[begin] == before[begin] {
			begin++
		}
		for end < most-begin && text[len(text)-1-end] == before[len(before)-1-end] {
			end++
		}
		b = binary.AppendUvarint(b, uint64(begin))
		b = binary.AppendUvarint(b, uint64(end))
		b = wire.AppendText(b, text[begin:len(text)-end])
		before = text
	}
	return b
}

// parseTexts is the inverse of appendTexts, for n texts and nothing behind them.
func parseTexts(b []byte, n int) ([]string, error) {
	var texts []string
	before := ""
	d := wire.NewDecoder(b)
	for range n {
		begin, end := int(d.UpTo(rules.MaxDocument)), int(d.UpTo(rules.MaxDocument))
		between := d.View(rules.MaxDocument)
		if d.Failed() || begin+end > len(before) || begin+end+len(between) > rules.MaxDocument {
			return nil, errors.New("a text is cut off, or too long")
		}
		before = before[:begin] + string(between) + before[len(before)-end:]
		texts = append(texts, before)
	}
	return texts, d.Done("texts")
}

func (e Adopt) apply(next *State) Result {
	have := next.Regions
	switch {
	case e.World.IsZero() || e.Primary == "":
		return rejected("what is followed has no world, or no primary region")
	case len(e.Held) > 0 && e.InForce.Number != e.Held[len(e.Held)-1].Version:
		return rejected("what is followed is version %d of the rules, and not", e.InForce.Number)
	case e.World == have.World && !e.after(next):
		return rejected("version %d, revision %d of term %d is not later than what is here", e.InForce.Number, e.Revision, e.Term)
	}
	adopted := &Regions{
		World: e.World, Term: e.Term, Primary: e.Primary, Names: e.Names, Revision: e.Revision, sets: &sets{},
	}
	history, err := e.history(next)
	if err != nil {
		return Result{Err: fmt.Errorf("%w: adopt version %d of the rules: %w", ErrRejected, e.InForce.Number, err)}
	}
	for i, h := range e.Held {
		held := Held{Version: h.Version, Names: h.Names, At: h.At, Candidate: h.Candidate, Doubtful: h.Doubtful, Set: history.Set()}
		if i < len(e.Held)-1 {
			if held.Set, err = have.compiled(h); err != nil {
				return Result{Err: fmt.Errorf("%w: adopt version %d of the rules: %w", ErrRejected, h.Version, err)}
			}
		}
		adopted.Held = append(adopted.Held, held)
	}
	if err := adopted.check(e.InForce.Number); err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}
	next.History, next.Regions = history, adopted
	return Result{Version: e.InForce.Number}
}

// after reports whether e is later than what s says.
func (e Adopt) after(s *State) bool {
	_, v := s.History.Current()
	r := s.Regions
	return slices.Compare([]uint64{uint64(e.Term), uint64(e.InForce.Number), e.Revision}, []uint64{uint64(r.Term), uint64(v.Number), r.Revision}) > 0
}

// history is that of s with what e has in force. Later versions of the same world are added to what is here; else what is
// here was never the primary's, or no longer is.
func (e Adopt) history(s *State) (*rules.History, error) {
	if len(e.Held) == 0 {
		return rules.NewHistory(), nil
	}
	have, v := s.History.Current()
	text := e.Held[len(e.Held)-1].Text
	same := e.World == s.Regions.World
	if same && have != nil && v.Number == e.InForce.Number {
		if ours, err := have.Text(); err == nil && ours == text {
			return s.History, nil
		}
	}
	return s.History.Adopt(e.InForce, text, !same || v.Number >= e.InForce.Number)
}

// compiled is the set of a version that is adopted: the one that is here, if it says the same.
func (r *Regions) compiled(a Adopted) (*rules.Set, error) {
	for _, h := range r.Held {
		if h.Version != a.Version {
			continue
		}
		if text, err := h.Set.Document.Text(); err == nil && text == a.Text {
			return h.Set, nil
		}
	}
	return compileText(a.Text, a.Version)
}

func compileText(text string, version int64) (*rules.Set, error) {
	doc, err := rules.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return rules.Compile(doc, version)
}
