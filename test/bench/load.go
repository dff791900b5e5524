package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// target is a server and its encoded requests.
type target struct {
	address  string
	requests [][]byte
}

// load is a closed loop: each connection has one request in flight, drawn evenly from its target's.
type load struct {
	targets     []target // connection i belongs to target i mod len
	connections int
	duration    time.Duration
	warm        time.Duration // warm-up, not counted
	progress    *atomic.Int64 // if not nil, counts answers during the run, in batches
}

// outcome is the result of a load.
type outcome struct {
	latencies
	all     int64 // requests, including the warm-up's
	refused int64 // counted requests with status 429
	bytes   int64 // of the counted answers
	took    time.Duration
}

// rate returns requests per second.
func (o *outcome) rate() float64 { return float64(o.count) / o.took.Seconds() }

// stallTime is how long to wait for an answer before the load gives up.
const stallTime = 20 * time.Second

// run opens the connections, sends requests until the time is over, and returns the outcome.
func (l *load) run(ctx context.Context) (*outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	lanes := make([]*lane, l.connections)
	for i := range lanes {
		one, err := newLane(ctx, uint64(i), &l.targets[i%len(l.targets)], l.progress)
		if err != nil {
			for _, o := range lanes[:i] {
				_ = o.conn.Close()
			}
			return nil, err
		}
		lanes[i] = one
	}

	from := time.Now().Add(l.warm)
	to := from.Add(l.duration)

	var group sync.WaitGroup
	for _, one := range lanes {
		group.Go(func() {
			if err := one.run(ctx, from, to); err != nil {
				cancel(err) // without this connection, the others' figures are useless
			}
		})
	}

	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	total := &outcome{took: l.duration}
	for _, one := range lanes {
		total.merge(&one.latencies)
		total.all += one.all
		total.refused += one.refused
		total.bytes += one.bytes
	}

	if total.count == 0 {
		return nil, fmt.Errorf("%s: nothing was answered within %v", l.targets[0].address, l.duration)
	}

	return total, nil
}

// lane is one connection. It does as little as possible, because it shares the
// processors with the servers under load.
type lane struct {
	outcome
	conn     net.Conn
	requests [][]byte
	rng      *rand.PCG
	progress *atomic.Int64
	replies  replyReader
}

func newLane(ctx context.Context, seed uint64, t *target, progress *atomic.Int64) (*lane, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t.address, err)
	}
	return &lane{
		conn: conn, requests: t.requests, rng: rand.NewPCG(seed, uint64(len(t.requests))), progress: progress,
		replies: replyReader{buf: make([]byte, 64<<10)},
	}, nil
}

// run sends requests until to, and counts answers from the end of the warm-up.
func (l *lane) run(ctx context.Context, from, to time.Time) error {
	defer l.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = l.conn.Close() })()

	if err := l.conn.SetDeadline(to.Add(stallTime)); err != nil {
		return fmt.Errorf("set a deadline: %w", err)
	}

	const step = 16 // answers per update of progress
	for sent := time.Now(); sent.Before(to); {
		request := l.requests[l.rng.Uint64()%uint64(len(l.requests))]
		if _, err := l.conn.Write(request); err != nil {
			return fmt.Errorf("send a request: %w", err)
		}

		status, size, err := l.replies.read(l.conn)
		if err != nil {
			return fmt.Errorf("read an answer: %w", err)
		}
		if status != 200 && status != 429 {
			return fmt.Errorf("have status %d: %.300s", status, l.replies.last())
		}

		l.all++
		if l.progress != nil && l.all%step == 0 {
			l.progress.Add(step)
		}

		now := time.Now()
		if sent.After(from) && !now.After(to) {
			l.add(now.Sub(sent))
			l.bytes += int64(size)
			if status == 429 {
				l.refused++
			}
		}

		sent = now
	}

	return nil
}

// replyReader reads HTTP/1.1 answers with a length, as far as a load needs them.
type replyReader struct {
	buf        []byte
	start, end int // range of buf that is not read yet
	reply      []byte
}

var errReply = errors.New("no answer of HTTP/1.1 with a Content-Length")

// last returns the answer read last; it is valid until the next one is read.
func (r *replyReader) last() []byte { return r.reply }

// read reads one answer and returns its status and its size.
func (r *replyReader) read(conn interface{ Read([]byte) (int, error) }) (status, size int, err error) {
	for {
		have := r.buf[r.start:r.end]
		if size == 0 {
			if status, size, err = parseHead(have); err != nil {
				return 0, 0, err
			}
		}

		if size > 0 && len(have) >= size {
			r.reply = have[:size]
			r.start += size
			if r.start == r.end {
				r.start, r.end = 0, 0
			}
			return status, size, nil
		}

		if r.start > 0 { // one answer always fits the buffer, but two may not
			r.end = copy(r.buf, have)
			r.start = 0
		}

		if need := max(size, r.end+1); need > len(r.buf) {
			r.buf = append(r.buf, make([]byte, need)...)
		}

		n, err := conn.Read(r.buf[r.end:])
		r.end += n
		if err != nil && n == 0 {
			return 0, 0, err
		}
	}
}

// parseHead returns the status of the answer at the start of b, and the size of
// its head and body; the size is 0 until the head is complete.
func parseHead(b []byte) (status, size int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return 0, 0, nil
	}

	const statusAt = len("HTTP/1.1 ")
	head := b[:end]
	_, after, ok := bytes.Cut(head, []byte("\r\nContent-Length: "))
	if !ok || len(head) < statusAt+3 {
		return 0, 0, errReply
	}

	if line := bytes.IndexByte(after, '\r'); line >= 0 {
		after = after[:line]
	}

	length, err := strconv.Atoi(string(after))
	if err != nil || length < 0 {
		return 0, 0, errReply
	}
	if status, err = strconv.Atoi(string(head[statusAt : statusAt+3])); err != nil {
		return 0, 0, errReply
	}

	return status, end + 4 + length, nil
}
