package agreement

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/rules"
)

// An entry is written as a byte for its kind, a byte for the format of this kind, and JSON. Of Rules the JSON, whose
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
)

const (
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

// Encode writes an entry. The error wraps [ErrEntry].
func Encode(e Entry) ([]byte, error) {
	var kind byte
	switch e := e.(type) {
	case Found:
		kind = foundKind
	case Empty:
		return []byte{emptyKind, entryFormat}, nil
	case Ring:
		kind = ringKind
	case Leave:
		kind = leaveKind
	case Settled:
		kind = settledKind
	case Ended:
		kind = endedKind
	case Forget:
		kind = forgetKind
	case Boot:
		kind = bootKind
	case Reign:
		kind = reignKind
	case Primary:
		kind = primaryKind
	case Region:
		kind = regionKind
	case Mark:
		kind = markKind
	case Rules:
		return encodeRules(e)
	case Adopt:
		return appendAdopt([]byte{adoptKind, entryFormat}, e)
	default:
		return nil, fmt.Errorf("%w: %T", ErrEntry, e)
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	return append([]byte{kind, entryFormat}, text...), nil
}

func encodeRules(e Rules) ([]byte, error) {
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
	b := make([]byte, 0, 2+binary.MaxVarintLen64+len(head)+len(c.Body))
	b = append(b, rulesKind, entryFormat)
	b = binary.AppendUvarint(b, uint64(len(head)))
	return append(append(b, head...), c.Body...), nil
}

// Decode is the inverse of [Encode]. The body of a change is a part of b. The error wraps [ErrEntry].
func Decode(b []byte) (Entry, error) {
	if len(b) < 2 || b[1] != entryFormat {
		return nil, fmt.Errorf("%w: unknown format", ErrEntry)
	}
	kind, b := b[0], b[2:]
	switch kind {
	case foundKind:
		return decode[Found](b)
	case emptyKind:
		if len(b) > 0 {
			return nil, fmt.Errorf("%w: %d bytes in an empty one", ErrEntry, len(b))
		}
		return Empty{}, nil
	case ringKind:
		return decode[Ring](b)
	case leaveKind:
		return decode[Leave](b)
	case settledKind:
		return decode[Settled](b)
	case endedKind:
		return decode[Ended](b)
	case forgetKind:
		return decode[Forget](b)
	case bootKind:
		return decode[Boot](b)
	case reignKind:
		return decode[Reign](b)
	case primaryKind:
		return decode[Primary](b)
	case regionKind:
		return decode[Region](b)
	case markKind:
		return decode[Mark](b)
	case rulesKind:
		return decodeRules(b)
	case adoptKind:
		return adoptOrError(b)
	}
	return nil, fmt.Errorf("%w: unknown kind %d", ErrEntry, kind)
}

func decode[E Entry](b []byte) (Entry, error) {
	var e E
	if err := strict(b, &e); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrEntry, e, err)
	}
	return e, nil
}

func decodeRules(b []byte) (Entry, error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > maxHead || n > uint64(len(b)-size) {
		return nil, fmt.Errorf("%w: rules are cut off", ErrEntry)
	}
	var h rulesHead
	if err := strict(b[size:size+int(n)], &h); err != nil {
		return nil, fmt.Errorf("%w: rules: %w", ErrEntry, err)
	}
	if h.Part > rules.ListPart {
		return nil, fmt.Errorf("%w: rules: unknown part %d", ErrEntry, h.Part)
	}
	return Rules{
		Request: h.Request,
		Change: rules.Change{
			Part: h.Part, Name: h.Name, Attribute: h.Attribute, Delete: h.Delete, Body: b[size+int(n):],
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
