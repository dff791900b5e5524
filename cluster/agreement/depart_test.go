package agreement

import (
	"errors"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// Departures are kept by ID, the last 1,024, with who and when, and survive a
// snapshot. A node in a ring can't depart.
func TestDepart(t *testing.T) {
	s := do(t, New(), ringOf(1, 1, 2, 3), RegisterProcess{Node: node(3), Boot: 7})
	if _, r := s.Apply(s.Index+1, encoded(t, Depart{Departure{Node: node(3)}})); !errors.Is(r.Err, ErrRejected) {
		t.Errorf("a node in the ring: got %v", r.Err)
	}
	s = do(t, s, EndNode{Node: node(3), Generation: 0},
		Depart{Departure{Node: node(3), Name: "n3", By: "ann", When: 1795834979654}},
		Forget{node(3)})
	b, err := s.AppendBinary(nil)
	if err == nil {
		s, err = ThisBuild.Parse(b)
	}
	expect.NoError(t, err)
	d := s.Departure(node(3))
	if d == nil || d.Boot != 7 || d.String() != "was removed by ann on 2026-11-28 03:02 UTC; start it with --rejoin" {
		t.Errorf("got %+v", d)
	}
	for i := range KeptDepartures {
		s = do(t, s, Depart{Departure{Node: node(10 + i), By: "bob", Left: true}})
	}
	if s.Departure(node(3)) != nil || len(s.Departed) != KeptDepartures {
		t.Errorf("got %d departures, with the first %v", len(s.Departed), s.Departure(node(3)))
	}
	s = do(t, s, Depart{Departure{Node: node(10), By: "cid"}})
	if len(s.Departed) != KeptDepartures || s.Departure(node(10)).By != "cid" ||
		s.Departed[KeptDepartures-1].Node != node(10) {
		t.Errorf("again: got %d departures, %+v", len(s.Departed), s.Departure(node(10)))
	}
}
