package limiter

import (
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	maxTop = 1000 // subjects that Top lists
	// maxTopKept bounds the subjects of one node's list: all that it keeps.
	maxTopKept = topStripes * topCapacity
	// maxTopBytes bounds a node's list as it is sent; what does not fit any more was refused least.
	maxTopBytes = 4 << 20
	maxKeyParts = 32
)

// merged adds up what several nodes say of one subject.
func merged(all []TopSubject) []TopSubject {
	at := make(map[string]int, len(all))
	out := all[:0]
	for _, s := range all {
		// Lengths keep different keys from looking alike.
		name := string(wire.AppendTexts(wire.AppendText(nil, s.Rule), s.Key))
		if i, ok := at[name]; ok {
			out[i].Refused += s.Refused
			out[i].Checks += s.Checks
			continue
		}
		at[name] = len(out)
		out = append(out, s)
	}
	return out
}

// fitting are as many of the first of a list as may be sent.
func fitting(list []TopSubject) *topList {
	size := 0
	for i := range list {
		size += len(list[i].Rule) + len(strings.Join(list[i].Key, "")) + 64
		if size > maxTopBytes {
			return &topList{list[:i]}
		}
	}
	return &topList{list}
}

// topList is the subjects of a node, as it is sent.
type topList struct{ list []TopSubject }

// Code is for wire.Encode.
func (t *topList) Code(c *wire.Coder) {
	const maxText = 1 << 20
	wire.List(c, &t.list, maxTopKept, 4, func(s *TopSubject) {
		c.Text(&s.Rule, maxText)
		s.Rule = strings.ToValidUTF8(s.Rule, "\uFFFD")
		c.Texts(&s.Key, maxKeyParts, maxText)
		wire.Number(c, &s.Refused, 1<<62)
		wire.Number(c, &s.Checks, 1<<62)
	})
}
