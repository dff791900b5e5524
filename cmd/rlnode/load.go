package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// schedule says when requests are due. Without a rate they are due at once.
type schedule struct {
	start time.Time
	rate  int // a second; 0: none
	next  atomic.Int64
}

// wait takes the next place and returns when it was due, or false when ctx is over before.
func (s *schedule) wait(ctx context.Context) (time.Time, bool) {
	if s.rate == 0 {
		return time.Now(), ctx.Err() == nil
	}
	n := s.next.Add(1) - 1
	due := s.start.Add(time.Duration(float64(n) / float64(s.rate) * float64(time.Second)))
	if early := time.Until(due); early > 0 {
		timer := time.NewTimer(early)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return due, false
		case <-timer.C:
		}
	}
	return due, ctx.Err() == nil
}

// loader is one connection that asks again and again. It writes HTTP by hand: a client library would use as
// much of the processor as the node that is measured.
type loader struct {
	target *url.URL
	tls    *tls.Config
	head   string // of a request, up to the value of Content-Length
	rule   string // quoted as JSON
	keys   int
	batch  int
	wait   time.Duration // for one answer
	random *rand.Rand
	figures

	conn    net.Conn // nil: not connected
	reader  *bufio.Reader
	request []byte
	body    []byte
}

func newLoader(seed uint64, c *benchCmd, target *url.URL, config *tls.Config) *loader {
	path, token := "/v1/check", ""
	if c.Batch > 1 {
		path = "/v1/check/batch"
	}
	if c.Token != "" {
		token = "Authorization: Bearer " + c.Token + "\r\n"
	}
	return &loader{
		target: target, tls: config, rule: quoteRule(c.Rule), keys: c.Keys, batch: c.Batch, wait: c.Timeout,
		random: rand.New(rand.NewPCG(seed, 1)), figures: *newFigures(),
		head: "POST " + path + " HTTP/1.1\r\nHost: " + target.Host + "\r\n" + token + "Content-Type: application/json\r\nContent-Length: ",
	}
}

// run asks until ctx is over.
func (l *loader) run(ctx context.Context, due *schedule) {
	defer l.hangUp()
	for {
		at, ok := due.wait(ctx)
		if !ok {
			return
		}
		if err := l.ask(ctx); err != nil {
			l.hangUp()
			if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(end) {
				return // cut off by the end, not by the node
			}
			l.fail(err)
			pause(ctx)
			continue
		}
		l.requests++
		l.latency.add(time.Since(at))
	}
}

// pause keeps a node that is away from being dialled as fast as it refuses.
func pause(ctx context.Context) {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (l *loader) hangUp() {
	if l.conn != nil {
		l.conn.Close() // nothing of use is lost with it
		l.conn = nil
	}
}

// ask makes one request and counts what it is answered.
func (l *loader) ask(ctx context.Context) error {
	if l.conn == nil {
		if err := l.dial(ctx); err != nil {
			return err
		}
	}
	l.body = l.body[:0]
	if l.batch > 1 {
		l.body = append(l.body, `{"checks":[`...)
	}
	for i := range l.batch {
		if i > 0 {
			l.body = append(l.body, ',')
		}
		l.body = appendCheck(l.body, l.rule, l.random.IntN(l.keys))
	}
	if l.batch > 1 {
		l.body = append(l.body, `]}`...)
	}
	l.request = append(l.request[:0], l.head...)
	l.request = strconv.AppendInt(l.request, int64(len(l.body)), 10)
	l.request = append(l.request, "\r\n\r\n"...)
	l.request = append(l.request, l.body...)
	deadline := time.Now().Add(l.wait)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end // an answer that comes after the time is up does not count
	}
	if err := l.conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := l.conn.Write(l.request); err != nil {
		return err
	}
	return l.answer()
}

func (l *loader) dial(ctx context.Context) error {
	host := l.target.Host
	if l.target.Port() == "" {
		host = net.JoinHostPort(l.target.Hostname(), l.target.Scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, l.wait)
	defer cancel()
	var err error
	if l.target.Scheme == "https" {
		l.conn, err = (&tls.Dialer{Config: l.tls}).DialContext(ctx, "tcp", host)
	} else {
		l.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", host)
	}
	if err != nil {
		l.conn = nil
		return err
	}
	l.reader = bufio.NewReaderSize(l.conn, 64<<10)
	return nil
}

// answer reads a response. Only its status, its length and the decisions in it are looked at.
func (l *loader) answer() error {
	status, length := 0, -1
	for first := true; ; first = false {
		line, err := l.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if status = statusOf(line); status == 0 {
				return fmt.Errorf("the answer is not HTTP: %.40q", line)
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && strings.EqualFold(string(name), "content-length") {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length > maxReply {
				return fmt.Errorf("the answer's length is %.20q", value)
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("an answer of status %d without a length", status)
	}
	return l.count(status, length)
}

// count reads the body of a response and counts its decisions.
func (l *loader) count(status, length int) error {
	if l.batch > 1 && status == http.StatusOK {
		if cap(l.body) < length {
			l.body = make([]byte, length)
		}
		l.body = l.body[:length]
		if _, err := io.ReadFull(l.reader, l.body); err != nil {
			return err
		}
		allowed := bytes.Count(l.body, []byte(`"allowed":true`))
		refused := bytes.Count(l.body, []byte(`"allowed":false`))
		l.allowed, l.refused = l.allowed+int64(allowed), l.refused+int64(refused)
		if bad := l.batch - allowed - refused; bad > 0 {
			return fmt.Errorf("%d of %d checks of a batch were not decided", bad, l.batch)
		}
		return nil
	}
	if _, err := l.reader.Discard(length); err != nil {
		return err
	}
	switch status {
	case http.StatusOK:
		l.allowed++
	case http.StatusTooManyRequests:
		l.refused++
	default:
		return fmt.Errorf("the node answers %d", status)
	}
	return nil
}

// statusOf is the status in the first line of a response, 0 if it is none.
func statusOf(line []byte) int {
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0
	}
	n, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0
	}
	return n
}

// quoteRule is a rule's name as JSON; no rule stays empty.
func quoteRule(name string) string {
	if name == "" {
		return ""
	}
	quoted, _ := json.Marshal(name) // a string can always be marshalled
	return string(quoted)
}

// appendCheck writes the check of one subject, of a rule's quoted name or of all rules.
func appendCheck(b []byte, rule string, key int) []byte {
	if rule == "" {
		b = append(b, `{"attributes":{"ip":"`...)
	} else {
		b = append(b, `{"rule":`...)
		b = append(b, rule...)
		b = append(b, `,"key":"`...)
	}
	b = strconv.AppendInt(b, int64(10+key>>24), 10)
	for shift := 16; shift >= 0; shift -= 8 {
		b = append(b, '.')
		b = strconv.AppendInt(b, int64(key>>shift&0xff), 10)
	}
	if rule == "" {
		return append(b, `"}}`...)
	}
	return append(b, `"}`...)
}
