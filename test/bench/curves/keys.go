package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// keyBytes is the length of a key. All keys lie one after another in one text.
const keyBytes = 12

// textOf returns the keys of n subjects.
func textOf(n int) string {
	b := make([]byte, 0, n*keyBytes)
	for i := range n {
		b = append(b, "user-"...)
		digits := strconv.Itoa(i)
		for range keyBytes - len("user-") - len(digits) {
			b = append(b, '0')
		}
		b = append(b, digits...)
	}
	return string(b)
}

func keyAt(text string, i int) string { return text[i*keyBytes : (i+1)*keyBytes] }

// compiled compiles the text of rules.
func compiled(text string) (*rules.Set, error) {
	doc, err := document.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return rules.Compile(doc, 1)
}

// node is a lone limiter.
type node struct{ *limiter.Limiter }

// open opens a node until the plot is measured.
func (o *options) open(bound int64, text string) (*node, error) {
	set, err := compiled(text)
	if err != nil {
		return nil, err
	}
	clock := limiter.NewClock()
	n := &node{limiter.New(o.table(bound), clock)}
	o.opened = append(o.opened, func() { clock.Close() })
	n.SetRules(set)
	return n, nil
}

// table returns a table until the plot is measured.
func (o *options) table(bound int64) *counters.Table {
	t := counters.New(bound)
	o.opened = append(o.opened, t.Close)
	return t
}

// close closes everything opened.
func (o *options) close() {
	for _, f := range o.opened {
		f()
	}
	o.opened = nil
}

// counted is a limit whose counters outlive every measurement.
const counted = "{limit: 1000000000, per: 1440h, algorithm: sliding-window}"

// checks returns a function that decides q for some number of random keys, of that many.
func (nd *node) checks(q *limiter.Query, set func(i int), keys int, random *rand.Rand) func(int) {
	var a limiter.Answer
	return func(times int) {
		for range times {
			set(random.IntN(keys))
			if err := nd.Check(q, &a); err != nil || !a.Allowed {
				panic(fmt.Sprint("a check was refused: ", err))
			}
		}
	}
}

func measureKeys(o *options) (map[string][]point, error) {
	sizes := []int{1000, 10_000, 100_000, 1_000_000, 10_000_000}
	if o.quick {
		sizes = sizes[:3]
	}

	text := textOf(sizes[len(sizes)-1])
	var samples []sample

	var memory []point
	for _, n := range sizes {
		bound := int64(max(10_000_000, n+n/4)) // shards are not equally full
		before := resident()
		table := o.table(bound)
		taken := takes(table, n)
		memory = append(memory,
			pointOf("mapped for the table", float64(n), []float64{float64(table.Stats().Bytes) / float64(n)}))
		if grown := resident() - before; n >= 100_000 { // otherwise the noise of the process hides it
			memory = append(memory, pointOf("resident", float64(n), []float64{float64(grown) / float64(n)}))
		}

		l, err := o.open(bound, "rules:\n  - {name: r, key: [user], limits: ["+counted+"]}")
		if err != nil {
			return nil, err
		}

		q := &limiter.Query{Attributes: []rules.Attribute{{Name: "user"}}}
		var a limiter.Answer
		for i := range n {
			q.Attributes[0].Value = keyAt(text, i)
			if err := l.Check(q, &a); err != nil || !a.Allowed {
				return nil, fmt.Errorf("a check was refused: %v", err)
			}
		}

		check := l.checks(q, func(i int) { q.Attributes[0].Value = keyAt(text, i) }, n, rand.New(rand.NewPCG(1, 1)))
		samples = append(samples,
			sample{"limiter.Check", float64(n), check}, sample{"counters.Table.Take", float64(n), taken},
			sample{"for scale: one random read of as much memory", float64(n), reads(n)})
	}

	return map[string][]point{"keys": timed(o, samples), "memory": memory}, nil
}

// takes creates n counters in a table, and times Takes of random ones.
func takes(table *counters.Table, n int) func(int) {
	now := algorithms.At(time.Now())
	limit := &algorithms.Limit{Kind: algorithms.SlidingWindow, Amount: 1_000_000_000, Window: 60 * 24 * time.Hour}
	ops := []counters.Op{{Limit: limit, Cost: 1}}
	take := func(i int) {
		ops[0].Key = counters.Key{Subject: mixed(uint64(2 * i)), Counter: mixed(uint64(2*i + 1))}
		if table.Take(now, ops) != counters.Admitted {
			panic("a Take was refused")
		}
	}
	for i := range n {
		take(i)
	}

	random := rand.New(rand.NewPCG(1, 2))
	return func(times int) {
		for range times {
			take(random.IntN(n))
		}
	}
}

// mixed spreads numbers like a hash (the finalizer of SplitMix64).
func mixed(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// reads times reads of an array as large as n counters, each at a place that
// depends on the previous read.
func reads(n int) func(int) {
	const words = 6 // a counter takes 47 bytes
	array := make([]uint64, n*words)
	for i := range array {
		array[i] = uint64(i)
	}
	at := uint64(0)
	return func(times int) {
		for range times {
			at = mixed(at+array[at%uint64(len(array))]) % uint64(len(array))
		}
	}
}

// resident returns the resident bytes of this process after freeing garbage; 0 if unknown.
func resident() int64 {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
