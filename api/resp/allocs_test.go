package resp

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
)

// What a command allocates: a check that this node decides, nothing.
func TestAllocs(t *testing.T) {
	n := startNode(t, nil)
	for _, test := range []struct {
		name, input string
		most        float64
	}{
		{"CL.THROTTLE", words("CL.THROTTLE user:1 999999 1000000 3600"), 0},
		{"THROTTLE", words("THROTTLE user:1 999999 1000000 3600"), 0},
		{"RL.CHECK", words("RL.CHECK all"), 0},
		{"RL.CHECK of a key", words("RL.CHECK a u PEEK"), 0},
		{"a pipeline of 16", strings.Repeat(words("CL.THROTTLE user:1 999999 1000000 3600"), 16), 1},
		{"PING", words("PING"), 0},
	} {
		c := n.server.newSession(&api.Connection{})
		w := n.server.worker()
		c.worker = w
		input := []byte(test.input)
		got := testing.AllocsPerRun(100, func() {
			rest, err := c.executeAll(input)
			if len(rest) > 0 || err != nil || len(w.out.b) == 0 {
				t.Fatalf("%s: got %d bytes left, %v", test.name, len(rest), err)
			}
			w.out.b = w.out.b[:0]
		})
		t.Logf("%s: %v", test.name, got)
		if got > test.most {
			t.Errorf("%s: %v allocations, want at most %v", test.name, got, test.most)
		}
	}
}

func BenchmarkThrottle(b *testing.B) {
	n := startNode(b, nil)
	for name, times := range map[string]int{"single": 1, "16": 16} {
		b.Run(name, func(b *testing.B) {
			c := n.server.newSession(&api.Connection{})
			w := n.server.worker()
			c.worker = w
			input := []byte(strings.Repeat(words("CL.THROTTLE user:1 999999999 1000000 3600"), times))
			b.ReportAllocs()
			for range b.N {
				_, _ = c.executeAll(input)
				w.out.b = w.out.b[:0]
			}
		})
	}
}
