package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxBuffered bounds the bytes that one direction of a stream holds before a write waits.
const maxBuffered = 256 << 10

// pipe is one direction of a stream.
type pipe struct {
	host struct{ from, to *Host } // immutable

	mu            sync.Mutex // guards the rest
	segments      []segment  // written but not read yet, oldest first
	size          int        // bytes in segments
	held          bool       // nothing arrives
	since         time.Time  // when held began
	reverseHeld   bool       // nothing arrives in the other direction
	stalled       time.Time  // nothing arrives before this, even if not held: see Net.Backoff
	delay         time.Duration
	finished      time.Time // when EOF arrives, if the writer has closed
	closed        bool      // the writer has closed
	readerClosed  bool      // the reader has closed
	resetW        bool      // the writer's host has crashed
	resetR        bool      // the reader's host has crashed
	readDeadline  deadline
	writeDeadline deadline
	waiting       int         // the number of waiters for a change
	change        sync.Cond   // uses mu
	alarm         *time.Timer // broadcasts change at alarmAt; nil until first needed
	alarmAt       time.Time   // zero: the alarm is not set
}

// segment is the data of one write.
type segment struct {
	data    []byte
	at      time.Time // when it arrives, unless the link is held then
	arrived bool      // it had arrived before the link was held
}

type deadline struct{ at time.Time }

func (d deadline) over(now time.Time) bool { return !d.at.IsZero() && !now.Before(d.at) }

func (p *pipe) changedLocked() {
	if p.waiting > 0 {
		p.change.Broadcast()
	}
}

// wait releases the mutex until something changes or the earliest nonzero time is reached.
func (p *pipe) wait(now time.Time, times ...time.Time) {
	for _, t := range times {
		if !t.IsZero() {
			p.wakeAtLocked(now, t)
		}
	}
	p.waiting++
	p.change.Wait()
	p.waiting--
}

// wakeAtLocked wakes the waiters at that time.
func (p *pipe) wakeAtLocked(now, at time.Time) {
	if !p.alarmAt.IsZero() && !at.Before(p.alarmAt) {
		return // waiters look again at that time, and wait anew
	}
	p.alarmAt = at
	if p.alarm == nil {
		p.alarm = time.AfterFunc(at.Sub(now), p.wakeWaiters)
	} else {
		p.alarm.Reset(at.Sub(now))
	}
}

func (p *pipe) wakeWaiters() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alarmAt = time.Time{}
	p.changedLocked()
}

// Read takes what has arrived.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for {
		now := time.Now()
		switch {
		case p.readerClosed:
			return 0, net.ErrClosed
		case p.resetR, p.resetW && !p.held:
			return 0, syscall.ECONNRESET
		case p.readDeadline.over(now):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		}

		if n := p.takeLocked(b, now); n > 0 {
			p.changedLocked()
			return n, nil
		}

		var next time.Time
		if !p.held {
			switch {
			case len(p.segments) > 0:
				next = laterOf(p.segments[0].at, p.stalled)
			case p.closed && !now.Before(laterOf(p.finished, p.stalled)):
				return 0, io.EOF
			case p.closed:
				next = laterOf(p.finished, p.stalled)
			}
		}

		p.wait(now, p.readDeadline.at, next)
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// takeLocked moves what has arrived to b.
func (p *pipe) takeLocked(b []byte, now time.Time) (n int) {
	for n < len(b) && len(p.segments) > 0 {
		s := &p.segments[0]
		if !s.arrived && (p.held || now.Before(s.at) || now.Before(p.stalled)) {
			break
		}

		k := copy(b[n:], s.data)
		n += k

		s.data = s.data[k:]
		if len(s.data) == 0 {
			p.segments[0] = segment{}
			p.segments = p.segments[1:]
		}
	}

	p.size -= n
	return n
}

// write puts b into the buffer. While that is full, it waits, or returns if wait is false.
func (p *pipe) write(b []byte, wait bool) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for {
		now := time.Now()
		switch {
		case p.closed:
			return n, net.ErrClosed
		case p.resetW, p.resetR && !p.held && !p.reverseHeld:
			return n, syscall.ECONNRESET
		case p.readerClosed && !p.held && !p.reverseHeld:
			return n, syscall.EPIPE
		case p.writeDeadline.over(now):
			return n, os.ErrDeadlineExceeded
		}

		if room := min(maxBuffered-p.size, len(b)); room > 0 {
			p.segments = append(p.segments, segment{data: append([]byte(nil), b[:room]...), at: now.Add(p.delay)})
			p.size += room
			n += room
			b = b[room:]

			switch {
			case p.delay == 0:
				p.changedLocked()
			case p.waiting > 0:
				p.wakeAtLocked(now, now.Add(p.delay))
			}
		}

		if len(b) == 0 || !wait {
			return n, nil
		}

		p.wait(now, p.writeDeadline.at)
	}
}

// closeWrite ends the stream: the reader gets the rest, and then EOF.
func (p *pipe) closeWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		p.finished = time.Now().Add(p.delay)
		p.changedLocked()
	}
}

// closeRead records that the reader has closed.
func (p *pipe) closeRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readerClosed = true
	p.segments, p.size = nil, 0
	p.changedLocked()
}

// isClosed reports whether both ends have closed.
func (p *pipe) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed && p.readerClosed
}

func (p *pipe) isWriterGone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// reset is called when the writer's host, the reader's, or both crash.
func (p *pipe) reset(writer, reader bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetW = p.resetW || writer
	p.resetR = p.resetR || reader
	p.changedLocked()
}

// setPath applies the state of the path: which directions are held, its delay, and Net.Backoff.
func (p *pipe) setPath(held, back bool, delay time.Duration, backoff bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	now := time.Now()
	if p.held && !held && backoff && len(p.segments) > 0 {
		p.stalled = now.Add(now.Sub(p.since))
	}

	if held && !p.held {
		p.since = now
		for i := range p.segments {
			p.segments[i].arrived = !now.Before(p.segments[i].at)
		}
	}

	if held != p.held || back != p.reverseHeld || delay != p.delay {
		p.held = held
		p.reverseHeld = back
		p.delay = delay
		p.changedLocked()
	}
}

func (p *pipe) setDeadline(d *deadline, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.at = t
	p.changedLocked()
}
