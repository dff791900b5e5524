package resp

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
)

// What a command allocates: a check that this node decides, nothing.
// docs/redis.md states it. Where it is more, the bounds leave room for the race
// detector.
func TestAllocs(t *testing.T) {
	n := startNode(t, nil)
	for _, test := range []struct {
		name, input string
		most        float64
	}{
		{"CL.THROTTLE", words("CL.THROTTLE user:1 999999 1000000 3600"), 0},
		{"THROTTLE", words("THROTTLE user:1 999999 1000000 3600"), 0},
		{"RL.THROTTLE", words("RL.THROTTLE user:1 999999 1000000 3600"), 0},
		{"INCREX", words("INCREX user:1 UBOUND 999999 EX 3600 ENX"), 0},
		{"INCREX in lower case", words("increx user:1 byint 2 ubound 999999 px 3600000 enx"), 0},
		{"INCREX with SATURATE", words("INCREX user:1 UBOUND 999999 SATURATE EX 3600 ENX"), 7},
		{"INCREX that is refused", words("INCREX user:1 BYINT 999999 UBOUND 9 EX 3600 ENX"), 0},
		{"INCREX that lowers", words("INCREX user:1 BYINT -1 UBOUND 999999 EX 3600 ENX"), 65},
		{"TTL", words("TTL user:1"), 80},
		{"EXISTS of two", words("EXISTS user:1 user:2"), 150},
		{"DEL of none", words("DEL user:2"), 80},
		{"RL.CHECK", words("RL.CHECK all"), 0},
		{"RL.CHECK of a key", words("RL.CHECK a u PEEK"), 0},
		{"a pipeline of 16", strings.Repeat(words("CL.THROTTLE user:1 999999 1000000 3600"), 16), 1},
		{"PING", words("PING"), 0},
	} {
		c := n.server.newSession(&api.Connection{})
		ex := n.server.getExecution()
		c.execution = ex
		input := []byte(test.input)
		got := testing.AllocsPerRun(100, func() {
			rest, err := c.executeAll(input)
			if len(rest) > 0 || err != nil || len(ex.out.b) == 0 {
				t.Fatalf("%s: got %d bytes left, %v", test.name, len(rest), err)
			}
			ex.out.b = ex.out.b[:0]
		})
		t.Logf("%s: %v", test.name, got)
		if got > test.most {
			t.Errorf("%s: %v allocations, want at most %v", test.name, got, test.most)
		}
	}
}

func BenchmarkCommands(b *testing.B) {
	n := startNode(b, nil)
	throttle, increx := words("CL.THROTTLE user:1 999999999 1000000 3600"), words("INCREX user:1 UBOUND 999999999 EX 3600 ENX")
	for name, text := range map[string]string{
		"CL.THROTTLE": throttle, "CL.THROTTLE, 16 at a time": strings.Repeat(throttle, 16),
		"INCREX": increx, "INCREX, 16 at a time": strings.Repeat(increx, 16),
	} {
		b.Run(name, func(b *testing.B) {
			c := n.server.newSession(&api.Connection{})
			ex := n.server.getExecution()
			c.execution = ex
			input := []byte(text)
			b.ReportAllocs()
			for range b.N {
				_, _ = c.executeAll(input)
				ex.out.b = ex.out.b[:0]
			}
		})
	}
}
