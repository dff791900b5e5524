package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// bucketScript is a typical token bucket in Redis: two fields of a hash, and
// the server's clock. KEYS[1] is the counter; ARGV are the burst, the tokens
// per second, and the cost.
const bucketScript = `
local burst, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(state[1]) or burst
local at = tonumber(state[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
local allowed, wait = 0, 0
if tokens >= cost then
	tokens = tokens - cost
	allowed = 1
else
	wait = math.ceil((cost - tokens) / rate * 1000)
end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', tostring(now))
redis.call('PEXPIRE', KEYS[1], math.ceil(math.min(burst / rate, 86400) * 1000))
return {allowed, math.floor(tokens), wait}
`

// redisBucket is a Redis with that script, and its client.
type redisBucket struct {
	server *process
	client *redis.Client
	script *redis.Script
	keys   []string
}

// startRedis starts a server without persistence. It returns nil if redis-server is not installed.
func (b *bench) startRedis(ctx context.Context, address string, keys []string) (*redisBucket, error) {
	program, err := exec.LookPath("redis-server")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find redis-server: %w", err)
	}

	const port = "6379"
	r := &redisBucket{keys: keys, script: redis.NewScript(bucketScript)}
	if r.server, err = b.procs.start("redis", nil, nil, program, "--bind", address, "--port", port,
		"--save", "", "--appendonly", "no"); err != nil {
		return nil, err
	}

	r.client = redis.NewClient(&redis.Options{
		Addr: address + ":" + port, PoolSize: connections, MinIdleConns: connections, DisableIdentity: true,
	})
	err = r.server.await(ctx, "it answers a PING", func() bool { return r.client.Ping(ctx).Err() == nil })
	if err == nil {
		err = r.script.Load(ctx, r.client).Err()
	}

	if err != nil {
		r.close()
		return nil, fmt.Errorf("start redis: %w", err)
	}

	return r, nil
}

func (r *redisBucket) close() {
	_ = r.client.Close()
	r.server.stop()
}

// load checks keys, drawn evenly, from as many goroutines as there are callers,
// each with one check in flight.
func (r *redisBucket) load(ctx context.Context, callers int, warm, duration time.Duration) (*outcome, error) {
	from := time.Now().Add(warm)
	to := from.Add(duration)
	outcomes, errs := make([]outcome, callers), make([]error, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() { errs[i] = r.loadOne(ctx, uint64(i), from, to, &outcomes[i]) })
	}

	group.Wait()
	total := &outcome{took: duration}
	for i := range outcomes {
		total.merge(&outcomes[i].latencies)
		total.all += outcomes[i].all
	}

	return total, errors.Join(errs...)
}

func (r *redisBucket) loadOne(ctx context.Context, seed uint64, from, to time.Time, o *outcome) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	key := make([]string, 1)
	for sent := time.Now(); sent.Before(to); {
		key[0] = r.keys[rng.IntN(len(r.keys))]

		// The same bucket as the rule "plenty".
		answer, err := r.script.EvalSha(ctx, r.client, key, 1_000_000_000, 10_000.0/3600, 1).Int64Slice()
		if err != nil {
			return fmt.Errorf("ask redis: %w", err)
		}
		if len(answer) != 3 || answer[0] != 1 {
			return fmt.Errorf("redis answers %v, not that it is allowed", answer)
		}

		o.all++
		now := time.Now()
		if sent.After(from) && !now.After(to) {
			o.add(now.Sub(sent))
		}

		sent = now
	}

	return nil
}
