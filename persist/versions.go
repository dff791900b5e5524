package persist

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/rules"
)

// rules.db has one bucket. Its keys are version numbers, big endian; a value is
//
//	byte 0       format, 1
//	bytes 1–4    CRC32C of the key and of all that follows, little endian
//	bytes 5–8    length of the header, little endian
//	header       JSON
//	payload      the document's text, or the body of the change that led from the version before
//
// Small changes are stored as such: fifty copies of a document of 8 MiB would be 400 MiB. The first entry always
// has a whole document.
var versionsBucket = []byte("versions")

const (
	entryFormat = 1
	entryHeader = 9
	maxHeader   = 16 << 10 // bytes of JSON
)

// link is a version and how it is stored.
type link struct {
	Version
	full   bool // a whole document
	stored int  // bytes of the payload
}

type header struct {
	When time.Time `json:"when"`
	By   string    `json:"by"`
	What string    `json:"what"`
	Size int       `json:"size"`
	// Of a whole document, or else of a change.
	Full   bool        `json:"full,omitempty"`
	Change *changeHead `json:"change,omitempty"`
}

// changeHead is a change without its body.
type changeHead struct {
	Part      string `json:"part"`
	Attribute string `json:"attribute,omitempty"`
	Name      string `json:"name"`
	Delete    bool   `json:"delete,omitempty"`
}

// partName is a part's name on disk.
func partName(p rules.Part) string {
	switch p {
	case rules.RulePart:
		return "rule"
	case rules.TierPart:
		return "tier"
	case rules.SubjectPart:
		return "subject"
	case rules.ListPart:
		return "list"
	}
	return "document"
}

func (h *changeHead) change() (rules.Change, bool) {
	for _, part := range []rules.Part{rules.RulePart, rules.TierPart, rules.SubjectPart, rules.ListPart} {
		if partName(part) == h.Part {
			return rules.Change{Part: part, Name: h.Name, Attribute: h.Attribute, Delete: h.Delete}, true
		}
	}
	return rules.Change{}, false
}

type entry struct {
	link
	change  rules.Change // without its body
	payload []byte
}

func versionKey(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// plan decides how a version is stored: as a whole document if it is one, if replaying would get long, or if the
// changes since the last one are larger than a document.
func (r *Rules) plan(v Version, doc *rules.Document, change rules.Change) (link, []byte) {
	l := link{Version: v, full: change.Part == rules.WholeDocument, stored: len(change.Body)}
	if l.full {
		return l, change.Body
	}
	changes, size, document := 0, len(change.Body), 0
	for i := len(r.chain) - 1; i >= 0; i-- {
		if r.chain[i].full {
			document = r.chain[i].stored
			break
		}
		changes++
		size += r.chain[i].stored
	}
	// The first version has nothing to be replayed from.
	must := len(r.chain) == 0
	if must || changes+1 >= fullEvery || size > max(document, 4096) {
		text, err := doc.YAML()
		if err == nil {
			// An acknowledged version has to be readable again.
			_, err = rules.Parse(text)
		}
		if err == nil || must {
			return link{Version: v, full: true, stored: len(text)}, text
		}
		r.cfg.Logger.Warn("a version of the rules is stored as a change", "version", v.Number, "error", err)
	}
	return l, change.Body
}

// trim leaves out what is no longer kept and not needed to replay the first version that is.
func trim(chain []link) []link {
	for i := max(0, len(chain)-KeptVersions); i > 0; i-- {
		if chain[i].full {
			return chain[i:]
		}
	}
	return chain
}

// put writes the last of chain in one transaction, which also removes what chain no longer has: trimmed versions
// before, and behind a version left by a write that failed after all.
func (r *Rules) put(chain []link, value []byte) error {
	first, last := chain[0].Number, chain[len(chain)-1].Number
	return r.file.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(versionsBucket)
		var gone [][]byte
		c := b.Cursor()
		for k, _ := c.First(); k != nil; k, _ = c.Next() {
			if n := int64(binary.BigEndian.Uint64(k)); n < first || n > last {
				gone = append(gone, k)
			}
		}
		for _, k := range gone {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		return b.Put(versionKey(last), value)
	})
}

func encodeEntry(l link, change rules.Change, payload []byte) []byte {
	h := header{When: l.When, By: l.By, What: l.What, Size: l.Size, Full: l.full}
	if !l.full {
		h.Change = &changeHead{
			Part: partName(change.Part), Name: change.Name, Attribute: change.Attribute, Delete: change.Delete,
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		// Texts, numbers and a time of this century.
		panic(err)
	}
	b := make([]byte, 0, entryHeader+len(text)+len(payload))
	b = append(b, entryFormat, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	b = append(append(b, text...), payload...)
	binary.LittleEndian.PutUint32(b[1:], entrySum(versionKey(l.Number), b))
	return b
}

func entrySum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[5:])
}

// parseEntry is the inverse of encodeEntry. The payload is a part of value.
func parseEntry(key, value []byte) (entry, error) {
	var e entry
	if len(key) != 8 || len(value) < entryHeader || value[0] != entryFormat ||
		binary.LittleEndian.Uint32(value[1:]) != entrySum(key, value) {
		return e, errValue
	}
	n := binary.LittleEndian.Uint32(value[5:])
	if n > maxHeader || int(n) > len(value)-entryHeader {
		return e, errValue
	}
	var h header
	if err := json.Unmarshal(value[entryHeader:entryHeader+int(n)], &h); err != nil {
		return e, fmt.Errorf("%w: %w", errValue, err)
	}
	if h.Full == (h.Change != nil) {
		return e, errValue
	}
	e.payload = value[entryHeader+int(n):]
	if h.Change != nil {
		var ok bool
		if e.change, ok = h.Change.change(); !ok {
			return e, fmt.Errorf("%w: unknown part %q", errValue, h.Change.Part)
		}
	}
	e.link = link{
		Version: Version{Number: int64(binary.BigEndian.Uint64(key)), When: h.When, By: h.By, What: h.What, Size: h.Size},
		full:    h.Full, stored: len(e.payload),
	}
	return e, nil
}

// load reads and checks all entries, and puts the last version in force.
func (r *Rules) load() error {
	err := r.file.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(versionsBucket)
		if b == nil {
			return fmt.Errorf("%w: no versions in it", errPages)
		}
		return b.ForEach(func(k, v []byte) error {
			e, err := parseEntry(k, v)
			if err != nil {
				return fmt.Errorf("version %x: %w", k, err)
			}
			if n := len(r.chain); n > 0 && e.Number != r.chain[n-1].Number+1 || n == 0 && (!e.full || e.Number < 1) {
				return fmt.Errorf("version %d: %w: the ones before are missing", e.Number, errValue)
			}
			r.chain = append(r.chain, e.link)
			return nil
		})
	})
	if damaged(err) || errors.Is(err, errValue) {
		return r.corrupt(err)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", r.path, err)
	}
	if len(r.chain) == 0 {
		return nil
	}
	last := r.chain[len(r.chain)-1].Version
	doc, err := r.replay(last.Number)
	if err != nil {
		return err
	}
	set, err := rules.Compile(doc, last.Number)
	if err != nil {
		return fmt.Errorf("compile stored rules, version %d: %w", last.Number, err)
	}
	r.current.Store(&Current{Set: set, Document: doc, Version: last})
	return nil
}

// replay builds the document of version n from the last whole one before.
func (r *Rules) replay(n int64) (*rules.Document, error) {
	begin := int(n - r.chain[0].Number)
	for begin > 0 && !r.chain[begin].full {
		begin--
	}
	entries, err := r.entries(r.chain[begin].Number, n)
	if damaged(err) || errors.Is(err, errValue) {
		return nil, r.corrupt(err)
	}
	if err != nil {
		return nil, fmt.Errorf("read version %d of the rules: %w", n, err)
	}
	doc, err := rules.Parse(entries[0].payload)
	for _, e := range entries[1:] {
		if err != nil {
			break
		}
		e.change.Body = e.payload
		doc, err = doc.Apply(e.change)
	}
	if err != nil {
		return nil, fmt.Errorf("rebuild version %d of the rules: %w", n, err)
	}
	return doc, nil
}

// entries reads the entries from first to last. They are copies: parsing is slow, and a map may move.
func (r *Rules) entries(first, last int64) (out []entry, err error) {
	err = r.file.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(versionsBucket)
		for n := first; n <= last; n++ {
			e, err := parseEntry(versionKey(n), b.Get(versionKey(n)))
			if err != nil {
				return fmt.Errorf("version %d: %w", n, err)
			}
			e.payload = append([]byte(nil), e.payload...)
			out = append(out, e)
		}
		return nil
	})
	return out, err
}
