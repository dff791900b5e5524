package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// respDepth is how many commands a pipeline has.
const respDepth = 16

// respCommand is a command about one of many keys, and how many lines its reply has.
type respCommand struct {
	words []string // %s stands for the key
	lines int
}

var (
	throttleCommand = respCommand{[]string{"CL.THROTTLE", "%s", "1000000000", "10000", "3600"}, 6}
	increxCommand   = respCommand{[]string{"INCREX", "%s", "UBOUND", "1000000000", "EX", "3600", "ENX"}, 3}
)

// encode returns the command about each key, as it is sent.
func (c respCommand) encode(keys []string) (list [][]byte) {
	for _, key := range keys {
		b := fmt.Appendf(nil, "*%d\r\n", len(c.words))
		for _, word := range c.words {
			word = strings.ReplaceAll(word, "%s", key)
			b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(word), word)
		}
		list = append(list, b)
	}
	return list
}

// respServer is a server of the Redis protocol under load, with one value per round.
type respServer struct {
	name      string
	addresses []string // the connections are spread over them
	command   respCommand
	requests  [][]byte
	depth     int
	rates     series
}

// round loads the server once.
func (s *respServer) round(ctx context.Context, b *bench) error {
	from := time.Now().Add(b.warm())
	to := from.Add(b.time)
	counts, errs := make([]int, connections), make([]error, connections)
	var group sync.WaitGroup
	for i := range connections {
		group.Go(func() { counts[i], errs[i] = s.loadOne(ctx, i, from, to) })
	}

	group.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}

	s.rates = append(s.rates, float64(total)/b.time.Seconds())
	return errors.Join(errs...)
}

// loadOne sends pipelines over one connection, and returns how many commands were answered in between.
func (s *respServer) loadOne(ctx context.Context, seed int, from, to time.Time) (count int, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.addresses[seed%len(s.addresses)])
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", s.name, err)
	}

	defer conn.Close()

	rng := rand.New(rand.NewPCG(uint64(seed), 14))
	var out []byte

	in := make([]byte, 16<<10)
	for sent := time.Now(); sent.Before(to); {
		out = out[:0]
		for range s.depth {
			out = append(out, s.requests[rng.IntN(len(s.requests))]...)
		}

		if _, err := conn.Write(out); err != nil {
			return 0, fmt.Errorf("ask %s: %w", s.name, err)
		}

		for lines := 0; lines < s.depth*s.command.lines; {
			n, err := conn.Read(in)
			if err != nil {
				return 0, fmt.Errorf("ask %s: %w", s.name, err)
			}
			if at := bytes.IndexByte(in[:n], '-'); at >= 0 && bytes.HasPrefix(in[at:n], []byte("-ERR")) {
				return 0, fmt.Errorf("%s answers %q", s.name, in[:n])
			}
			lines += bytes.Count(in[:n], []byte("\n"))
		}

		now := time.Now()
		if sent.After(from) && !now.After(to) {
			count += s.depth
		}

		sent = now
	}

	return count, nil
}

// startRespServer starts a server that a flag names. Without one, it returns an empty address.
func (b *bench) startRespServer(ctx context.Context, name, command, address string) (string, *process, error) {
	if command == "" {
		return "", nil, nil
	}

	const port = "6379"
	words := strings.Fields(command)
	program, err := exec.LookPath(words[0])
	if err != nil {
		return "", nil, fmt.Errorf("find %s: %w", name, err)
	}

	p, err := b.procs.start(name, nil, nil, program, append(words[1:], "--bind", address, "--port", port, "--save", "", "--appendonly", "no")...)
	if err != nil {
		return "", nil, err
	}

	at := net.JoinHostPort(address, port)
	err = p.await(ctx, "it accepts connections", func() bool {
		conn, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return at, p, err
}

// asRedis measures S14.
func (b *bench) asRedis(ctx context.Context) error {
	const port = 6379
	flag := []string{"--redis-port", strconv.Itoa(port)}
	one, err := b.startNode(b.program, "redis-one", b.host(20), flag...)
	if err != nil {
		return err
	}
	defer one.stop()
	if err := one.awaitReady(ctx); err != nil {
		return err
	}
	nodes, err := b.startCluster(ctx, []string{b.host(21), b.host(22), b.host(23)}, flag...)
	if err != nil {
		return err
	}
	defer stopAll(nodes)
	var three []string
	for i := range nodes {
		three = append(three, net.JoinHostPort(b.host(21+i), strconv.Itoa(port)))
	}
	cell, cellProcess, err := b.startRespServer(ctx, "redis-cell", b.cell, b.host(24))
	if cellProcess != nil {
		defer cellProcess.stop()
	}
	if err != nil {
		return err
	}
	increx, increxProcess, err := b.startRespServer(ctx, "redis-increx", b.increx, b.host(25))
	if increxProcess != nil {
		defer increxProcess.stop()
	}
	if err != nil {
		return err
	}

	keys, own := keysUpTo(singleKeys), net.JoinHostPort(b.host(20), strconv.Itoa(port))
	servers := map[string]*respServer{}
	var turns []contender
	var order []*respServer
	add := func(id, name string, command respCommand, depth int, addresses ...string) {
		if addresses[0] == "" {
			return
		}
		s := &respServer{name: name, addresses: addresses, command: command, requests: command.encode(keys), depth: depth}
		servers[id+strconv.Itoa(depth)] = s
		order = append(order, s)
		turns = append(turns, contender{name, func(ctx context.Context) error { return s.round(ctx, b) }})
	}
	for _, depth := range []int{1, respDepth} {
		by := fmt.Sprintf(", %d at a time", depth)
		add("own", "rlnode, CL.THROTTLE"+by, throttleCommand, depth, own)
		add("three", "three nodes, CL.THROTTLE"+by, throttleCommand, depth, three...)
		add("cell", "redis-cell, CL.THROTTLE"+by, throttleCommand, depth, cell)
		add("ownIncrex", "rlnode, INCREX"+by, increxCommand, depth, own)
		add("increx", "Redis, INCREX"+by, increxCommand, depth, increx)
	}
	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}
	b.reportRedis(servers)
	for _, s := range order {
		b.report.figure("S14", s.name, "", "commands/s", s.rates)
	}
	return nil
}

// reportRedis adds the rows of S14.
func (b *bench) reportRedis(servers map[string]*respServer) {
	for _, row := range []struct {
		what, own, other string
		goal             goal
		missing          string
	}{
		{"CL.THROTTLE, one at a time ÷ redis-cell", "own1", "cell1", atLeast(0.9, "≥ 0.9"), "-redis-cell names no server"},
		{"CL.THROTTLE, 16 at a time ÷ redis-cell", "own16", "cell16", atLeast(1, "≥ 1"), "-redis-cell names no server"},
		{"INCREX, one at a time ÷ Redis", "ownIncrex1", "increx1", atLeast(0.9, "≥ 0.9"), "-redis-increx names no server"},
		{"INCREX, 16 at a time ÷ Redis", "ownIncrex16", "increx16", noGoal(), "-redis-increx names no server"},
		{"CL.THROTTLE, one at a time, three nodes ÷ one", "three1", "own1", noGoal(), ""},
		{"CL.THROTTLE, 16 at a time, three nodes ÷ one", "three16", "own16", noGoal(), ""},
	} {
		own, other := servers[row.own], servers[row.other]
		if other == nil {
			b.report.missing("S14", row.what, row.goal, row.missing)
			continue
		}

		b.report.add("S14", row.what, row.goal, over(own.rates, other.rates), "")
	}
}
