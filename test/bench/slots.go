package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	slotKeys   = 1000
	slotsEach  = 1000 // pairs a second, beside checks
	slotCaller = 30   // connections that make them
)

// slotLane is a connection that acquires a slot, releases it, and so on.
type slotLane struct {
	latencies
	conn    net.Conn
	replies replyReader
}

func newSlotLane(ctx context.Context, address string) (*slotLane, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return &slotLane{conn: conn, replies: replyReader{buf: make([]byte, 16<<10)}}, nil
}

// pair acquires and releases one slot of a key.
func (l *slotLane) pair(key string) error {
	if err := l.ask("/v1/acquire", `{"rule":"slots","key":"`+key+`"}`); err != nil {
		return err
	}

	_, after, _ := bytes.Cut(l.replies.last(), []byte(`"slot":"`))
	id, _, ok := bytes.Cut(after, []byte(`"`))
	if !ok {
		return fmt.Errorf("an answer without a slot: %.300s", l.replies.last())
	}

	return l.ask("/v1/release", `{"slot":"`+string(id)+`"}`)
}

// ask sends a request and reads its answer, which must be a success.
func (l *slotLane) ask(path, body string) error {
	if _, err := l.conn.Write(postRequest(path, body)); err != nil {
		return fmt.Errorf("send %s: %w", path, err)
	}

	status, _, err := l.replies.read(l.conn)
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	if status != 200 {
		return fmt.Errorf("%s: have status %d: %.300s", path, status, l.replies.last())
	}

	return nil
}

// slotLoad is acquiring and releasing over many connections, until its context ends.
type slotLoad struct {
	addresses []string
	callers   int
	every     time.Duration // from one pair of a connection to its next; 0 for no pause
}

// run returns the times of the pairs that were made between the two times.
func (s *slotLoad) run(ctx context.Context, from, to time.Time) (*latencies, error) {
	lanes, errs := make([]*slotLane, s.callers), make([]error, s.callers)
	var group sync.WaitGroup
	for i := range s.callers {
		group.Go(func() { lanes[i], errs[i] = s.one(ctx, i, from, to) })
	}

	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	total := &latencies{}
	for _, lane := range lanes {
		total.merge(&lane.latencies)
	}

	return total, nil
}

func (s *slotLoad) one(ctx context.Context, i int, from, to time.Time) (*slotLane, error) {
	lane, err := newSlotLane(ctx, s.addresses[i%len(s.addresses)])
	if err != nil {
		return nil, err
	}

	defer lane.conn.Close()

	if err := lane.conn.SetDeadline(to.Add(stallTime)); err != nil {
		return nil, fmt.Errorf("set a deadline: %w", err)
	}

	rng := rand.New(rand.NewPCG(uint64(i), 15))
	next := time.Now().Add(time.Duration(rng.Int64N(int64(s.every) + 1)))
	for time.Now().Before(to) && ctx.Err() == nil {
		if s.every > 0 {
			time.Sleep(time.Until(next))
			next = next.Add(s.every)
		}

		sent := time.Now()
		if err := lane.pair(keyName(rng.IntN(slotKeys))); err != nil {
			return nil, err
		}

		if now := time.Now(); sent.After(from) && !now.After(to) {
			lane.add(now.Sub(sent))
		}
	}

	return lane, nil
}

// slotRound is one kind of load with its figures of all rounds.
type slotRound struct {
	name            string
	load            slotLoad
	rates, p50, p99 series
}

func (s *slotRound) round(ctx context.Context, f *fleet) error {
	from := time.Now().Add(f.time / 2)
	times, err := s.load.run(ctx, from, from.Add(f.time))
	if err != nil {
		return err
	}

	s.rates = append(s.rates, float64(times.count)/f.time.Seconds())
	s.p50 = append(s.p50, micros(times.quantile(0.5)))
	s.p99 = append(s.p99, micros(times.quantile(0.99)))
	return nil
}

// slots measures S15: pairs of acquire and release, and S4's hybrid checks
// beside a steady stream of pairs.
func (f *fleet) slots(ctx context.Context) error {
	var three []string
	for _, n := range f.three {
		three = append(three, n.data)
	}

	var turns []contender
	var loads []*slotRound
	for _, callers := range []int{1, connections} {
		for _, to := range []struct {
			name      string
			addresses []string
		}{{"one node", []string{f.one.data}}, {"three nodes", three}} {
			s := &slotRound{name: fmt.Sprintf("%s, %d callers", to.name, callers),
				load: slotLoad{addresses: to.addresses, callers: callers}}
			loads = append(loads, s)
			turns = append(turns, contender{s.name, func(ctx context.Context) error { return s.round(ctx, f) }})
		}
	}

	alone := f.newTraffic("three nodes, hybrid", "plenty", f.three, checks(plenty, keysUpTo(clusterKeys)))
	beside := f.newTraffic("three nodes, hybrid, beside pairs", "plenty", f.three,
		checks(plenty, keysUpTo(clusterKeys)))
	steady := slotLoad{addresses: three, callers: slotCaller, every: time.Second * slotCaller / slotsEach}
	var made series
	turns = append(turns,
		contender{alone.name, func(ctx context.Context) error { return alone.round(ctx, f) }},
		contender{beside.name, func(ctx context.Context) error {
			n, err := f.besidePairs(ctx, &steady, beside)
			made = append(made, n)
			return err
		}})

	if err := takeTurns(ctx, f.rounds, turns, f.progress); err != nil {
		return err
	}

	one, all := loads[2], loads[3]
	f.report.add("S15", "acquire and release, three nodes in total ÷ one node", noGoal(),
		over(all.rates, one.rates), "")
	f.report.add("S15",
		fmt.Sprintf("S4's hybrid checks beside %.0f pairs a second ÷ without", made.median()),
		atLeast(0.95, "≥ 0.95"),
		over(beside.rates, alone.rates), "")
	for _, s := range loads {
		f.report.figure("S15", "pairs of acquire and release, "+s.name, "", "pairs/s", s.rates)
		f.report.figure("S15", "a pair, "+s.name, "p50", "µs", s.p50)
		f.report.figure("S15", "a pair, "+s.name, "p99", "µs", s.p99)
	}

	return nil
}

// besidePairs is a round of checks beside pairs. It returns how many pairs a second were made.
func (f *fleet) besidePairs(ctx context.Context, pairs *slotLoad, checks *traffic) (float64, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	from := time.Now()
	var times *latencies
	failed := make(chan error, 1)
	go func() {
		var err error
		times, err = pairs.run(ctx, from, from.Add(f.time*2))
		failed <- err
	}()

	err := checks.round(ctx, f)
	took := time.Since(from)
	stop()
	if err := errors.Join(err, <-failed); err != nil {
		return 0, err
	}

	return float64(times.count) / took.Seconds(), nil
}
