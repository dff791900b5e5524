package top

import (
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// maxPartBytes bounds a Part as a message. The last subjects are dropped.
	maxPartBytes = 4 << 20
	maxKeyParts  = 32
	maxTextBytes = 1 << 20
)

// Part is one node's part of a list, which it sends to another node.
type Part struct{ Subjects []Subject }

// NewPart sorts subjects, which are all that one node keeps, by the order of
// list by. It returns as many of the first ones as fit a message.
func NewPart(by By, subjects []Subject) *Part {
	sortSubjects(subjects, by, false)
	size := 0
	for i := range subjects {
		size += len(subjects[i].Rule) + len(strings.Join(subjects[i].Key, "")) + 64
		if size > maxPartBytes {
			return &Part{subjects[:i]}
		}
	}
	return &Part{subjects}
}

// Code implements wire.Message.
func (part *Part) Code(c *wire.Coder) {
	wire.List(c, &part.Subjects, maxKept, 7, func(subj *Subject) { subj.code(c) })
}

func (subj *Subject) code(c *wire.Coder) {
	c.Text(&subj.Rule, maxTextBytes)
	subj.Rule = strings.ToValidUTF8(subj.Rule, "\uFFFD")
	c.Texts(&subj.Key, maxKeyParts, maxTextBytes)
	for _, n := range []*int64{&subj.Count, &subj.Checks, &subj.Recent, &subj.Used, &subj.Limit} {
		wire.Number(c, n, 1<<62)
	}
}
