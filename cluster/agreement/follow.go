package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const (
	// MaxAdopt bounds the encoded state that other regions adopt, in bytes. It must
	// fit in one message.
	MaxAdopt = 15 << 20

	// maxDocumentBytes bounds all documents of an Adopt, in bytes, when
	// uncompressed. checkRoom allows no more than MaxHeldBytes; the five documents
	// are slack.
	maxDocumentBytes = MaxHeldBytes + 5*document.MaxDocument
)

// Adopt copies the primary's regions and rules, as [State.AppendAdopt] wrote
// them there. It is accepted if it comes from another world. Otherwise it is
// accepted only if it is later: its primary epoch, version and revision are
// compared with the current ones, in this order.
type Adopt struct {
	Regions               // the last of Held is the version in force; each has its Text and no Set
	InForce rules.Version `json:"in_force"` // as in History; zero if there is none
}

// AppendAdopt appends to b the rules and regions for other regions to adopt: at
// most [MaxAdopt] bytes, or an error. The encoded bytes are cached until rules
// or regions change.
func (s *State) AppendAdopt(b []byte) ([]byte, error) {
	cache := s.Regions.cacheOrNew()
	cache.mu.Lock()
	defer cache.mu.Unlock()

	if cache.followBytes == nil {
		e, err := s.adoption()
		if err != nil {
			return b, err
		}

		cache.followBytes, err = appendBody(nil, e)
		if err != nil {
			return b, err
		}
	}

	return append(b, cache.followBytes...), nil
}

// adoption returns the entry that AppendAdopt encodes.
func (s *State) adoption() (Adopt, error) {
	e := Adopt{Regions: *s.Regions}
	e.cache = nil
	e.Held = slices.Clone(e.Held)
	_, e.InForce = s.History.Current()

	for i := range e.Held {
		h := &e.Held[i]
		var err error

		h.Text, err = h.Set.Document.Text()
		if err != nil {
			return Adopt{}, fmt.Errorf("write version %d of the rules for other regions: %w", h.Version, err)
		}
		h.Set = nil
	}
	return e, nil
}

// ParseAdopt is the inverse of [State.AppendAdopt]. The error wraps [ErrEntry].
func ParseAdopt(b []byte) (Adopt, error) {
	if len(b) > MaxAdopt {
		return Adopt{}, fmt.Errorf("%w: the state to adopt has %d bytes, more than %d", ErrEntry, len(b), MaxAdopt)
	}
	e, err := decodeBody(kindOf(Adopt{}), b)
	if err != nil {
		return Adopt{}, err
	}
	return e.(Adopt), nil
}

// packDocuments encodes the documents of versions, compressed.
func packDocuments(held []Held) ([]byte, error) {
	var texts []string
	for _, h := range held {
		texts = append(texts, h.Text)
	}

	out := wire.Deflate(nil, appendTexts(nil, texts))
	if len(out) > MaxAdopt {
		return nil,
			fmt.Errorf("the versions of the rules that regions still need have %d bytes, more than %d",
				len(out), MaxAdopt)
	}
	return out, nil
}

// unpackDocuments is the inverse of packDocuments. It sets the Text of each of
// held. It inflates at most as many bytes as valid documents can have.
func unpackDocuments(b []byte, held []Held) error {
	// maxLengths bounds the bytes of all lengths that appendTexts writes.
	const maxLengths = 64 * MaxHeld
	if len(held) > MaxHeld {
		return fmt.Errorf("%d versions are held, more than %d", len(held), MaxHeld)
	}

	raw, err := wire.Inflate(b, maxDocumentBytes+maxLengths)
	if err != nil {
		return err
	}

	texts, err := parseTexts(raw, len(held))
	for i := range texts {
		held[i].Text = texts[i]
	}
	return err
}

// appendTexts encodes texts that resemble one another. For each text, it writes
// how many bytes at its beginning and at its end are those of the text before.
// Then come the bytes between them, with their length.
func appendTexts(b []byte, texts []string) []byte {
	before := ""
	for _, text := range texts {
		most := min(len(text), len(before))
		begin, end := 0, 0
		for begin < most && text[begin] == before[begin] {
			begin++
		}

		// The two shared parts must not overlap in the shorter text.
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

// parseTexts is the inverse of appendTexts, for exactly n texts and nothing after them.
func parseTexts(b []byte, n int) ([]string, error) {
	var texts []string
	before := ""
	size := 0 // of all texts: what they share takes no room in b

	d := wire.NewDecoder(b)
	for range n {
		begin, end := int(d.UpTo(document.MaxDocument)), int(d.UpTo(document.MaxDocument))
		between := d.View(document.MaxDocument)
		if d.Failed() || begin+end > len(before) || begin+end+len(between) > document.MaxDocument {
			return nil, errors.New("a document is truncated or too long")
		}
		size += begin + end + len(between)
		if size > maxDocumentBytes {
			return nil, fmt.Errorf("the documents have more than %d bytes", maxDocumentBytes)
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
		return rejected("the state to adopt has no world or no primary region")
	case len(e.Held) > 0 && e.InForce.Number != e.Held[len(e.Held)-1].Version:
		return rejected("version %d of the rules is in force, but is not the last one held", e.InForce.Number)
	case e.World == have.World && !e.isLaterThan(next):
		return rejected("version %d, revision %d of primary epoch %d is not later than the current state", e.InForce.Number, e.Revision, e.PrimaryEpoch)
	}

	history, err := e.historyAfter(next)
	if err != nil {
		return Result{Err: fmt.Errorf("%w: adopt version %d of the rules: %w", ErrRejected, e.InForce.Number, err)}
	}

	adopted := e.Regions
	adopted.cache = &regionCache{}
	adopted.Held = slices.Clone(e.Held)
	for i := range adopted.Held {
		h := &adopted.Held[i]
		h.Set = history.Set() // for the last one, which is in force
		if i < len(e.Held)-1 {
			h.Set, err = have.compileHeld(h)
			if err != nil {
				return Result{Err: fmt.Errorf("%w: adopt version %d of the rules: %w", ErrRejected, h.Version, err)}
			}
		}
		h.Text = ""
	}

	if err := adopted.check(e.InForce.Number); err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}

	next.History = history
	next.Regions = &adopted
	return Result{Version: e.InForce.Number}
}

// isLaterThan reports whether e, from the same world, is later than s.
func (e Adopt) isLaterThan(s *State) bool {
	_, v := s.History.Current()
	r := s.Regions
	return slices.Compare([]uint64{uint64(e.PrimaryEpoch), uint64(e.InForce.Number), e.Revision},
		[]uint64{uint64(r.PrimaryEpoch), uint64(v.Number), r.Revision}) > 0
}

// historyAfter returns the history of s with e's version in force. If s has this
// version with the same text, its history stays. A later version of the same
// world is added. In any other case, the primary's history replaces the local
// one.
func (e Adopt) historyAfter(s *State) (*rules.History, error) {
	if len(e.Held) == 0 {
		return rules.NewHistory(), nil
	}

	doc, v := s.History.Current()
	text := e.Held[len(e.Held)-1].Text
	sameWorld := e.World == s.Regions.World
	if sameWorld && doc != nil && v.Number == e.InForce.Number {
		ours, err := doc.Text()
		if err == nil && ours == text {
			return s.History, nil
		}
	}
	return s.History.Adopt(e.InForce, text, !sameWorld || v.Number >= e.InForce.Number)
}

// compileHeld returns the set of an adopted version. It reuses the local set if
// the document is the same.
func (r *Regions) compileHeld(a *Held) (*rules.Set, error) {
	for _, h := range r.Held {
		if h.Version != a.Version {
			continue
		}

		text, err := h.Set.Document.Text()
		if err == nil && text == a.Text {
			return h.Set, nil
		}
	}
	return compileText(a.Text, a.Version)
}

func compileText(text string, version int64) (*rules.Set, error) {
	doc, err := document.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return rules.Compile(doc, version)
}
