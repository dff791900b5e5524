package gossip

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// board is News made of words.
type board struct {
	mu    sync.Mutex // guards the fields below
	words map[string]int
}

func (b *board) Packets(_, limit int) (out [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w, n := range b.words {
		if n > 0 && len(w) <= limit {
			b.words[w]--
			out = append(out, []byte(w))
		}
	}
	return out
}

func (b *board) FullState() (out []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.words {
		out = append(append(out, ' '), w...)
	}
	return out
}

func (b *board) Receive(p []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p) == 0 {
		return errors.New("nothing")
	}
	if p[0] == ' ' {
		p = p[1:]
	}
	if _, known := b.words[string(p)]; !known {
		b.words[string(p)] = 4
	}
	return nil
}

func (b *board) has(word string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.words[word]
	return known
}

// News of one node reaches all nodes, and also a node that joins later, whichever member it joins.
func TestNewsReachAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5
		w := newWorld(t)
		defer w.close()
		boards := make([]*board, n+2)
		for i := range boards {
			boards[i] = &board{words: map[string]int{}}
		}
		with := func(i int) func(*Config) { return func(c *Config) { c.News = boards[i] } }
		for i := 1; i <= n; i++ {
			w.nodes[i] = w.start(i, with(i))
		}
		w.agree(15*time.Second, summaryOf(n, nil))
		expect.NoError(t, boards[3].Receive([]byte("hello")))
		took := until(t, 2*time.Second, "all have heard", func() bool {
			return !slices.ContainsFunc(boards[1:n+1], func(b *board) bool { return !b.has("hello") })
		})
		t.Logf("took %v", took)
		time.Sleep(time.Second) // by now, packets no longer carry it
		w.nodes[n+1] = w.start(n+1, with(n+1))
		until(t, 2*time.Second, "one that joins has heard", func() bool { return boards[n+1].has("hello") })
		w.agree(15*time.Second, summaryOf(n+1, nil))
	})
}

// The state sent with a list decodes as it was encoded. Nonsense is refused.
func TestState(t *testing.T) {
	departures := []departure{{id: id(1), boot: 7}}
	have, news, err := parseState(appendState(departures, []byte("news")))
	if err != nil || !slices.Equal(have, departures) || string(news) != "news" {
		t.Errorf("have %v, %q, %v", have, news, err)
	}
	for _, bad := range [][]byte{{}, {2, 0}, {3}, {3, 5, 1},
		append([]byte{3, maxDepartures + 1}, make([]byte, 24*(maxDepartures+1))...), {3, 0xff}} {
		if _, _, err := parseState(bad); !errors.Is(err, ErrMetadata) {
			t.Errorf("%x: have %v", bad, err)
		}
	}
}
