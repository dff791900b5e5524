package agreement

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// An entry is written as
//
//	byte 0    entryMark
//	byte 1    kind
//	byte 2    format of this kind
//	uvarint   the feature level that it takes to read it
//	uvarint   length of the release
//	release   that wrote it, text
//	byte      1 if it names its terms, else 0
//	80 bytes  terms, if it does: see Terms; numbers big endian
//	JSON
//
// Every release writes it so up to the release, so that one that can't read the rest can say who can. Of Rules the JSON, whose
// length stands before it as a uvarint, is followed by the change's body as it is; of Adopt by documents.
const (
	foundKind = 1 + iota
	emptyKind
	ringKind
	leaveKind
	settledKind
	endedKind
	forgetKind
	rulesKind
	bootKind
	reignKind
	primaryKind
	regionKind
	markKind
	adoptKind
	skippedKind
	raiseKind
)

const (
	entryMark   = 0xe7 // no kind has this number: entries once began with their kind
	entryFormat = 1

	maxHead = 64 << 10 // bytes of the JSON of Rules
)

// ErrEntry: an entry can't be written.
var ErrEntry = errors.New("not an entry")

// rulesHead is Rules without the body.
type rulesHead struct {
	Request   RequestID  `json:"request"`
	Part      rules.Part `json:"part"`
	Name      string     `json:"name,omitempty"`
	Attribute string     `json:"attribute,omitempty"`
	Delete    bool       `json:"delete,omitempty"`
	IfMatch   int64      `json:"if_match,omitempty"`
	OnlyFirst bool       `json:"only_first,omitempty"`
	By        string     `json:"by,omitempty"`
	When      int64      `json:"when"` // Unix milliseconds
}

// entryKind is one kind of entries.
type entryKind struct {
	is     func(Entry) bool
	decode func([]byte) (Entry, error)
}

func kindOfType[E Entry](decode func([]byte) (Entry, error)) entryKind {
	return entryKind{is: func(e Entry) bool { _, ok := e.(E); return ok }, decode: decode}
}

// plainKind is a kind that is all JSON.
func plainKind[E Entry]() entryKind { return kindOfType[E](decode[E]) }

// kinds are those that there are, by their number.
var kinds = [...]entryKind{
	foundKind:   plainKind[Found](),
	emptyKind:   kindOfType[Empty](decodeEmpty),
	ringKind:    plainKind[Ring](),
	leaveKind:   plainKind[Leave](),
	settledKind: plainKind[Settled](),
	endedKind:   plainKind[Ended](),
	forgetKind:  plainKind[Forget](),
	rulesKind:   kindOfType[Rules](decodeRules),
	bootKind:    plainKind[Boot](),
	reignKind:   plainKind[Reign](),
	primaryKind: plainKind[Primary](),
	regionKind:  plainKind[Region](),
	markKind:    plainKind[Mark](),
	adoptKind:   kindOfType[Adopt](adoptOrError),
	skippedKind: plainKind[Skipped](),
	raiseKind:   plainKind[Raise](),
}

// kindOf is the number of an entry's kind; below 1: it is no entry.
func kindOf(e Entry) int {
	return slices.IndexFunc(kinds[:], func(k entryKind) bool { return k.is != nil && k.is(e) })
}

// needs is the feature level that it takes to read an entry.
func needs(e Entry) Level {
	switch e := e.(type) {
	case Raise:
		return max(1, e.Level) // who does not know it stops here, and at nothing that comes later
	case Found:
		return max(1, e.Level)
	}
	return 1
}

// Encode writes an entry. The error wraps [ErrEntry].
func Encode(e Entry) ([]byte, error) { return This.Encode(e) }

// Encode writes an entry, signed. The error wraps [ErrEntry].
func (b *Build) Encode(e Entry) ([]byte, error) { return b.encode(e, nil) }

func (b *Build) encode(e Entry, terms *Terms) ([]byte, error) {
	kind := kindOf(e)
	if kind < 1 {
		return nil, fmt.Errorf("%w: %T", ErrEntry, e)
	}
	head := b.signature([]byte{entryMark, byte(kind), entryFormat}, needs(e))
	if head = wire.AppendBool(head, terms != nil); terms != nil {
		head = terms.append(head)
	}
	switch e := e.(type) {
	case Empty:
		return head, nil
	case Rules:
		return appendRules(head, e)
	case Adopt:
		return appendAdopt(head, e)
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	return append(head, text...), nil
}

func appendRules(b []byte, e Rules) ([]byte, error) {
	c := e.Change
	if !utf8.ValidString(c.Name) || !utf8.ValidString(c.Attribute) {
		// JSON would make another name of it.
		return nil, fmt.Errorf("%w: the name of a piece must be valid UTF-8", ErrEntry)
	}
	head, err := json.Marshal(rulesHead{
		Request: e.Request, Part: c.Part, Name: c.Name, Attribute: c.Attribute, Delete: c.Delete,
		IfMatch: e.IfMatch, OnlyFirst: e.OnlyFirst, By: e.By, When: e.When.UnixMilli(),
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrEntry, err)
	case len(head) > maxHead:
		return nil, fmt.Errorf("%w: what stands around the change has %d bytes, more than %d", ErrEntry, len(head), maxHead)
	case len(c.Body) > rules.MaxDocument:
		return nil, fmt.Errorf("%w: the change has %d bytes, more than %d", ErrEntry, len(c.Body), rules.MaxDocument)
	}
	b = slices.Grow(b, binary.MaxVarintLen64+len(head)+len(c.Body))
	return append(wire.AppendText(b, head), c.Body...), nil
}

// Decode is the inverse of [Encode]. The body of a change is a part of b. The error is an [*Unreadable] that wraps [ErrEntry].
func Decode(b []byte) (Entry, error) { return This.Decode(b) }

// Decode is the inverse of Encode, for entries that this build can read. The error is an [*Unreadable].
func (b *Build) Decode(entry []byte) (Entry, error) {
	w, err := b.decode(entry)
	return w.Entry, err
}

// written is an entry with what stands around it.
type written struct {
	Entry
	level   Level // that it takes to read it
	release string
	terms   *Terms // nil: none
}

func (b *Build) decode(entry []byte) (written, error) {
	if len(entry) < 3 || entry[0] != entryMark {
		return written{}, b.unreadable(0, "", fmt.Errorf("%w of a release with feature levels", ErrEntry))
	}
	d := wire.NewDecoder(entry[3:])
	level, release, err := decodeSignature(d)
	w := written{level: level, release: release}
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrEntry, err)
	case level > b.Level:
		err = fmt.Errorf("%w that is known here: kind %d", ErrEntry, entry[1])
	case entry[2] != entryFormat:
		err = fmt.Errorf("%w: unknown format %d of kind %d", ErrEntry, entry[2], entry[1])
	default:
		if w.terms = decodeTerms(d); d.Failed() {
			err = fmt.Errorf("%w: its terms are cut off, or unknown", ErrEntry)
		} else {
			w.Entry, err = decodeKind(entry[1], d.Rest())
		}
		if err == nil && needs(w.Entry) > level {
			err = fmt.Errorf("%w: it takes level %d and says %d", ErrEntry, needs(w.Entry), level)
		}
	}
	if err == nil && b.Lacks != nil && b.Lacks(fmt.Sprintf("%T", w.Entry)) {
		err = fmt.Errorf("%w: unknown kind %d", ErrEntry, entry[1])
	}
	if err != nil {
		return written{}, b.unreadable(level, release, err)
	}
	return w, nil
}

// Proposes returns why a leader must not propose an entry in a state, or nil: this build, or one that knows no more than
// the agreed level, could not read it.
func (b *Build) Proposes(s *State, entry []byte) error {
	w, err := b.decode(entry)
	if err != nil {
		return err
	}
	return s.mayBe(w.Entry, w.level)
}

func decodeKind(kind byte, b []byte) (Entry, error) {
	if int(kind) >= len(kinds) || kinds[kind].decode == nil {
		return nil, fmt.Errorf("%w: unknown kind %d", ErrEntry, kind)
	}
	return kinds[kind].decode(b)
}

func decodeEmpty(b []byte) (Entry, error) {
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes in an empty one", ErrEntry, len(b))
	}
	return Empty{}, nil
}

func decode[E Entry](b []byte) (Entry, error) {
	var e E
	if err := strict(b, &e); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrEntry, e, err)
	}
	return e, nil
}

func decodeRules(b []byte) (Entry, error) {
	d := wire.NewDecoder(b)
	head := d.View(maxHead)
	if d.Failed() {
		return nil, fmt.Errorf("%w: rules are cut off", ErrEntry)
	}
	var h rulesHead
	if err := strict(head, &h); err != nil {
		return nil, fmt.Errorf("%w: rules: %w", ErrEntry, err)
	}
	if h.Part > rules.ListPart {
		return nil, fmt.Errorf("%w: rules: unknown part %d", ErrEntry, h.Part)
	}
	return Rules{
		Request: h.Request,
		Change: rules.Change{
			Part: h.Part, Name: h.Name, Attribute: h.Attribute, Delete: h.Delete, Body: d.Rest(),
		},
		IfMatch: h.IfMatch, OnlyFirst: h.OnlyFirst, By: h.By, When: time.UnixMilli(h.When).UTC(),
	}, nil
}

// adoptOrError is decodeAdopt as an Entry.
func adoptOrError(b []byte) (Entry, error) {
	e, err := decodeAdopt(b)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// strict reads JSON and nothing else: a field that this build doesn't know would mean something to another one, and
// both would go different ways.
func strict(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind its end")
	}
	return nil
}
