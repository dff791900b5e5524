package limiter

import (
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	maxTop = 1000 // bounds the subjects that Top returns
	// maxTopKept bounds the subjects in one node's list: all that the node keeps.
	maxTopKept = topStripes * topCapacity
	// maxTopBytes bounds a node's list as sent. The subjects refused least are cut off.
	maxTopBytes = 4 << 20
	maxKeyParts = 32
)

// merged adds up what several nodes report of the same subject.
func merged(all []TopSubject) []TopSubject {
	at := make(map[string]int, len(all))
	out := all[:0]
	for _, s := range all {
		// The encoded lengths keep different keys from looking alike.
		name := string(wire.AppendTexts(wire.AppendText(nil, s.Rule), s.Key))
		if i, ok := at[name]; ok {
			out[i].Refused += s.Refused
			out[i].Checks += s.Checks
			out[i].Recent += s.Recent
			continue
		}
		at[name] = len(out)
		out = append(out, s)
	}
	return out
}

// fitting returns as much of the beginning of list as may be sent.
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

// topList is a node's list of subjects, as sent.
type topList struct{ list []TopSubject }

// Code implements wire.Message.
func (t *topList) Code(c *wire.Coder) {
	wire.List(c, &t.list, maxTopKept, 4, func(s *TopSubject) { s.code(c) })
}

// recentList is a node's list of subjects with what was refused of late, as sent.
type recentList topList

// Code implements wire.Message.
func (t *recentList) Code(c *wire.Coder) {
	wire.List(c, &t.list, maxTopKept, 5, func(s *TopSubject) {
		s.code(c)
		wire.Number(c, &s.Recent, 1<<62)
	})
}

func (s *TopSubject) code(c *wire.Coder) {
	const maxText = 1 << 20
	c.Text(&s.Rule, maxText)
	s.Rule = strings.ToValidUTF8(s.Rule, "\uFFFD")
	c.Texts(&s.Key, maxKeyParts, maxText)
	wire.Number(c, &s.Refused, 1<<62)
	wire.Number(c, &s.Checks, 1<<62)
}
