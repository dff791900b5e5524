package agreement

import (
	"testing"
	"time"
)

// TestSuspensions: a node's suspensions are counted, and its patience grows with them.
func TestSuspensions(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	world := func() *State {
		s := do(t, New(), found, RegisterProcess{Node: node(1), Boot: 11},
			RegisterProcess{Node: node(2), Boot: 21}, ringOf(1, 1, 2, 3))
		return s
	}
	end := func(s *State, why Reason, after time.Duration) *State {
		t.Helper()
		return do(t, s,
			EndNode{Node: node(2), Generation: s.Generation(node(2)), Reason: why, When: start.Add(after).UnixMilli()})
	}
	patience := func(s *State, want time.Duration) {
		t.Helper()
		if have := s.Processes[node(2)].Suspension.RejoinDelay(); have != want {
			t.Fatalf("the node must stay healthy for %s, want %s", have, want)
		}
	}
	t.Run("it doubles, up to ten minutes", func(t *testing.T) {
		s := world()
		patience(s, 0)
		for i, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
			s = end(s, Behind, time.Duration(i)*time.Minute)
			patience(s, want*time.Second)
		}
		patience(end(s, Unreachable, 7*time.Minute+time.Hour), 10*time.Second)
	})
	t.Run("many times", func(t *testing.T) {
		s := world()
		for range 50 {
			s = end(s, Behind, 0)
		}
		patience(s, 10*time.Minute)
	})
	t.Run("a killed process does not count", func(t *testing.T) {
		s := end(end(world(), Behind, 0), Silent, time.Minute)
		patience(s, 20*time.Second)
		s = do(t, s, RegisterProcess{Node: node(2), Boot: 22})
		patience(s, 10*time.Second)
		s = do(t, s, RegisterProcess{Node: node(2), Boot: 23})
		patience(s, 10*time.Second)
	})
	t.Run("one that lives on does", func(t *testing.T) { patience(end(world(), Silent, 0), 10*time.Second) })
	t.Run("without a reason, or removed, it does not", func(t *testing.T) {
		patience(end(end(world(), "", 0), Removed, 0), 0)
	})
	t.Run("by a planned move", func(t *testing.T) {
		s := do(t, world(), Leave{Epoch: 2, Node: node(2), Reason: Unreachable, When: start.UnixMilli()})
		patience(s, 10*time.Second)
		patience(do(t, world(), Leave{Epoch: 2, Node: node(2)}), 0)
	})
	t.Run("who is forgotten has none", func(t *testing.T) {
		patience(do(t, end(world(), Behind, 0), Forget{Node: node(2)}), 0)
	})
}

// TestRemovedProcesses: a process that an operator removed is remembered for long, and no other is.
func TestRemovedProcesses(t *testing.T) {
	s := do(t, New(), found, RegisterProcess{Node: node(2), Boot: 21}, ringOf(1, 1, 2, 3))
	s = do(t, s, EndNode{Node: node(2), Generation: 0, Reason: Removed})
	s = do(t, s, Forget{Node: node(2)})
	if !s.WasRemoved(21) || s.WasRemoved(22) {
		t.Fatal("the process is not known")
	}
	for i := range KeptRemoved {
		s = do(t, s, RegisterProcess{Node: node(4), Boot: uint64(1000 + i)})
		s = do(t, s, EndNode{Node: node(4), Generation: s.Generation(node(4)), Reason: Removed})
	}
	if s.WasRemoved(21) || !s.WasRemoved(1000) || len(s.Removed) != KeptRemoved {
		t.Fatalf("%d processes are known", len(s.Removed))
	}
}
