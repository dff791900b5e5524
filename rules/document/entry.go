package document

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/yaml"
	"github.com/rlnode/rlnode/rules/entries"
)

// EntryForm is an entry that a caller wants, without its time and author.
type EntryForm struct {
	*entries.Entry
	For time.Duration // how long it holds; 0: until Entry.Until, or without an end

	stored bool // its time and author are read, too
}

// maxFor bounds EntryForm.For.
const maxFor = 100 * 366 * day

// metaFields are the fields that entries have besides attributes. Entries can't
// have attributes of these names.
var metaFields = [...]string{"for", "until", "note", "by", "when", "origin"}

// ReadListed reads an entry of a list, Deny or Allow: attributes as in the
// document, and for, until and note. The error is of type [Errors], with
// positions in body, or wraps entries.ErrInvalid.
func (d *Document) ReadListed(kind entries.Kind, body []byte) (EntryForm, error) {
	f := EntryForm{Entry: &entries.Entry{Kind: kind}}
	n, err := f.readMeta(body)
	if err != nil {
		return f, err
	}
	r := &decoder{declared: d.declared, path: []byte("lists." + kind.String())}
	f.Match = canonicalMatch(d.declared, r.conditions(n))
	return f, cmp.Or(r.err(), r.typed(), f.Entry.Check())
}

// ReadSubject reads what an entry says about a subject: a tier, limits for some
// rules, for, until and note. The error is of type [Errors], with positions in
// body, or wraps entries.ErrInvalid. It is an error to name a tier or a rule
// that d does not have, and to change the limits of a global rule.
func (d *Document) ReadSubject(attribute, value string, body []byte) (EntryForm, error) {
	f := EntryForm{Entry: &entries.Entry{Kind: entries.Subject, Attribute: attribute}}
	n, err := f.readMeta(body)
	if err != nil {
		return f, err
	}

	path := keyPath("subjects", attribute)
	r := &decoder{declared: d.declared, path: []byte(path)}
	r.checkName(yaml.Text(attribute), attribute)
	r.path = appendKey(r.path, value)
	spec := r.subject(attribute, yaml.Text(value), n)
	newChecker(d, &r.collector).checkSubject(path, attribute, spec)
	d.checkDivision(&r.collector, string(r.path), attribute, spec)
	if err := r.err(); err != nil {
		return f, err
	}

	f.take(spec)
	return f, f.Entry.Check()
}

// take copies what spec says about a subject into f.
func (f *EntryForm) take(spec *SubjectSpec) {
	f.Value = spec.Value
	f.Tier = spec.Tier
	if len(spec.Overrides) > 0 {
		f.Limits = spec.node().Get("limits").AppendJSON(nil)
	}
}

// checkDivision reports what in spec would change how regions divide a limit.
func (d *Document) checkDivision(errs *collector, path, attribute string, spec *SubjectSpec) {
	for _, r := range d.Rules {
		if r.Scope != "global" || !r.keyHas(attribute) {
			continue
		}
		override := slices.ContainsFunc(spec.Overrides, func(o Override) bool { return o.Rule == r.Name })
		if override || r.Tiered && spec.Tier != "" {
			errs.add(yaml.Pos{}, path,
				"regions divide the limits of rule %q (scope: global), and an entry can't change that: write it in the document",
				r.Name)
		}
	}
}

// SubjectForm returns a form that only names a subject.
func (d *Document) SubjectForm(attribute, value string) EntryForm {
	return EntryForm{Entry: &entries.Entry{Kind: entries.Subject, Attribute: attribute,
		Value: d.Canonical(attribute, value)}}
}

// ReadBlock reads a block: rule, key (a text, or a list of them), for, until
// and note. It leaves Rule and Key as they are written, whether or not a
// document has them. The error is as for [Document.ReadListed].
func ReadBlock(body []byte) (EntryForm, error) {
	f := EntryForm{Entry: &entries.Entry{Kind: entries.Block}}
	n, err := f.readMeta(body)
	if err != nil {
		return f, err
	}
	d := &decoder{}
	f.readKey(d, n)
	return f, cmp.Or(d.err(), d.typed())
}

// readKey reads the rule and the key of a block.
func (f *EntryForm) readKey(d *decoder, n *yaml.Node) {
	d.eachField(n, []string{"rule", "key"}, func(i int, _, v *yaml.Node) {
		switch {
		case i == 0:
			f.Rule, _ = d.text(v)
		case v.Kind == yaml.List:
			d.eachItem(v, func(v *yaml.Node) {
				text, _ := d.value(v)
				f.Key = append(f.Key, text)
			})
		default:
			text, _ := d.value(v)
			f.Key = []string{text}
		}
	})

	if len(f.Key) > MaxAttributes {
		d.fail(n, "more than %d values in the key", MaxAttributes)
	}
}

// readMeta reads for, until and note of a body, and returns it without them.
func (f *EntryForm) readMeta(body []byte) (*yaml.Node, error) {
	n, err := parseText(body)
	if err != nil || n.Kind != yaml.Map {
		return n, err // the caller reports what is no map
	}

	rest := *n
	rest.Items = nil
	for key, v := range n.Pairs {
		if !slices.Contains(metaFields[:], key.Text) {
			rest.Items = append(rest.Items, key, v)
			continue
		}
		if err := f.readMetaField(key.Text, v); err != nil {
			return nil, err
		}
	}

	if f.For != 0 && f.Until != 0 {
		return nil, fmt.Errorf("%w: give for or until, not both", entries.ErrInvalid)
	}

	return &rest, nil
}

// readMetaField reads one of metaFields. Callers don't set by and when: only an
// entry that is stored has them.
func (f *EntryForm) readMetaField(name string, v *yaml.Node) (err error) {
	if f.stored {
		switch name {
		case "by":
			f.By = v.Text
			return nil
		case "when":
			f.When, err = readTime(name, v.Text)
			return err
		}
	}

	switch name {
	case "for":
		f.For, err = ParseDuration(v.Text)
		if err != nil || f.For < time.Millisecond || f.For > maxFor {
			return fmt.Errorf("%w: for must be a duration such as 30m, 24h or 7d, from 1ms to %s", entries.ErrInvalid,
				FormatDuration(maxFor))
		}
	case "until":
		f.Until, err = readTime(name, v.Text)
		return err
	case "note":
		if v.Kind == yaml.Map || v.Kind == yaml.List {
			return fmt.Errorf("%w: note must be text", entries.ErrInvalid)
		}
		f.Note = v.Text
		return entries.CheckNote(v.Text)
	default:
		return fmt.Errorf("%w: %s can't be an attribute of an entry; write it in the document",
			entries.ErrInvalid, name)
	}

	return nil
}

// readTime reads a time as Unix ms.
func readTime(name, text string) (int64, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.UnixMilli() < 1 || t.UnixMilli() > entries.Forever {
		return 0, fmt.Errorf("%w: %s must be a time such as 2026-11-28T12:00:00Z", entries.ErrInvalid, name)
	}
	return t.UnixMilli(), nil
}

// ReadStored reads an entry as [EntryJSON] renders it. It may name tiers and
// rules that no document has. The error is as for [Document.ReadListed].
func ReadStored(kind entries.Kind, body []byte) (*entries.Entry, error) {
	f := EntryForm{Entry: &entries.Entry{Kind: kind}, stored: true}
	n, err := f.readMeta(body)
	if err != nil {
		return nil, err
	}

	d := &decoder{}
	switch kind {
	case entries.Subject:
		f.readStoredSubject(d, n)
	case entries.Block:
		f.readKey(d, n)
	default:
		f.Match = canonicalMatch(nil, d.conditions(n))
	}
	return f.Entry, cmp.Or(d.err(), f.Entry.Check())
}

// readStoredSubject reads an entry of a subject with its attribute and value.
func (f *EntryForm) readStoredSubject(d *decoder, n *yaml.Node) {
	rest := *n
	rest.Items = nil
	for key, v := range n.Pairs {
		switch key.Text {
		case "attribute":
			f.Attribute, _ = d.text(v)
		case "value":
			f.Value, _ = d.value(v)
		default:
			rest.Items = append(rest.Items, key, v)
		}
	}

	spec := d.subject(f.Attribute, yaml.Text(f.Value), &rest)
	if d.err() == nil { // what has mistakes can't be encoded
		f.take(spec)
	}
}

// typed returns an error if a value was written as something that no check
// could send. Documents get only a warning for it: those that earlier releases
// accepted must stay readable.
func (dec *decoder) typed() error {
	if len(dec.loose.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", entries.ErrInvalid, dec.loose.errs[0])
}

// CheckValues returns an error of type [Errors] that names each attribute with
// a value that no check could have: an empty one, or in place of an address one
// that is neither an address nor a range nor a pattern. Documents may have such
// values, and an older entry with one can still be ended.
func (f *EntryForm) CheckValues() error {
	e := f.Entry
	errs := &collector{}
	check := func(path, attribute, value, what string) {
		_, isRange := ipaddr.ParsePrefix(value)
		switch {
		case value == "":
			errs.add(yaml.Pos{}, path,
				"the value is empty, which never matches: an attribute whose value is empty is absent")
		case HoldsAddresses(attribute) && !IsAddress(value) && !isRange && !strings.Contains(value, "*"):
			errs.add(yaml.Pos{}, path, "%q is %s", Shorten(value), what)
		}
	}

	for _, c := range e.Match {
		for _, v := range c.Values {
			check(keyPath("lists."+e.Kind.String(), c.Attribute), c.Attribute, v, "neither an address nor a CIDR")
		}
	}
	if e.Kind == entries.Subject {
		check(keyPath("subjects", e.Attribute), e.Attribute, e.Value, "not an address")
	}

	return errs.err()
}

// NamesOneValue reports whether e refuses one value exactly: an address, a /64
// of IPv6, or a text without *; or one subject of a rule.
func NamesOneValue(e *entries.Entry) bool {
	switch {
	case e.Kind == entries.Block:
		return true
	case e.Kind != entries.Deny || len(e.Match) != 1 || len(e.Match[0].Values) != 1:
		return false
	}
	c := e.Match[0]
	if p, ok := ipaddr.ParsePrefix(c.Values[0]); ok {
		return HoldsAddresses(c.Attribute) && p.Addr().Is6() && p.Bits() == 64
	}
	return strings.IndexByte(c.Values[0], '*') < 0
}

// EntryJSON renders an entry as callers see it: what it says, as in the
// document, and its end, note, author, time and origin. Without an origin, that
// is left out.
func EntryJSON(e *entries.Entry, origin string) []byte {
	n := entryNode(e)
	addMeta(n, e)
	if origin != "" {
		n.Set("origin", yaml.Text(origin))
	}
	return n.OnOneLine().AppendJSON(nil)
}

// entryNode renders what an entry says.
func entryNode(e *entries.Entry) *yaml.Node {
	switch e.Kind {
	case entries.Subject:
		spec, err := SubjectOf(e)
		if err != nil {
			spec = &SubjectSpec{Value: e.Value, Tier: e.Tier}
		}
		n := yaml.NewMap()
		n.Set("attribute", yaml.Text(e.Attribute))
		n.Set("value", yaml.Text(e.Value))
		n.Items = append(n.Items, spec.node().Items...)
		return n
	case entries.Block:
		n := yaml.NewMap()
		n.Set("rule", yaml.Text(e.Rule))
		if len(e.Key) == 1 {
			n.Set("key", yaml.Text(e.Key[0]))
		} else {
			n.Set("key", textsNode(e.Key))
		}
		return n
	}

	return conditionsNode(ConditionsOf(e))
}

// addMeta adds to n when an entry ends, and who wrote it when and why.
func addMeta(n *yaml.Node, e *entries.Entry) {
	if e.Until != 0 {
		n.Set("until", yaml.Text(formatMillis(e.Until)))
	}
	if e.Note != "" {
		n.Set("note", yaml.Text(e.Note))
	}
	n.Set("by", yaml.Text(e.By))
	n.Set("when", yaml.Text(formatMillis(e.When)))
}

// formatMillis formats a time in Unix ms for answers.
func formatMillis(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// SubjectOf reads an entry about a subject as a piece of a document.
func SubjectOf(e *entries.Entry) (*SubjectSpec, error) {
	spec := &SubjectSpec{Value: e.Value, Tier: e.Tier}
	if len(e.Limits) == 0 {
		return spec, nil
	}
	n, err := parseText(slices.Concat([]byte(`{"limits":`), e.Limits, []byte("}")))
	if err != nil {
		return nil, err
	}
	d := &decoder{}
	spec = d.subject(e.Attribute, yaml.Text(e.Value), n)
	spec.Tier = e.Tier
	return spec, d.err()
}
