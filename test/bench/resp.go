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

// respCommand is a command about one of many keys: its words, where %s stands for the key.
type respCommand []string

var (
	throttleCommand = respCommand{"CL.THROTTLE", "%s", "1000000000", "10000", "3600"}
	increxCommand   = respCommand{"INCREX", "%s", "UBOUND", "1000000000", "EX", "3600", "ENX"}
	incrCommand     = respCommand{"INCR", "%s"}
	checkCommand    = respCommand{"RL.CHECK", "plenty", "%s"} // of a hybrid limit
)

// encode returns the command about each key, as it is sent.
func (c respCommand) encode(keys []string) (list [][]byte) {
	for _, key := range keys {
		b := fmt.Appendf(nil, "*%d\r\n", len(c))
		for _, word := range c {
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

// loadOne sends pipelines over one connection, and returns how many commands
// were answered in between.
func (s *respServer) loadOne(ctx context.Context, seed int, from, to time.Time) (count int, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.addresses[seed%len(s.addresses)])
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", s.name, err)
	}

	defer conn.Close()

	rng := rand.New(rand.NewPCG(uint64(seed), 14))
	var out []byte

	replies := respReader{conn: conn, buf: make([]byte, 16<<10)}
	for sent := time.Now(); sent.Before(to); {
		out = out[:0]
		for range s.depth {
			out = append(out, s.requests[rng.IntN(len(s.requests))]...)
		}

		if _, err := conn.Write(out); err != nil {
			return 0, fmt.Errorf("ask %s: %w", s.name, err)
		}

		for range s.depth {
			if err := replies.next(); err != nil {
				return 0, fmt.Errorf("ask %s: %w", s.name, err)
			}
		}

		now := time.Now()
		if sent.After(from) && !now.After(to) {
			count += s.depth
		}

		sent = now
	}

	return count, nil
}

// respReader reads replies of RESP2, as far as a load needs them.
type respReader struct {
	conn       net.Conn
	buf        []byte
	start, end int // range of buf that is not read yet
}

// next reads a reply with all its elements. It returns an error if one is.
func (r *respReader) next() error {
	for values := 1; values > 0; values-- {
		line, err := r.upTo('\n')
		if err != nil {
			return err
		}

		n, _ := strconv.Atoi(string(line[1 : len(line)-2]))
		switch line[0] {
		case '-':
			return fmt.Errorf("the reply is %q", line)
		case '*':
			values += max(n, 0)
		case '$':
			_, err = r.upTo('\n') // no text here has a line end
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// upTo returns what comes up to the first end, which is valid until the next call.
func (r *respReader) upTo(end byte) ([]byte, error) {
	for {
		have := r.buf[r.start:r.end]
		if at := bytes.IndexByte(have, end); at >= 0 {
			r.start += at + 1
			return have[:at+1], nil
		}

		if len(have) == len(r.buf) {
			return nil, errors.New("a line of the reply is too long")
		}

		r.end = copy(r.buf, have)
		r.start = 0
		n, err := r.conn.Read(r.buf[r.end:])
		if err != nil {
			return nil, err
		}
		r.end += n
	}
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

	p, err := b.procs.start(name, nil, nil, program,
		append(words[1:], "--bind", address, "--port", port, "--save", "", "--appendonly", "no")...)
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
	one, err := b.startNode(b.program, "redis-one", b.host(20), benchRules, flag...)
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

	own := net.JoinHostPort(b.host(20), strconv.Itoa(port))
	servers := map[string]*respServer{}
	var turns []contender
	var order []*respServer
	add := func(id, name string, command respCommand, depth int, addresses ...string) {
		if addresses[0] == "" {
			return
		}

		keys := keysUpTo(singleKeys)
		if id == "threeCheck" {
			keys = keysUpTo(clusterKeys)
		}

		s := &respServer{name: name, addresses: addresses, requests: command.encode(keys), depth: depth}
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
		add("incr", "Redis, INCR"+by, incrCommand, depth, cell)
		add("ownCheck", "rlnode, RL.CHECK, hybrid"+by, checkCommand, depth, own)
		add("threeCheck", "three nodes, RL.CHECK, hybrid"+by, checkCommand, depth, three...)
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
		{"CL.THROTTLE, one at a time ÷ redis-cell", "own1", "cell1", atLeast(0.9, "≥ 0.9"),
			"-redis-cell names no server"},
		{"CL.THROTTLE, 16 at a time ÷ redis-cell", "own16", "cell16", atLeast(1, "≥ 1"), "-redis-cell names no server"},
		{"INCREX, one at a time ÷ Redis", "ownIncrex1", "increx1", atLeast(0.9, "≥ 0.9"),
			"-redis-increx names no server"},
		{"INCREX, 16 at a time ÷ Redis", "ownIncrex16", "increx16", noGoal(), "-redis-increx names no server"},
		{"INCREX, one at a time ÷ INCR of Redis", "ownIncrex1", "incr1", noGoal(), "-redis-cell names no server"},
		{"RL.CHECK of a hybrid limit, one at a time, three nodes ÷ one", "threeCheck1", "ownCheck1",
			atLeast(0.9, "≥ 0.9"), ""},
		{"RL.CHECK of a hybrid limit, 16 at a time, three nodes ÷ one", "threeCheck16", "ownCheck16", noGoal(), ""},
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
