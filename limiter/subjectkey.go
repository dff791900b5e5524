package limiter

import (
	"strings"

	"github.com/rlnode/rlnode/rules"
)

// keptKey is a subject's key. The next subject in its place takes over the
// memory: a list that very many subjects pass through must not allocate for
// each.
type keptKey struct {
	text  []byte // the values, one after another
	ends  []int  // of the values
	known bool   // false if the call did not say the key
}

// set makes k the key of h's subject.
func (k *keptKey) set(h *rules.Hit, q *Query) {
	var buf [4]string
	key := appendSubjectKey(buf[:0], h, q)
	k.known = key != nil
	k.text = k.text[:0]
	k.ends = k.ends[:0]
	for _, value := range key {
		k.text = append(k.text, value...)
		k.ends = append(k.ends, len(k.text))
	}
}

// values returns a copy of the key.
func (k *keptKey) values() []string {
	if !k.known {
		return nil
	}

	key := make([]string, len(k.ends))
	from := 0
	for i, to := range k.ends {
		key[i] = string(k.text[from:to])
		from = to
	}

	return key
}

// subjectKey returns a copy of the key of h's subject; nil if q lacks it.
func subjectKey(h *rules.Hit, q *Query) []string {
	key := appendSubjectKey([]string{}, h, q)
	for i := range key {
		key[i] = strings.Clone(key[i])
	}
	return key
}

// appendSubjectKey appends the key of h's subject, or returns nil if q does not
// say it. The strings belong to q's caller.
func appendSubjectKey(out []string, h *rules.Hit, q *Query) []string {
	switch {
	case len(q.Subjects) > 0:
		return subjectKeyOf(h, q.Subjects)
	case q.ByKey:
		return h.Rule.AppendNormalKey(out, q.Key)
	}
	return h.Rule.AppendSubjectOf(out, q.Attributes)
}

// subjectKeyOf returns the key of h's subject, which is one of subjects. It
// returns nil if the call does not say the key.
func subjectKeyOf(h *rules.Hit, subjects []Subject) []string {
	for i := range subjects {
		subj := &subjects[i]
		if subj.Node != nil && subj.Node.Subject(subj.Entries) == h.Subject {
			return shortenValues(subj.Node.Key(subj.Entries))
		}
		if !h.Rule.Inline || subj.Node != nil {
			continue
		}
		if key := h.Rule.InlineKey(&subj.InlineSubject, h.Subject.Hi); key != nil {
			return key
		}
	}

	return nil
}

// maxShown bounds a descriptor's values when shown, in bytes.
const maxShown = 256

// shortenValues copies a descriptor's values, in a form that can be shown: they
// may be as long as a request, and need not be valid text.
func shortenValues(key []string) []string {
	for i, v := range key {
		if len(v) > maxShown {
			v = v[:maxShown] + "…"
		}
		key[i] = strings.ToValidUTF8(strings.Clone(v), "\uFFFD")
	}
	return key
}
