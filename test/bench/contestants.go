package main

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	rlnode "github.com/rlnode/rlnode/node"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// The limit that all contestants apply: a bucket that is never empty, and seldom full when checked.
const (
	bucketBurst = 100_000_000
	bucketRate  = 10_000 // per day
	bucketDay   = 24 * time.Hour
)

const (
	ownCheck = "rlnode, a check (match a rule, hash, take)"
	ownTake  = "rlnode, a take from the table alone"
	ownNode  = "rlnode, a node in the program"
	timeRate = "x/time/rate in a sync.Map"
	goLim    = "go-limiter memory store"
	throttle = "throttled GCRA memory store"
)

// contestantNames are the names, in the order of the table.
func contestantNames() []string { return append([]string{ownCheck, ownTake, ownNode}, peerNames()...) }

func peerNames() []string { return []string{timeRate, goLim, throttle} }

// contestant decides in process.
type contestant struct {
	// decide decides about key number i, and reports whether it is allowed. All but
	// ownTake start from the key's string, which lies somewhere on the heap.
	decide func(i int) bool
	// maintain does what the contestant does in the background in its first half
	// minute; nil if it does that by itself.
	maintain func()
}

// contestants return a contestant for a number of keys.
func contestants() map[string]func(keys int) (contestant, error) {
	return map[string]func(int) (contestant, error){
		ownCheck: newOwnCheck,
		ownTake:  newOwnTake,
		ownNode:  newOwnNode,
		timeRate: newTimeRate,
		goLim:    newGoLimiter,
		throttle: newThrottled,
	}
}

// tableBound returns the default of --max-counters, or more if needed.
func tableBound(keys int) int64 { return max(10_000_000, int64(keys)*5/4) }

// ownRules are the rules for rlnode.
func ownRules() []byte {
	return fmt.Appendf(nil, `version: 1
rules:
  - name: per-user
    key: [user]
    limits: [{limit: %d, per: 24h, algorithm: token-bucket, burst: %d}]
`, bucketRate, bucketBurst)
}

// newOwnNode is a whole embedded node, alone, which owns every subject.
func newOwnNode(count int) (contestant, error) {
	ctx := context.Background()
	// ends with the process
	n, err := rlnode.Start(ctx, rlnode.Config{Rules: ownRules(), MaxCounters: tableBound(count)})
	if err != nil {
		return contestant{}, fmt.Errorf("start a node: %w", err)
	}
	if err := n.WaitReady(ctx); err != nil {
		return contestant{}, fmt.Errorf("wait for the node: %w", err)
	}

	keys := keysUpTo(count)
	return contestant{decide: func(i int) bool {
		d, err := n.Check(ctx, client.Request{Rule: "per-user", Key: keys[i : i+1]})
		return err == nil && d.Allowed
	}}, nil
}

// newOwnCheck is a node's limiter, as it runs behind the API.
func newOwnCheck(count int) (contestant, error) {
	doc, err := document.Parse(ownRules())
	if err != nil {
		return contestant{}, fmt.Errorf("parse the rules: %w", err)
	}

	set, err := rules.Compile(doc, 1)
	if err != nil {
		return contestant{}, fmt.Errorf("compile the rules: %w", err)
	}

	table, clock := counters.New(tableBound(count)), limiter.NewClock() // live as long as the process
	l := limiter.New(table, clock)
	l.SetRules(set)
	keys := keysUpTo(count)
	query := limiter.Query{Attributes: []rules.Attribute{{Name: "user"}}}
	var answer limiter.Answer

	return contestant{decide: func(i int) bool {
		query.Attributes[0].Value = keys[i]
		return l.Check(&query, &answer) == nil && answer.Allowed
	}, maintain: func() { sweepTable(table, clock) }}, nil
}

// newOwnTake is the table alone: with hashed keys and a known limit; it reads
// the clock for each Take.
func newOwnTake(count int) (contestant, error) {
	table, clock := counters.New(tableBound(count)), limiter.NewClock()
	keys := make([]counters.Key, count)
	for i := range keys {
		keys[i] = scattered(uint64(i))
	}

	ops := []counters.Op{{Cost: 1, Limit: &algorithms.Limit{
		Kind: algorithms.TokenBucket, Amount: bucketRate, Burst: bucketBurst, Window: bucketDay,
	}}}
	return contestant{decide: func(i int) bool {
		ops[0].Key = keys[i]
		table.Take(clock.Now(), ops)
		return ops[0].Decision.Allowed
	}, maintain: func() { sweepTable(table, clock) }}, nil
}

// sweepTable visits the whole table, in parts as a node does.
func sweepTable(table *counters.Table, clock *limiter.Clock) {
	for range 50 {
		table.Sweep(clock.Now(), 0.02)
	}
}

// scattered returns key number i, spread as evenly as a hash.
func scattered(i uint64) counters.Key {
	return counters.Key{Subject: mix(2*i + 1), Counter: mix(2*i + 2)}
}

// mix is the finalizer of SplitMix64.
func mix(n uint64) uint64 {
	n *= 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

// newTimeRate looks up a limiter by its key, and creates it on first use.
func newTimeRate(count int) (contestant, error) {
	var limiters sync.Map
	keys := keysUpTo(count)
	perSecond := rate.Limit(bucketRate / bucketDay.Seconds())
	return contestant{decide: func(i int) bool {
		one, ok := limiters.Load(keys[i])
		if !ok {
			one, _ = limiters.LoadOrStore(keys[i], rate.NewLimiter(perSecond, bucketBurst))
		}
		return one.(*rate.Limiter).Allow()
	}}, nil
}

// newGoLimiter has buckets that are refilled completely once per interval.
func newGoLimiter(count int) (contestant, error) {
	store, err := memorystore.New(&memorystore.Config{
		Tokens: bucketBurst, Interval: bucketDay, SweepInterval: math.MaxInt64, InitialAlloc: count,
	})
	if err != nil {
		return contestant{}, err
	}
	keys := keysUpTo(count)
	ctx := context.Background()
	return contestant{decide: func(i int) bool {
		_, _, _, ok, err := store.Take(ctx, keys[i])
		return ok && err == nil
	}}, nil
}

// newThrottled has a store without a bound: with one, it would keep a list of recently used keys.
func newThrottled(count int) (contestant, error) {
	store, err := memstore.NewCtx(0)
	if err != nil {
		return contestant{}, err
	}

	gcra, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerDay(bucketRate), MaxBurst: bucketBurst,
	})
	if err != nil {
		return contestant{}, err
	}

	keys := keysUpTo(count)
	ctx := context.Background()
	return contestant{decide: func(i int) bool {
		limited, _, err := gcra.RateLimitCtx(ctx, keys[i], 1)
		return !limited && err == nil
	}}, nil
}
