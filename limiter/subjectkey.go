package limiter

import (
	"strings"

	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/rules"
)

// CopySubjectKey implements top.KeySource.
func (q *Query) CopySubjectKey(key *top.Key, h *rules.Hit) {
	var buf [4]string
	key.Set(appendSubjectKey(buf[:0], h, q))
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
