package entries

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of entries.
const (
	MaxEntries   = 100_000
	MaxBytes     = 32 << 20 // of all entries together, as Entry.size counts them
	MaxNote      = 256      // printable characters
	MaxValue     = 1024     // bytes of an attribute's value
	MaxEntrySize = 64 << 10 // bytes of one entry
	MaxChanges   = 10_000   // kept in the log
	// MaxLogBytes bounds what the log keeps in memory beside the state's entries.
	MaxLogBytes = 32 << 20

	// At most half of MaxEntries may have an end, and at most a quarter may have
	// an end and the same token.
	maxExpiring        = MaxEntries / 2
	maxExpiringOfToken = MaxEntries / 4
	maxName            = 128 // bytes of an attribute, a rule or a tier
	maxAuthor          = 128 // bytes
	entryBytes         = 64  // what an entry takes besides its texts
	maxParts           = 32  // attributes of an entry, and values of a key
)

// Kind says what an entry does.
type Kind uint8

// The kinds of entries.
const (
	Deny    Kind = iota + 1 // checks that meet all conditions are refused
	Allow                   // checks that meet all conditions are allowed, unless something denies them
	Subject                 // a subject has another tier, or its own limits for some rules
	Block                   // a rule refuses a subject
	kinds
)

var kindNames = [kinds]string{Deny: "deny", Allow: "allow", Subject: "subject", Block: "block"}

// String returns the kind's name, as in JSON.
func (k Kind) String() string {
	if k >= kinds {
		return ""
	}
	return kindNames[k]
}

// ParseKind returns the kind with a name, or 0.
func ParseKind(name string) Kind {
	for k := Deny; k < kinds; k++ {
		if kindNames[k] == name {
			return k
		}
	}
	return 0
}

// MarshalText returns the kind's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (k *Kind) UnmarshalText(text []byte) error {
	*k = ParseKind(string(text))
	if *k == 0 {
		return fmt.Errorf("there is no kind of entry %.32q", text)
	}
	return nil
}

// Condition requires that an attribute has one of several values.
type Condition struct {
	Attribute string   `json:"attribute"`
	Values    []string `json:"values"`
}

// Entry is one entry. Its fields are canonical: two entries of one kind about
// the same checks or the same subject have the same [Entry.ID]. It is immutable
// once it is part of a State.
type Entry struct {
	Kind Kind `json:"kind"`

	// Match is for Deny and Allow. All conditions must hold. They are sorted by
	// attribute, and their values are sorted, too.
	Match []Condition `json:"match,omitempty"`

	// The next four are for Subject. Limits is a JSON object: by rule, the limits
	// that replace the rule's own.
	Attribute string          `json:"attribute,omitempty"`
	Value     string          `json:"value,omitempty"`
	Tier      string          `json:"tier,omitempty"`
	Limits    json.RawMessage `json:"limits,omitempty"`

	// The next two are for Block. Key holds the values of the rule's key
	// attributes, as the rule counts them.
	Rule string   `json:"rule,omitempty"`
	Key  []string `json:"key,omitempty"`

	When  int64  `json:"when"`            // when it was written, by the leader's clock, in Unix ms
	Until int64  `json:"until,omitempty"` // its end, in Unix ms; 0: it has none
	By    string `json:"by,omitempty"`    // who wrote it
	Note  string `json:"note,omitempty"`
	Token string `json:"token,omitempty"` // name of the token that wrote it
	// Scoped means that a token with the scope entries, but not admin, wrote the
	// entry.
	Scoped bool `json:"scoped,omitempty"`

	id string // see ID; empty until it is part of a State
}

// ErrInvalid means that an entry, or a change of one, breaks a bound.
var ErrInvalid = errors.New("not a valid entry")

// ID returns the entry's identity: its kind, and the checks or the subject that
// it is about.
func (e *Entry) ID() string {
	if e.id != "" {
		return e.id
	}

	var about any
	switch e.Kind {
	case Subject:
		about = [2]string{e.Attribute, e.Value}
	case Block:
		about = append([]string{e.Rule}, e.Key...)
	default:
		about = e.Match
	}

	text, _ := json.Marshal(about) // strings and numbers can't fail
	return e.Kind.String() + string(text)
}

// String says for people what the entry is about, as in: deny ip="192.0.2.7".
func (e *Entry) String() string {
	text := e.Kind.String()
	switch e.Kind {
	case Subject:
		return fmt.Sprintf("%s %s=%q", text, e.Attribute, e.Value)
	case Block:
		return fmt.Sprintf("%s of %q by rule %s", text, e.Key, e.Rule)
	}

	for _, c := range e.Match {
		text += fmt.Sprintf(" %s=%q", c.Attribute, strings.Join(c.Values, ","))
	}
	return text
}

// Forever stands for the end of an entry that has none: the last millisecond of the year 9999.
const Forever = 253402300799999

// IsOver reports whether the entry has ended by a time, in Unix ms.
func (e *Entry) IsOver(now int64) bool { return e.Until != 0 && e.Until <= now }

// End returns the entry's end, or the zero time if it has none.
func (e *Entry) End() time.Time {
	if e.Until == 0 {
		return time.Time{}
	}
	return time.UnixMilli(e.Until).UTC()
}

// size returns about how many bytes the entry takes.
func (e *Entry) size() int {
	return entryBytes + 2*len(e.ID()) + len(e.Tier) + len(e.Limits) + len(e.By) + len(e.Note) + len(e.Token)
}

// Check returns an error that wraps ErrInvalid if e breaks a bound. It looks up
// no names of rules or tiers.
func (e *Entry) Check() error {
	if e.Kind == 0 || e.Kind >= kinds {
		return fmt.Errorf("%w: its kind is %d", ErrInvalid, e.Kind)
	}

	if err := CheckNote(e.Note); err != nil {
		return err
	}

	if len(e.By) > maxAuthor || len(e.Token) > maxAuthor || len(e.Tier) > maxName ||
		len(e.Attribute) > maxName || len(e.Rule) > maxName {
		return fmt.Errorf("%w: a name is longer than %d bytes", ErrInvalid, maxName)
	}

	if e.When < 0 || e.Until < 0 {
		return fmt.Errorf("%w: a time before 1970", ErrInvalid)
	}

	if err := e.checkValues(); err != nil {
		return err
	}

	if n := e.size(); n > MaxEntrySize {
		return fmt.Errorf("%w: it takes %d bytes, more than %d", ErrInvalid, n, MaxEntrySize)
	}

	return e.checkKind()
}

// checkValues checks the bounds of all values.
func (e *Entry) checkValues() error {
	values := append([]string{e.Value}, e.Key...)
	for _, c := range e.Match {
		if c.Attribute == "" || len(c.Attribute) > maxName || len(c.Values) == 0 {
			return fmt.Errorf("%w: a condition has no attribute or no value", ErrInvalid)
		}
		values = append(values, c.Values...)
	}

	if len(e.Match) > maxParts || len(e.Key) > maxParts {
		return fmt.Errorf("%w: more than %d attributes", ErrInvalid, maxParts)
	}

	for _, v := range values {
		if len(v) > MaxValue || !utf8.ValidString(v) {
			return fmt.Errorf("%w: a value must have at most %d bytes of UTF-8", ErrInvalid, MaxValue)
		}
	}

	return nil
}

// checkKind checks that e has the fields that its kind needs, and no others. It
// does not look at Value.
func (e *Entry) checkKind() error {
	list := len(e.Match) > 0
	subject := e.Attribute != "" && (e.Tier != "" || len(e.Limits) > 0)
	hasBlockFields := e.Rule != "" || len(e.Key) > 0

	switch e.Kind {
	case Subject:
		if !subject || list || hasBlockFields {
			return fmt.Errorf("%w: a subject has an attribute, and a tier or limits", ErrInvalid)
		}
	case Block:
		if e.Rule == "" || list || e.Attribute != "" || e.Tier != "" || len(e.Limits) > 0 {
			return fmt.Errorf("%w: a block has a rule and a key", ErrInvalid)
		}
	default:
		if !list || hasBlockFields || e.Attribute != "" || e.Tier != "" || len(e.Limits) > 0 {
			return fmt.Errorf("%w: a list's entry has conditions", ErrInvalid)
		}
	}

	if len(e.Limits) > 0 && !json.Valid(e.Limits) {
		return fmt.Errorf("%w: its limits are not JSON", ErrInvalid)
	}

	return nil
}

// CheckNote returns an error that wraps ErrInvalid unless a note has at most
// 256 printable characters.
func CheckNote(note string) error {
	if utf8.RuneCountInString(note) > MaxNote || !utf8.ValidString(note) {
		return fmt.Errorf("%w: note must have at most %d characters", ErrInvalid, MaxNote)
	}
	for _, r := range note {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%w: note must have printable characters only", ErrInvalid)
		}
	}
	return nil
}

// withID returns a copy of e that remembers its ID.
func (e *Entry) withID() *Entry {
	out := *e
	out.id = e.ID()
	return &out
}
