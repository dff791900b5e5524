package main

import (
	"bytes"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestQuantiles(t *testing.T) {
	var l latencies
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond,
		0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		have := l.quantile(q)
		if off := float64(have)/float64(want) - 1; off < -0.016 || off > 0.016 {
			t.Errorf("quantile %v: have %v, want %v", q, have, want)
		}
	}
	var empty latencies
	if have := empty.quantile(0.5); have != 0 {
		t.Errorf("of nothing: have %v", have)
	}
	empty.merge(&l)
	if empty.count != 1000 || empty.quantile(0.5) != l.quantile(0.5) {
		t.Errorf("merged: have %d, %v", empty.count, empty.quantile(0.5))
	}
	empty.add(1 << 62) // beyond all buckets
	empty.add(-1)
}

// Each bucket contains its own middle, and buckets are contiguous.
func TestBuckets(t *testing.T) {
	for i := range octaves*octaveParts - octaveParts {
		if have := bucketOf(uint64(middleOf(i))); have != i {
			t.Fatalf("the middle of bucket %d, %v, is in bucket %d", i, middleOf(i), have)
		}
	}
}

func TestReplies(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	stream := "HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 2\r\nRateLimit: x\r\n\r\n{}" +
		"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + long
	for name, conn := range map[string]interface{ Read([]byte) (int, error) }{
		"at once":     strings.NewReader(stream),
		"in bytes":    iotest.OneByteReader(strings.NewReader(stream)),
		"in two each": iotest.HalfReader(strings.NewReader(stream)),
	} {
		r := replyReader{buf: make([]byte, 64)}
		for i, want := range []int{200, 429, 200} {
			status, size, err := r.read(conn)
			if err != nil || status != want || size != len(r.last()) {
				t.Fatalf("%s, answer %d: have %d of %d bytes, %v", name, i, status, size, err)
			}
		}
		if !bytes.HasSuffix(r.last(), []byte(long)) {
			t.Errorf("%s: the last answer is cut", name)
		}
		if _, _, err := r.read(conn); err == nil {
			t.Errorf("%s: no error at the end", name)
		}
	}
	for _, bad := range []string{
		"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
		"HTTP/1.1 abc\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
	} {
		r := replyReader{buf: make([]byte, 64)}
		if _, _, err := r.read(strings.NewReader(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

// A load against a server that refuses every second request.
func TestLoadCounts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	request := postRequest("/v1/check", checkBody(plenty, keyName(7)))
	done := make(chan struct{})
	go func() { // ends with the listener
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serveInTurns(conn, request)
		}
	}()
	l := load{targets: []target{{ln.Addr().String(), [][]byte{request}}}, connections: 1,
		duration: 50 * time.Millisecond}
	o, err := l.run(t.Context())
	ln.Close()
	<-done
	if err != nil || o.count == 0 || o.all < o.count || o.rate() != float64(o.count)/0.05 {
		t.Fatalf("have %d of %d, %v", o.count, o.all, err)
	}
	if odd := 2*o.refused - o.count; odd < -1 || odd > 1 {
		t.Errorf("have %d refusals of %d", o.refused, o.count)
	}
}

// serveInTurns answers 200 and 429 alternately.
func serveInTurns(conn net.Conn, request []byte) {
	defer conn.Close()
	buf := make([]byte, len(request))
	answers := []string{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n"}
	for i := 0; ; i++ {
		n, err := conn.Read(buf)
		if err != nil || !bytes.Equal(buf[:n], request) {
			return
		}
		if _, err := conn.Write([]byte(answers[i%2])); err != nil {
			return
		}
	}
}

func TestRateWhileACheckpointRan(t *testing.T) {
	begin := time.Unix(1000, 0)
	var moments []moment
	for i := range 11 { // 100 checks a second, then 50 from the fifth second on
		checks := int64(100 * i)
		if i > 5 {
			checks = int64(500 + 50*(i-5))
		}
		moments = append(moments,
			moment{begin.Add(time.Duration(i) * time.Second), checks, 2 * time.Second * time.Duration(i)})
	}
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	for _, tt := range []struct {
		from, to int
		want     float64
	}{{0, 5, 100}, {5, 10, 50}, {-3, 5, 100}, {3, 7, 75}, {6, 99, 50}} {
		if have, cpu := between(moments, at(tt.from), at(tt.to)); have != tt.want || cpu != 2e6/tt.want {
			t.Errorf("%d to %d: have %v and %v µs, want %v", tt.from, tt.to, have, cpu, tt.want)
		}
	}
	c := checkpoint{began: at(0), ended: at(4), counters: 100}
	if have := c.since(at(3)); have != 25 {
		t.Errorf("a quarter of it: have %v", have)
	}
	if have := c.since(at(-3)); have != 100 {
		t.Errorf("all of it: have %v", have)
	}
}

func TestDecisionsOfMetrics(t *testing.T) {
	m := parseMetrics([]byte("# HELP x\n" +
		`rlnode_checks_total{decided_by="lease",decision="allowed",rule="plenty"} 10` + "\n" +
		`rlnode_checks_total{decided_by="lease",decision="refused",rule="plenty"} 5` + "\n" +
		`rlnode_checks_total{decided_by="owner",decision="allowed",rule="exact"} 1e+06` + "\n" +
		"rlnode_checkpoint_counters 12\n"))
	if have := decisions(m, "plenty"); len(have) != 1 || have["lease"] != 15 {
		t.Errorf("have %v", have)
	}
	if have := decisions(m, "exact"); have["owner"] != 1e6 || m["rlnode_checkpoint_counters"] != 12 {
		t.Errorf("have %v", have)
	}
}

func TestProcessorTime(t *testing.T) {
	have, err := processorTime([]byte("12 (a (strange) name) S 1 1 1 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0"))
	if err != nil || have != 3*time.Second {
		t.Errorf("have %v, %v", have, err)
	}
	if _, err := processorTime([]byte("12 (x) S 1")); err == nil {
		t.Error("no error for too few fields")
	}
}

// Every key occurs once in the batches of a sweep.
func TestSweepHasEachKeyOnce(t *testing.T) {
	const keys = 2*sweepBatch + 95
	s := sweep{"", plenty, keys}
	var all []byte
	for i := range s.batches() {
		all = append(all, s.request(i)...)
	}
	for i := range keys {
		if n := bytes.Count(all, []byte(`"`+keyName(i)+`"`)); n != 1 {
			t.Errorf("key %d is there %d times", i, n)
		}
	}
}

// All contestants admit the checks of the bench.
func TestContestantsAdmit(t *testing.T) {
	for name, build := range contestants() {
		own, err := build(100)
		if err != nil {
			t.Fatal(err)
		}
		if own.maintain != nil {
			own.maintain()
		}
		for range 1000 {
			if !own.decide(rand.IntN(100)) {
				t.Fatalf("%s refuses", name)
			}
		}
	}
}
