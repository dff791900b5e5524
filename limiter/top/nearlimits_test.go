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
// second, and at once when something does.
func TestNear_SameNoteAgain(t *testing.T) {
	n := NewNearLimits()
	hit := &rules.Hit{Rule: &rules.Rule{Name: "r"}, Subject: rules.Hash{Hi: 1, Lo: 2}}
	now := int64(time.Hour) // a multiple of noteEvery
	for _, step := range []struct {
		after     time.Duration
		used      int64
		wantUntil time.Duration // after time.Hour
	}{
		{0, 5, time.Second},
		{time.Millisecond, 5, time.Second},
		{2 * time.Millisecond, 4, 1002 * time.Millisecond},
		{3 * time.Millisecond, 5, 1003 * time.Millisecond},
		{100 * time.Millisecond, 5, 1100 * time.Millisecond},
	} {
		n.Note(hit, Nearness{Used: step.used, Limit: 5, ResetAfter: time.Second}, now+int64(step.after), key{})

		subjects := n.Subjects(now + int64(step.wantUntil) - 1)
		if len(subjects) != 1 || subjects[0].Used != step.used {
			t.Errorf("after %v: got %+v, want one that used %d", step.after, subjects, step.used)
		}
		subjects = n.Subjects(now + int64(step.wantUntil))
		if len(subjects) != 0 {
			t.Errorf("after %v: got %+v at %v, want none", step.after, subjects, step.wantUntil)
		}
	}
}
