package main

import (
	"context"
	"fmt"
	"time"
)

// The concurrency over HTTP, and the number of keys.
const (
	connections = 32
	singleKeys  = 10_000
	batchSize   = 100
	batchKinds  = 500 // number of different requests
)

// server is a process under load and its measurements, one value per round.
type server struct {
	*process
	with     *process // the server it asks itself; nil for none
	end      func()   // nil: the starter ends it
	name     string
	target   target
	perReply float64 // checks decided per answer
	rates    series
	p50, p99 series // in microseconds
	cpu      series // microseconds per check
	size     float64
}

// round loads the server once.
func (s *server) round(ctx context.Context, b *bench) error {
	before, err := s.process.cpu()
	if err != nil {
		return err
	}

	l := load{targets: []target{s.target}, connections: connections, duration: b.time, warm: b.warm()}
	o, err := l.run(ctx)
	if err != nil {
		return err
	}

	after, err := s.process.cpu()
	if err != nil {
		return err
	}
	if o.refused > 0 {
		return fmt.Errorf("%d of %d answers are refusals, where all are to be admitted", o.refused, o.count)
	}

	s.rates = append(s.rates, o.rate()*s.perReply)
	s.p50 = append(s.p50, micros(o.quantile(0.5)))
	s.p99 = append(s.p99, micros(o.quantile(0.99)))
	s.cpu = append(s.cpu, micros(after-before)/(float64(o.all)*s.perReply))
	s.size = float64(o.bytes) / float64(o.count)

	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (s *server) contender(b *bench) contender {
	return contender{name: s.name, run: func(ctx context.Context) error { return s.round(ctx, b) }}
}

// figures adds the measurements to the report.
func (s *server) figures(r *report, id string) {
	r.figure(id, s.name, "", "checks/s", s.rates)
	r.figure(id, s.name, "p50", "µs", s.p50)
	r.figure(id, s.name, "p99", "µs", s.p99)
	r.figure(id, s.name, "processor time of the server", "µs a check", s.cpu)
}

// overHTTP measures S2 and S3.
func (b *bench) overHTTP(ctx context.Context) error {
	one, err := b.startOne(ctx, b.program, "single", b.host(1), benchRules)
	if err != nil {
		return err
	}

	defer one.stop()

	// It has a node of its own: the counters that it leaves would be written while
	// others are measured.
	inline, err := b.startOne(ctx, b.program, "inline", b.host(10), benchRules)
	if err != nil {
		return err
	}
	defer inline.stop()

	var beside *node
	if b.beside != "" {
		if beside, err = b.startOne(ctx, b.beside, "beside", b.host(5), benchRules); err != nil {
			return err
		}
		defer beside.stop()
	}

	if b.wants("S2") {
		if err := b.singleChecks(ctx, one, inline, beside); err != nil {
			return err
		}
	}

	if b.wants("S3") {
		return b.batchChecks(ctx, one, inline, beside)
	}

	return nil
}

// rivals are the node and a server that gives the same answers to the same
// requests; and another node, if there is one.
func (b *bench) rivals(
	ctx context.Context, n, beside *node, empty, address string, requests [][]byte, perReply float64,
) ([]*server, error) {
	header, body, err := n.call.post(ctx, n.data, requests[0])
	if err != nil {
		return nil, err
	}

	w, err := b.procs.startWorker(ctx, "empty-"+address, "answer", answerLike(address, header, body), nil)
	if err != nil {
		return nil, err
	}

	of := func(p *process, name, address string) *server {
		return &server{process: p, name: name, target: target{address, requests}, perReply: perReply}
	}
	all := []*server{of(n.process, "rlnode", n.data), of(w.process, empty, address)}
	all[1].end = w.close

	if beside != nil {
		all = append(all, of(beside.process, "rlnode of -beside", beside.data))
	}

	return all, nil
}

// singleChecks measures S2.
func (b *bench) singleChecks(ctx context.Context, n, withLimits, beside *node) error {
	keys := keysUpTo(singleKeys)
	all, err := b.rivals(ctx, n, beside, "empty handler", b.host(2)+":8080", checks(plenty, keys), 1)
	if err != nil {
		return err
	}

	defer all[1].end()

	var turns []contender
	for _, s := range all {
		turns = append(turns, s.contender(b))
	}

	inline := inlineServer(withLimits, inlineChecks(keys), 1)
	turns = append(turns, inline.contender(b))
	bucket, err := b.startRedis(ctx, b.host(4), keys)
	if err != nil {
		return err
	}

	viaRedis := &server{name: "Redis + Lua through go-redis"}
	if bucket != nil {
		defer bucket.close()
		viaRedis.process = bucket.server
		turns = append(turns,
			contender{viaRedis.name, func(ctx context.Context) error { return viaRedis.redisRound(ctx, b, bucket) }})
	}

	peer, err := b.startGubernator(ctx, keys)
	if err != nil {
		return err
	}

	if peer != nil {
		defer peer.end()
		turns = append(turns, peer.contender(b))
	}

	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}

	b.reportSingle(all, viaRedis, peer)
	b.reportInline("S2", "single check", atMost(1.3, "≤ 1.3"), inline, all[0])
	return nil
}

// inlineServer is n under requests whose checks bring their limits.
func inlineServer(n *node, requests [][]byte, perReply float64) *server {
	return &server{process: n.process, name: "rlnode, limits with the call", target: target{n.data, requests}, perReply: perReply}
}

// reportInline compares checks that bring their limits with checks by a rule.
func (b *bench) reportInline(id, what string, most goal, inline, byRule *server) {
	b.report.add(id, what+" by a rule ÷ one that brings its limit", most, over(byRule.rates, inline.rates), "")
	b.report.add(id, "processor time of a "+what+" that brings its limit ÷ of one by a rule",
		noGoal(), over(inline.cpu, byRule.cpu), "")
	inline.figures(b.report, id)
}

// redisRound is round for Redis.
func (s *server) redisRound(ctx context.Context, b *bench, bucket *redisBucket) error {
	before, err := s.process.cpu()
	if err != nil {
		return err
	}

	o, err := bucket.load(ctx, connections, b.warm(), b.time)
	if err != nil {
		return err
	}

	after, err := s.process.cpu()
	if err != nil {
		return err
	}

	s.rates = append(s.rates, o.rate())
	s.p50 = append(s.p50, micros(o.quantile(0.5)))
	s.p99 = append(s.p99, micros(o.quantile(0.99)))
	s.cpu = append(s.cpu, micros(after-before)/float64(o.all))

	return nil
}

func (b *bench) reportSingle(all []*server, viaRedis, peer *server) {
	r := b.report
	node := all[0]
	empty := all[1]
	part := over(node.rates, empty.rates)
	r.add("S2", "single check over HTTP ÷ empty handler on the same library", atLeast(0.9, "≥ 0.9"),
		part, sizesDiffer(node, empty))
	const what = "single check over HTTP ÷ Redis + Lua"
	redisGoal := atLeast(1.5, "≥ 1.5")
	if viaRedis.process == nil {
		r.missing("S2", what, redisGoal, "there is no redis-server on this machine")
	} else {
		r.add("S2", what, redisGoal, over(node.rates, viaRedis.rates), "")
	}

	b.reportGubernator(node, peer, part)
	r.add("S2", "processor time a check ÷ that of the empty handler", atMost(1.2, "≤ 1.2"),
		over(node.cpu, empty.cpu), "")

	for _, s := range all[2:] {
		r.add("S2", "single check over HTTP ÷ "+s.name, noGoal(), over(node.rates, s.rates), "")
		r.add("S2", "processor time a check ÷ that of "+s.name, noGoal(), over(node.cpu, s.cpu), "")
	}

	for _, s := range all {
		s.figures(r, "S2")
	}

	if viaRedis.process != nil {
		viaRedis.figures(r, "S2")
	}
}

// sizesDiffer notes if the answers of the two differ much in size.
func sizesDiffer(a, b *server) string {
	if d := a.size/b.size - 1; d > 0.02 || d < -0.02 {
		return fmt.Sprintf("answers of %.0f and %.0f bytes", a.size, b.size)
	}
	return ""
}

// batchChecks measures S3.
func (b *bench) batchChecks(ctx context.Context, n, withLimits, beside *node) error {
	requests := batches(batchKinds, batchSize, keysUpTo(singleKeys),
		func(key string) string { return checkBody(plenty, key) })
	all, err := b.rivals(ctx, n, beside, "the same answers without deciding", b.host(3)+":8080", requests, batchSize)
	if err != nil {
		return err
	}

	defer all[1].end()

	var turns []contender
	for _, s := range all {
		turns = append(turns, s.contender(b))
	}

	inline := inlineServer(withLimits, batches(batchKinds, batchSize, keysUpTo(singleKeys), inlineBody), batchSize)
	turns = append(turns, inline.contender(b))
	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}

	b.reportInline("S3", "batch of 100", noGoal(), inline, all[0])
	b.report.add("S3", "batch of 100 over HTTP ÷ a server that answers the same without deciding",
		atLeast(0.45, "≥ 0.45"),
		over(all[0].rates, all[1].rates), sizesDiffer(all[0], all[1]))

	for _, s := range all[2:] {
		b.report.add("S3", "batch of 100 over HTTP ÷ "+s.name, noGoal(), over(all[0].rates, s.rates), "")
	}

	for _, s := range all {
		s.figures(b.report, "S3")
	}

	return nil
}
