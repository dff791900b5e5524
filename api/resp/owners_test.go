package resp

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// slowOwners is a decider whose owners answer only when as many have been asked
// as may be at the same time.
type slowOwners struct {
	api.Decider
	together int // how many must be asked before any answers
	answer   func(namespace, key string) (limiter.KeyUsage, error)

	mu     sync.Mutex // guards the fields below
	inside int
	most   int
	opened sync.Once
	open   chan struct{}
	calls  atomic.Int64
}

func (o *slowOwners) KeyUsage(namespace, key string) (limiter.KeyUsage, error) {
	o.calls.Add(1)
	o.mu.Lock()
	o.inside++
	o.most = max(o.most, o.inside)
	if o.inside == o.together {
		o.opened.Do(func() { close(o.open) })
	}
	o.mu.Unlock()

	select {
	case <-o.open:
	case <-time.After(20 * time.Second):
		return limiter.KeyUsage{}, errors.New("the others were not asked meanwhile")
	}

	o.mu.Lock()
	o.inside--
	o.mu.Unlock()
	return o.answer(namespace, key)
}

func (o *slowOwners) ResetKey(namespace, key string) (limiter.KeyUsage, error) {
	return o.KeyUsage(namespace, key)
}

// startSlow starts a node whose owners are slow.
func startSlow(
	t *testing.T, together int, answer func(namespace, key string) (limiter.KeyUsage, error),
) (*slowOwners, *client) {
	t.Helper()
	owners := &slowOwners{together: together, answer: answer, open: make(chan struct{})}
	n := startNode(t, func(c *apitest.Config) {
		owners.Decider = c.Decider
		c.Decider = owners
	})
	return owners, dial(t, n)
}

// A command of many keys asks their owners at the same time, but not more than 16 of them.
func TestKeysAskOwnersAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"EXISTS", "DEL", "UNLINK"} {
		owners, c := startSlow(t, api.AsksAtOnce, func(namespace, key string) (limiter.KeyUsage, error) {
			if namespace != rules.IncrexNamespace || !strings.HasSuffix(key, "7") {
				return limiter.KeyUsage{}, nil
			}
			return limiter.KeyUsage{Used: 3, Ends: time.Minute}, nil
		})
		for i := range 100 {
			command += fmt.Sprint(" key", i)
		}
		expect.Equal(t, c.ask(command), "10", "%.6s", command)
		if owners.most != api.AsksAtOnce || owners.calls.Load() != 300 {
			t.Errorf("%.6s: %d calls, at most %d at the same time; want 300 and %d", command,
				owners.calls.Load(), owners.most, api.AsksAtOnce)
		}
	}

	owners, c := startSlow(t, len(keyNamespaces), func(namespace, _ string) (limiter.KeyUsage, error) {
		return map[string]limiter.KeyUsage{rules.CellNamespace: {Used: 1, Ends: 5 * time.Second},
			rules.ThrottleNamespace: {Used: 1, Ends: 9 * time.Second}}[namespace], nil
	})
	if got := c.ask("TTL k"); got != "9" || owners.most != len(keyNamespaces) {
		t.Errorf("TTL: got %s, with %d at the same time; want 9 with %d", got, owners.most, len(keyNamespaces))
	}
}

// The error is that of the first key that has one. After an error no further owner is asked.
func TestKeysFailInOrder(t *testing.T) {
	t.Parallel()
	errOf := func(key string) error { return fmt.Errorf("%s: %w", key, limiter.ErrNoOwner) }
	owners, c := startSlow(t, api.AsksAtOnce, func(_, key string) (limiter.KeyUsage, error) {
		if key != "a" {
			return limiter.KeyUsage{}, errOf(key)
		}
		return limiter.KeyUsage{Used: 1}, nil
	})
	command := "EXISTS a b"
	for i := range 1000 {
		command += fmt.Sprint(" c", i)
	}
	if got := c.ask(command); !strings.HasPrefix(got, "-ERR ") ||
		!strings.Contains(got, "b: "+limiter.ErrNoOwner.Error()) {
		t.Errorf("got %s, want the error of b", got)
	}
	if n := owners.calls.Load(); n > 2*api.AsksAtOnce {
		t.Errorf("%d calls, although the first ones failed", n)
	}
	expect.Equal(t, c.ask("PING"), "+PONG", "afterwards")
}

// A panic while owners are asked is one of the connection, not of the node.
func TestKeysPanic(t *testing.T) {
	t.Parallel()
	_, c := startSlow(t, 3, func(_, key string) (limiter.KeyUsage, error) { panic(key) })
	if got := c.ask("EXISTS a"); !strings.HasPrefix(got, "-ERR internal") || !c.ended() {
		t.Errorf("got %s, and the connection goes on", got)
	}
}

// The span of a command has how it was decided, and no name of a subject.
func TestCommandsAreTraced(t *testing.T) {
	t.Parallel()
	collector := apitest.StartCollector(t, 1)
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret-asker", "check"))
	n := startNode(t, func(c *apitest.Config) { c.Tracer, c.TokensFile = collector.Tracer, file })
	c := dial(t, n)
	c.ask("AUTH secret-asker")
	for _, command := range []string{
		"PING", "CL.THROTTLE somebody 4 5 60", "INCREX somebody UBOUND 0 EX 60 ENX",
		"RL.CHECK a somebody", "RL.CHECK none somebody",
		"TTL somebody", "RL.SETTLE somebody COST 1", "CL.THROTTLE somebody x 5 60",
	} {
		c.ask(command)
	}
	var have []string
	spans, raw := collector.Close(t)
	for _, s := range spans {
		line := s.Name
		for _, a := range s.Attributes {
			switch a.Key {
			case "rlnode.rule", "rlnode.decided_by", "rlnode.token":
				line += " " + a.Value.GetStringValue()
			case "rlnode.allowed":
				line += fmt.Sprint(" ", a.Value.GetBoolValue())
			case "http.request.method", "url.path":
				t.Errorf("%s has %s, but is no request of HTTP", line, a.Key)
			}
		}
		have = append(have, line)
	}
	want := []string{
		"CL.THROTTLE asker true owner inline", "INCREX asker false owner inline",
		"RL.CHECK asker true owner a", "RL.CHECK asker", "TTL asker", "RL.SETTLE asker",
		"CL.THROTTLE asker",
	}
	if got, want := strings.Join(have, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if strings.Contains(raw, "somebody") || strings.Contains(raw, "secret") {
		t.Error("a span reveals the subject or the token")
	}
}
