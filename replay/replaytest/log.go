// Package replaytest writes access logs for tests. The same seed always yields the same log.
package replaytest

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Log describes a log in Combined Log Format. Addresses and paths follow Zipf's
// law, as on real servers: a few make most of the requests.
type Log struct {
	Seed      uint64
	Lines     int
	Addresses int           // how many distinct ones there may be
	Start     time.Time     // of the first line
	Span      time.Duration // from the first to the last line
	Disorder  time.Duration // how far a line's time may be before its position
}

// Small returns a log of this many lines over an hour, from up to 500
// addresses, slightly out of order.
func Small(lines int) Log {
	return Log{
		Seed: 1, Lines: lines, Addresses: 500, Start: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Span: time.Hour,
		Disorder: 3 * time.Second,
	}
}

var (
	methods = [...]string{"GET", "GET", "GET", "GET", "POST", "HEAD"}
	agents  = [...]string{
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
		"curl/8.14.1", "-", "ExampleBot/2.1 (+http://bot.example/about)",
	}
	statuses = [...]int{200, 200, 200, 200, 304, 404, 500}
)

// WriteTo writes the log to w.
func (l Log) WriteTo(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	b := bufio.NewWriterSize(counted, 64<<10)
	r := rand.New(rand.NewPCG(l.Seed, 2))
	addresses := rand.NewZipf(r, 1.1, 4, uint64(l.Addresses-1))

	paths := rand.NewZipf(r, 1.3, 2, 999)
	for i := range l.Lines {
		at := l.Start.Add(time.Duration(float64(l.Span) * float64(i) / float64(l.Lines)))
		if l.Disorder > 0 {
			at = at.Add(-time.Duration(r.Int64N(int64(l.Disorder))))
		}
		fmt.Fprintf(b, "%s - %s [%s] \"%s /page/%d?q=%d HTTP/1.1\" %d %d \"-\" \"%s\"\n",
			Address(addresses.Uint64()), user(r), at.Format("02/Jan/2006:15:04:05 -0700"),
			methods[r.IntN(len(methods))],
			paths.Uint64(), r.IntN(1000), statuses[r.IntN(len(statuses))], r.IntN(1<<16), agents[r.IntN(len(agents))])
	}

	err := b.Flush()
	return counted.n, err
}

// Address returns the n-th most frequent address.
func Address(n uint64) string {
	if n%10 == 9 {
		return fmt.Sprintf("2001:db8:%x:%x::1", n>>16&0xffff, n&0xffff)
	}
	return fmt.Sprintf("10.%d.%d.%d", n>>16&0xff, n>>8&0xff, n&0xff)
}

func user(r *rand.Rand) string {
	if r.IntN(5) > 0 {
		return "-"
	}
	return fmt.Sprintf("user%d", r.IntN(50))
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
