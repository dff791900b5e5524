package redis

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// The same random commands go to a node and to a server whose commands it has.
// They may differ only in what docs/redis.md lists, which the commands here
// leave out. Both clocks run on: a reply that depends on the time is compared
// only if the other server could have replied so at some moment around the
// call.

var (
	cellServer = flag.String("redis-cell", "",
		"a command that starts a Redis server with redis-cell 0.5, but for its port; empty: no comparison")
	increxServer = flag.String("redis-increx", "",
		"a command that starts a Redis server of 8.8 or later, but for its port; empty: no comparison")
	commands = flag.Int("commands", 100_000, "random commands of each comparison")
	seed     = flag.Uint64("seed", 0, "seed of the random commands; 0: from the clock")
)

// startServer starts a server by a command, to which its port is added.
func startServer(t *testing.T, command string) string {
	t.Helper()
	if command == "" || *program == "" {
		t.Skip("no server to compare with")
	}
	address, port := freeAddress(t)
	words := append(strings.Fields(command), "--port", port, "--bind", loopback, "--save", "")
	server := exec.CommandContext(t.Context(), words[0], words[1:]...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	r := goredis.NewClient(&goredis.Options{Addr: address})
	defer r.Close()
	for end := time.Now().Add(patience); r.Ping(t.Context()).Err() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not get ready", command)
		}
	}
	return address
}

// pair is a node and the server beside it.
type pair struct {
	t           *testing.T
	own, other  *goredis.Client
	random      *rand.Rand
	compared    int
	close       int // replies that differed by what passed between them, and were right
	differences int
}

func newPair(t *testing.T, server string) *pair {
	t.Helper()
	address := startServer(t, server)
	p := &pair{t: t}
	n := startNode(t)
	p.own = goredis.NewClient(&goredis.Options{Addr: n.redis, PoolSize: 1})
	p.other = goredis.NewClient(&goredis.Options{Addr: address, PoolSize: 1})
	t.Cleanup(func() { p.own.Close(); p.other.Close() })
	chosen := *seed
	if chosen == 0 {
		chosen = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", chosen)
	p.random = rand.New(rand.NewPCG(chosen, 0))
	return p
}

// ask sends a command to both, in random order, and returns what each replied:
// numbers, or the text of an error.
func (p *pair) ask(s *sequence, words []any) (own, other string) {
	begun := time.Now()
	defer func() { s.longest = max(s.longest, time.Since(begun)) }()
	reply := func(c *goredis.Client) string {
		v, err := c.Do(p.t.Context(), words...).Result()
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(v)
	}
	if p.random.IntN(2) == 0 {
		own = reply(p.own)
		return own, reply(p.other)
	}
	other = reply(p.other)
	return reply(p.own), other
}

// differ records a difference that nothing explains.
func (p *pair) differ(words []any, own, other string) {
	p.differences++
	if p.differences <= 10 {
		p.t.Errorf("%v: have %s, want %s", words, own, other)
	}
}

// sequence is what is asked about one key, all with the same numbers.
type sequence struct {
	words   func() []any
	longest time.Duration // that any of the commands took for both: their counters may be apart by so much
	over    bool          // they differed, and so the rest of it may, too
}

// TestBesideRedisCell compares CL.THROTTLE.
func TestBesideRedisCell(t *testing.T) {
	p := newPair(t, *cellServer)
	var all []*sequence
	for i := range *commands {
		if len(all) < 20 || p.random.IntN(50) == 0 {
			all = append(all, p.cell(i))
		}
		s := all[len(all)-1-p.random.IntN(min(len(all), 20))]
		if p.random.IntN(300) == 0 {
			time.Sleep(time.Duration(p.random.IntN(30)) * time.Millisecond)
		}
		if s.over {
			continue
		}
		words := s.words()
		own, other := p.ask(s, words)
		p.compared++
		switch {
		case own == other:
		case s.isMomentApart(words, own, other):
			// One has let time pass that the other has not. From here on, their buckets may
			// differ by a unit.
			p.close++
			s.over = true
		default:
			p.differ(words, own, other)
			s.over = true
		}
	}
	t.Logf("%d commands compared, %d replies a moment apart, %d differences", p.compared, p.close, p.differences)
	if p.compared < *commands/2 || p.close > p.compared/100 {
		t.Errorf("of %d commands %d were compared, and %d were a moment apart", *commands, p.compared, p.close)
	}
}

// cell returns the commands for a new key. More than a thousand a second are
// left out: redis-cell does not limit them.
func (p *pair) cell(i int) *sequence {
	key := fmt.Sprintf("cell-%d", i)
	burst := p.random.Int64N(30)
	period := 1 + p.random.Int64N(120)
	count := 1 + p.random.Int64N(min(200, 1000*period))
	if p.random.IntN(10) == 0 {
		burst, count, period = -1+p.random.Int64N(2000), 1+p.random.Int64N(100_000), 3600*(1+p.random.Int64N(100))
	}
	return &sequence{words: func() []any {
		quantity := p.random.Int64N(4)
		if p.random.IntN(8) == 0 {
			quantity = p.random.Int64N(burst + 4)
		}
		if burst < 0 {
			quantity = 1
		}
		words := []any{"CL.THROTTLE", key, burst, count, period}
		if quantity != 1 || p.random.IntN(2) == 0 {
			words = append(words, quantity)
		}
		return words
	}}
}

// isMomentApart reports whether two replies may be of one bucket at moments
// between which both commands lie.
func (s *sequence) isMomentApart(words []any, a, b string) bool {
	x, y := numbers(a), numbers(b)
	if len(x) != 5 || len(y) != 5 || x[1] != y[1] {
		return false
	}
	count, period := words[3].(int64), words[4].(int64)
	apart := 2 * s.longest.Seconds() // of the counter, and of this command
	units := 1 + int64(apart*float64(count)/float64(period))
	seconds := 1 + int64(apart)
	near := func(i int, by int64) bool { return max(x[i], y[i])-min(x[i], y[i]) <= by }
	if x[0] == y[0] {
		return near(2, units) && near(3, seconds) && near(4, seconds)
	}
	// One was allowed, a moment later.
	limited, allowed := x, y
	if x[0] == 0 {
		limited, allowed = y, x
	}
	return limited[3] <= seconds && allowed[2] <= units
}

// numbers reads what fmt prints of a list of numbers.
func numbers(text string) (list []int64) {
	for word := range strings.FieldsSeq(strings.Trim(text, "[]")) {
		var n int64
		if _, err := fmt.Sscan(word, &n); err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}

// TestBesideIncrex compares INCREX, and TTL, PTTL, EXISTS, TYPE and DEL of its keys.
func TestBesideIncrex(t *testing.T) {
	p := newPair(t, *increxServer)
	var all []*sequence
	for i := range *commands {
		if len(all) < 20 || p.random.IntN(50) == 0 {
			all = append(all, p.increx(i))
		}
		s := all[len(all)-1-p.random.IntN(min(len(all), 20))]
		if p.random.IntN(300) == 0 {
			time.Sleep(time.Duration(p.random.IntN(30)) * time.Millisecond)
		}
		if s.over {
			continue
		}
		words := s.words()
		own, other := p.ask(s, words)
		p.compared++
		switch {
		case own == other:
		case words[0] == "PTTL" && isNear(own, other, 2+2*s.longest.Milliseconds()) ||
			words[0] == "TTL" && isNear(own, other, 1+int64(2*s.longest.Seconds())):
			p.close++
		case p.hasEnded(words):
			p.close++
			s.over = true
		default:
			p.differ(words, own, other)
			s.over = true
		}
	}
	t.Logf("%d commands compared, %d replies a moment apart, %d differences", p.compared, p.close, p.differences)
	if p.compared < *commands/2 {
		t.Errorf("of %d commands %d were compared", *commands, p.compared)
	}
}

// isNear reports whether two numbers differ by so much at most.
func isNear(a, b string, by int64) bool {
	x, y := numbers(a), numbers(b)
	return len(x) == 1 && len(y) == 1 && max(x[0], y[0])-min(x[0], y[0]) <= by
}

// hasEnded reports whether the window of a key ends about now on one of the
// two, which may explain a difference.
func (p *pair) hasEnded(words []any) bool {
	key := fmt.Sprint(words[1])
	a, b := p.own.PTTL(p.t.Context(), key).Val(), p.other.PTTL(p.t.Context(), key).Val()
	isOver := func(d time.Duration) bool { return d < 50*time.Millisecond }
	return isOver(a) || isOver(b) || max(a, b)-min(a, b) > 5*time.Millisecond && reflect.ValueOf(a).Int() > 0
}

// increx returns the commands for a new key.
func (p *pair) increx(i int) *sequence {
	key := fmt.Sprintf("increx-%d", i)
	bound := 1 + p.random.Int64N(50)
	expiry := []any{"EX", 10 + p.random.Int64N(1000)}
	if p.random.IntN(3) == 0 {
		expiry = []any{"PX", 200 + p.random.Int64N(100_000)}
	}
	begun := false
	return &sequence{words: func() []any {
		if begun {
			switch p.random.IntN(20) {
			case 0:
				return []any{"TTL", key}
			case 1:
				return []any{"PTTL", key}
			case 2:
				return []any{"EXISTS", key, key, "none"}
			case 3:
				return []any{"TYPE", key}
			case 4:
				begun = false
				return []any{"DEL", key, key}
			}
		}
		by := 1 + p.random.Int64N(4)
		if begun && p.random.IntN(8) == 0 {
			by = p.random.Int64N(bound + 3)
		}
		options := [][]any{{"UBOUND", bound}, expiry, {"ENX"}}
		if by != 1 || p.random.IntN(2) == 0 {
			options = append(options, []any{"BYINT", by})
		}
		if p.random.IntN(3) == 0 {
			options = append(options, []any{"SATURATE"})
		}
		p.random.Shuffle(len(options), func(i, j int) { options[i], options[j] = options[j], options[i] })
		words := []any{"INCREX", key}
		for _, one := range options {
			words = append(words, one...)
		}
		begun = begun || by <= bound
		return words
	}}
}
