package agreement

import (
	"errors"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestReign(t *testing.T) {
	s := do(t, New(), found, Reign{7}, ringOf(1, 1, 2, 3))
	tests := []struct {
		name string
		have Entry
		want bool // it is accepted
	}{
		{"a reign without a number", Reign{}, false},
		{"the same reign again", Reign{7}, true},
		{"an end decided in this reign", EndNode{Node: node(2), Reign: 7}, true},
		{"an end decided in another", EndNode{Node: node(2), Reign: 6}, false},
		{"an end by nobody's decision", EndNode{Node: node(2)}, true},
		{"a process named in this reign", RegisterProcess{Node: node(2), Boot: 1, Reign: 7}, true},
		{"a process named in another", RegisterProcess{Node: node(2), Boot: 1, Reign: 6}, false},
	}
	for _, tt := range tests {
		b, err := ThisBuild.Encode(tt.have)
		expect.NoError(t, err)
		next, result := s.Apply(s.Index+1, b)
		if (result.Err == nil) != tt.want || result.Err != nil && !errors.Is(result.Err, ErrRejected) {
			t.Errorf("%s: have %v, want it accepted: %v", tt.name, result.Err, tt.want)
		}
		if !tt.want &&
			(next.Revision != s.Revision || next.Reign != s.Reign || next.LastEnded != 0 || len(next.Processes) > 0) {
			t.Errorf("%s: it was rejected and changed something", tt.name)
		}
	}
	back := reread(t, do(t, s, Reign{8}, RegisterProcess{Node: node(2), Boot: 1, Reign: 8}))
	expect.Equal(t, back.Reign, 8, "reign after a snapshot")
}

func TestFormerProcessesNeverComeBack(t *testing.T) {
	s := do(t, New(), found)
	const all = maxFormer + 4
	for boot := range uint64(all) {
		s = do(t, s, RegisterProcess{Node: node(1), Boot: boot + 1})
	}
	s = reread(t, s)
	have := s.Processes[node(1)]
	if have.Boot != all || have.Index != s.Index || len(have.Former) != maxFormer {
		t.Fatalf("have %+v", have)
	}
	for boot := uint64(all - maxFormer); boot < all; boot++ {
		b, _ := ThisBuild.Encode(RegisterProcess{Node: node(1), Boot: boot})
		if next, r := s.Apply(s.Index+1, b); !errors.Is(r.Err, ErrRejected) ||
			next.Boot(node(1)) != all || !have.WasFormer(boot) {
			t.Errorf("process %d: have %v, want it rejected", boot, r.Err)
		}
	}
	if have.WasFormer(all) || have.WasFormer(1) || (Process{}).WasFormer(0) {
		t.Error("a process is called a former one that isn't among the last")
	}
	// Repeating it changes nothing, not even the index that must be applied.
	expect.Equal(t, do(t, s, RegisterProcess{Node: node(1), Boot: all}).Processes[node(1)].Index, have.Index, "index")
}
