package usage

import "testing"

func TestAddAllocatesNothing(t *testing.T) {
	c, _ := config(t.TempDir())
	m := open(t, c)
	m.count(november, "r", []string{"k"}, "requests", 1)
	known, unknown, wall := hashOf("r", "k"), hashOf("r", "other"), november.UnixNano()
	if n := testing.AllocsPerRun(1000, func() {
		if !m.Add(wall, known, "requests", 1, 1) || m.Add(wall, unknown, "requests", 1, 1) ||
			m.Add(wall, known, "tokens", 1, 1) {
			t.Error("Add found a row that was never entered, or missed one that was")
		}
	}); n != 0 {
		t.Errorf("have %v allocations for three, want 0", n)
	}
}
