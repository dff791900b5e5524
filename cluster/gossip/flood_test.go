package gossip

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

var (
	hostile   = flag.Int("hostile", 3000, "how many mutated messages a node is sent")
	floodSeed = flag.Uint64("seed", 0, "chooses the mutations; 0: at random")
)

// mutator makes messages that resemble those that nodes send.
type mutator struct {
	*rand.Rand
	from [][]byte
}

var telling = []byte{0, 1, 0x7f, 0x80, 0x81, 0x8f, 0x90, 0xa0, 0xc0, 0xc4, 0xc6, 0xcc, 0xcf, 0xd3,
	0xd9, 0xdb, 0xdd, 0xdf, 0xff}

// next returns one of the messages, mutated a few times.
func (m *mutator) next() []byte {
	b := slices.Clone(m.from[m.IntN(len(m.from))])
	for range m.IntN(4) {
		b = m.mutate(b)
	}
	return b[:min(len(b), 60_000)]
}

func (m *mutator) mutate(b []byte) []byte {
	if len(b) == 0 {
		return []byte{byte(m.Uint32())}
	}
	i := m.IntN(len(b))
	j := i + m.IntN(min(len(b)-i, 64)+1)
	switch m.IntN(12) {
	case 0:
		b[i] ^= 1 << m.IntN(8)
	case 1:
		b[i] = byte(m.Uint32())
	case 2:
		b[i] = telling[m.IntN(len(telling))]
	case 3: // cut off
		return b[:i]
	case 4: // cut out
		return slices.Delete(b, i, j)
	case 5: // repeat
		return slices.Insert(b, j, slices.Clone(b[i:j])...)
	case 6: // append the end of another message
		other := m.from[m.IntN(len(m.from))]
		return append(b[:i], other[m.IntN(len(other)):]...)
	case 7: // insert a length or number
		return slices.Insert(b, i, binary.BigEndian.AppendUint32([]byte{0xc6 + byte(m.IntN(25))}, m.Uint32())...)
	case 8:
		other := m.from[m.IntN(len(m.from))]
		return compound(b[:min(len(b), 60_000)], other[:min(len(other), 60_000)])
	case 9:
		if m.IntN(8) == 0 { // packing is slow
			return compressed(b)
		}
		return append([]byte{compressMsg}, b[1:]...)
	case 10:
		return summed(b)
	case 11:
		b[0] = byte(m.IntN(16))
	}
	return b
}

// A flood of slightly wrong messages of all kinds does not impair a node, and
// leaves nothing in its memory.
func TestHostileFlood(t *testing.T) {
	from := *floodSeed
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("-seed %d", from)
	for name, test := range map[string]struct {
		key  []byte
		has  bool // the sender has the key
		part int  // percentage of all messages
	}{
		"no key": {nil, true, 45}, "a key, by who has it": {secret, true, 45}, "a key, without it": {secret, false, 10},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlood(t, from, test.key, test.has)
			f.wave(*hostile * test.part / 1000) // makes buffers grow before the measurement
			heap, goroutines := f.awaitRest(0, 1<<30)
			began := time.Now()
			f.wave(*hostile * test.part / 100)
			took := time.Since(began)
			// The heap is so small that a few packet buffers of 64 kB may be a tenth of it.
			after, left := f.awaitRest(heap+max(heap/10, 256<<10), goroutines)
			t.Logf("%d packets and %d streams in %v, %d refused; heap %d kB before, %d kB after; goroutines %d and %d",
				f.packets, f.streams, took.Round(time.Millisecond), f.first.Refused(), heap>>10, after>>10, goroutines, left)
			f.checkNews(*hostile)
		})
	}
}

// flood is two nodes that gossip, and the messages to send to the first one.
type flood struct {
	t                *testing.T
	first, second    *target
	key              []byte
	hasKey           bool
	seed             uint64
	seeds            captured
	packets, streams int
}

func newFlood(t *testing.T, seed uint64, key []byte, has bool) *flood {
	known := []ring.NodeID{id(1), id(2), id(101)}
	// Accept only one of the members in the messages, so that messages about it
	// have an effect. Further members would stay listed, and would be sent messages
	// beyond this machine.
	accept := func(c *Config) {
		c.Accept = func(m Member) error {
			if at, err := netip.ParseAddr(m.Address); err != nil || !at.IsLoopback() || !slices.Contains(known, m.ID) {
				return errors.New("not of the test")
			}
			return nil
		}
	}
	f := &flood{t: t, key: key, hasKey: has, seed: seed, seeds: seeds(t)}
	f.first = openTarget(t, key, accept)
	f.second = openTarget(t, key, accept, func(c *Config) {
		c.Self.ID, c.Self.Name, c.Join = id(2), "n2", []string{f.first.self.gossipAddress().String()}
	})
	f.checkNews(1)
	// The node remembers recently logged events, up to a bound. Fill that memory first.
	f.first.mu.Lock()
	defer f.first.mu.Unlock()
	for i := range maxLogged {
		f.first.logged.shouldLog(eventKey{text: "a test", boot: uint64(i), name: id(i).String()}, time.Now())
	}
	return f
}

// checkNews waits until each of the two nodes hears news from the other.
func (f *flood) checkNews(expect int) {
	f.t.Helper()
	expect %= 60_000
	for i, g := range []*Gossip{f.first.Gossip, f.second.Gossip} {
		if err := g.Update(func(m *Member) { m.BootstrapExpect = expect }); err != nil {
			f.t.Fatal(err)
		}
		until(f.t, 30*time.Second, "the other one hears the news", func() bool {
			other := []*Gossip{f.second.Gossip, f.first.Gossip}[i]
			return slices.ContainsFunc(other.Members(), func(m Member) bool {
				return m.ID == id(i+1) && m.State == Alive && m.BootstrapExpect == expect
			})
		})
		until(f.t, 30*time.Second,
			"memberlist has sent the news as often as it should; Close would wait for that",
			func() bool {
				return len(g.announcing) == 0
			})
	}
}

// wave sends n messages, a tenth of them on streams.
func (f *flood) wave(n int) {
	const senders = 4
	f.seed++
	var group sync.WaitGroup
	for i := range senders {
		r := rand.New(rand.NewPCG(f.seed, uint64(i)))
		group.Go(func() {
			f.sendStreams(&mutator{r,
				slices.Concat(f.seeds.streams, f.seeds.answers)}, n/10/senders, i)
		})
	}
	r := rand.New(rand.NewPCG(f.seed, senders))
	f.sendPackets(&mutator{r, f.seeds.packets}, n-n/10/senders*senders)
	group.Wait()
	f.packets, f.streams = n-n/10/senders*senders, n/10/senders*senders
}

func (f *flood) sendStreams(m *mutator, n, sender int) {
	address := f.first.self.gossipAddress().String()
	for i := range n {
		b := m.next()
		if f.hasKey && f.key != nil && m.IntN(8) > 0 {
			b = sealStream(f.key, byte(1-m.IntN(16)/15), b)
		}
		if m.IntN(16) > 0 {
			b = labeled(b)
		}
		// Ports are not free again at once, so use several addresses.
		if _, err := streamFrom(fmt.Sprintf("127.1.%d.%d", sender+1, 1+i/500%250), address, b); err != nil {
			f.t.Error(err)
			return
		}
	}
}

// sendPackets sends packets, but no faster than the node reads.
func (f *flood) sendPackets(m *mutator, n int) {
	const window = 32
	for sent := 1; sent <= n && !f.t.Failed(); sent++ {
		b := m.next()
		if f.hasKey && f.key != nil && m.IntN(8) > 0 {
			b = seal(f.key, byte(1-m.IntN(16)/15), b, []byte(label))
		}
		if m.IntN(16) > 0 {
			b = labeled(b)
		}
		if len(b) == 0 {
			b = []byte{0}
		}
		f.first.packet(b)
		switch {
		case sent%window != 0:
		case f.hasKey:
			f.first.awaitAnswer()
		default: // all are refused
			want := f.first.Refused() + 1
			f.first.packet([]byte{0})
			until(f.t, 20*time.Second, "a packet is refused", func() bool { return f.first.Refused() >= want })
		}
	}
}

// awaitRest waits until heap and goroutines are at most at the given values,
// and fails after half a minute.
func (f *flood) awaitRest(heap uint64, goroutines int) (uint64, int) {
	f.t.Helper()
	var m runtime.MemStats
	var count int
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		for range 3 { // pools keep their content for one more collection
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		count = runtime.NumGoroutine()
		if heap == 0 || (m.HeapAlloc <= heap && count <= goroutines+2) {
			return m.HeapAlloc, count
		}
		if time.Now().After(deadline) {
			f.t.Errorf("have %d kB and %d goroutines, want %d and %d", m.HeapAlloc>>10, count, heap>>10, goroutines)
			return m.HeapAlloc, count
		}
	}
}

// Endless arrivals and departures fill neither the table nor memberlist's list.
func TestNewcomersAreBounded(t *testing.T) {
	now := time.Unix(1e9, 0)
	table := newTable(100)
	many := func(tries int, apart time.Duration) (in int) {
		for range tries {
			if table.admitNewcomer(now) {
				in++
			}
			now = now.Add(apart)
		}
		return in
	}
	expect.Equal(t, many(1000, 0), 100, "at once")
	if n := many(1000, newcomerPeriod/1000); n < 99 || n > 101 {
		t.Errorf("in the same time again: have %d, want 100", n)
	}
	now = now.Add(newcomerPeriod)
	expect.Equal(t, many(1000, 0), 100, "after a pause")
}

// A member is reachable at its last address, until it is forgotten.
func TestMembersAddresses(t *testing.T) {
	g := &Gossip{table: newTable(3)}
	at := func(i int) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:7", i)) }
	put := func(i, ip int, s State) {
		g.table.put(Member{ID: id(i), Address: at(ip).Addr().String(), GossipPort: 7, State: s})
	}
	check := func(what string, want ...int) {
		t.Helper()
		for i := range 6 {
			expect.Equal(t, g.isMemberAddress(at(i)), slices.Contains(want, i), "%s: %d is reachable", what, i)
		}
	}
	put(1, 1, Alive)
	put(2, 1, Alive)
	check("two at one", 1)
	put(2, 2, Alive)
	check("one moved", 1, 2)
	g.table.markGone(id(1))
	check("one failed", 1, 2)
	put(3, 3, Alive)
	put(4, 4, Alive)
	check("one made room", 2, 3, 4)
	g.table.exclude(g.table.entries[id(2)])
	g.table.markGone(id(2))
	g.table.markGone(id(3))
	g.table.forget(id(3))
	check("one of another cluster, and one forgotten", 4)
}

// No message that nodes send to each other is refused, whatever happens to them.
func TestNothingOfNodesIsRefused(t *testing.T) {
	for name, key := range map[string][]byte{"no key": nil, "a key": secret} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				words := func(c *Config) { c.Keyring, c.News = ringOf(key), &board{words: map[string]int{"news": 4}} }
				for i := 1; i <= 8; i++ {
					w.start(i, words)
				}
				w.agree(15*time.Second, summaryOf(8, nil))
				w.crash(7)
				if err := w.nodes[8].Leave(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.agree(time.Minute, summaryOf(8, map[int]State{7: Failed, 8: Left}), 1, 2, 3, 4, 5, 6)
				w.start(7, words, func(c *Config) { c.Self.Boot = 77 })
				w.agree(time.Minute, summaryOf(8, map[int]State{8: Left}), 1, 2, 3, 4, 5, 6)
				time.Sleep(2 * time.Minute)
				for i, n := range w.nodes {
					if count := n.Refused(); count != 0 {
						t.Errorf("node %d refused %d messages: %q", i, count, n.log.lines)
					}
				}
			})
		})
	}
}
