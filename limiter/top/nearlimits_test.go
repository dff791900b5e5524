package top

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/rules"
)

// TestNear_KeepsTheNearest: many subjects that hardly use anything do not push
// out one that is near to its limit.
func TestNear_KeepsTheNearest(t *testing.T) {
	n := NewNearLimits()
	rule := &rules.Rule{Name: "r"}
	note := func(subject uint64, used, limit int64, until time.Duration) {
		n.Note(&rules.Hit{Rule: rule, Subject: rules.Hash{Hi: subject, Lo: subject * nearStripes}},
			Nearness{Used: used, Limit: limit, ResetAfter: until}, 1, key{})
	}
	note(0, 4, 5, time.Hour)
	for i := range uint64(1000) {
		note(i+1, 1, 100, time.Hour)
	}
	list := Rank(n.Subjects(2), Options{By: Near, N: 1})
	if len(list) != 1 || list[0].Used != 4 {
		t.Errorf("got %+v, want the one that used 4 of 5", list)
	}
	note(5000, 0, 0, time.Hour) // a region without a share has used all
	list = Rank(n.Subjects(2), Options{By: Near, N: 1})
	if list[0].Limit != 0 {
		t.Errorf("got %+v, want the limit of 0 first", list)
	}
	list = n.Subjects(int64(2 * time.Hour))
	if len(list) != 0 {
		t.Errorf("later: got %+v, want none", list)
	}
}

// TestNear_SameNoteAgain: while nothing changes, a subject is noted ten times a
// second, and at once when something does. Else one that is at its limit would
// be missing from the end of one window to the next tenth of a second.
func TestNear_SameNoteAgain(t *testing.T) {
	n := NewNearLimits()
	hit := &rules.Hit{Rule: &rules.Rule{Name: "r"}, Subject: rules.Hash{Hi: 1, Lo: 2}}
	start := int64(time.Hour) // a multiple of noteEvery
	const ms = time.Millisecond
	for _, step := range []struct {
		what         string
		after, until time.Duration // of the note and its expiry, since start
		used, limit  int64
		wantNoted    bool
	}{
		{"the first note", 0, 20 * ms, 5, 5, true},
		{"the same", 1 * ms, 20 * ms, 5, 5, false},
		{"the same but for the clock's grain", 1 * ms, 20*ms + 1, 5, 5, false},
		{"less is used", 2 * ms, 20 * ms, 4, 5, true},
		{"more is used", 3 * ms, 20 * ms, 5, 5, true},
		{"another limit", 4 * ms, 20 * ms, 5, 6, true},
		{"as much is used, in the next window", 21 * ms, 40 * ms, 5, 6, true},
		{"the same in the next window", 22 * ms, 40 * ms, 5, 6, false},
		{"the same, for a whole minute more", 23 * ms, time.Minute, 5, 6, true},
		{"the same a tenth of a second later", 100 * ms, time.Minute, 5, 6, true},
	} {
		entries := n.stripe[hit.Subject.Lo].entries
		for i := range entries {
			entries[i].rule = "noted before"
		}

		near := Nearness{Used: step.used, Limit: step.limit, ResetAfter: step.until - step.after}
		n.Note(hit, near, start+int64(step.after), key{})

		subjects := n.Subjects(start + int64(step.after))
		if len(subjects) != 1 || subjects[0].Used != step.used || subjects[0].Limit != step.limit {
			t.Errorf("%s: got %+v, want one that used %d of %d", step.what, subjects, step.used, step.limit)
			continue
		}
		if noted := subjects[0].Rule == "r"; noted != step.wantNoted {
			t.Errorf("%s: got noted: %v, want %v", step.what, noted, step.wantNoted)
		}
	}
}
