package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	heldConnections = 3000 // in S16
	firstHeld       = 50   // before these, a node has not allocated what all connections share
	heldChecks      = 5    // checks over each connection
)

// memoryOfConnections measures S16: connections of callers that keep them open.
func (b *bench) memoryOfConnections(ctx context.Context) error {
	var own, other series
	measure := func(program, name string, to *series) contender {
		return contender{name + " with connections", func(ctx context.Context) error {
			each, err := b.holdConnections(ctx, program, fmt.Sprintf("%s-%d", name, len(*to)))
			*to = append(*to, each)
			return err
		}}
	}
	turns := []contender{measure(b.program, "rlnode", &own)}
	if b.beside != "" {
		turns = append(turns, measure(b.beside, "rlnode of -beside", &other))
	}

	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}

	b.report.add("S16", "resident KiB a connection over HTTP, kept open after checks", atMost(10, "≤ 10"),
		asRatio(own), "")
	if b.beside != "" {
		b.report.add("S16", "resident memory a connection ÷ that of -beside", noGoal(), over(own, other), "")
	}
	b.report.figure("S16", "rlnode", "", "KiB a connection", own)
	b.report.figure("S16", "rlnode of -beside", "", "KiB a connection", other)
	return nil
}

// holdConnections starts a node and returns how many KiB each connection takes
// that has made checks and stays open.
func (b *bench) holdConnections(ctx context.Context, program, name string) (each float64, err error) {
	n, err := b.startOne(ctx, program, name, b.host(27), benchRules)
	if err != nil {
		return 0, err
	}

	defer func() {
		n.stop()
		err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, name)))
	}()

	var held heldLanes
	defer held.close()
	if err := held.grow(ctx, n.data, firstHeld); err != nil {
		return 0, err
	}
	before, err := n.residence()
	if err != nil {
		return 0, err
	}

	if err := held.grow(ctx, n.data, firstHeld+heldConnections); err != nil {
		return 0, err
	}
	if err := pause(ctx, time.Second); err != nil {
		return 0, err
	}

	after, err := n.residence()
	return float64(after.resident()-before.resident()) / heldConnections / 1024, err
}

// heldLanes are open connections.
type heldLanes []heldLane

type heldLane struct {
	conn    net.Conn
	answers *bufio.Reader
}

// grow opens connections until there are size, and makes checks over all of
// them: one on each at the same time, several times.
func (h *heldLanes) grow(ctx context.Context, address string, size int) error {
	var dialer net.Dialer
	for len(*h) < size {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("open connection %d: %w", len(*h), err)
		}
		*h = append(*h, heldLane{conn, bufio.NewReader(conn)})
		if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			return fmt.Errorf("set a deadline: %w", err)
		}
	}

	requests := checks(plenty, keysUpTo(singleKeys))
	for range heldChecks {
		for i, l := range *h {
			if _, err := l.conn.Write(requests[i%len(requests)]); err != nil {
				return fmt.Errorf("send a check: %w", err)
			}
		}
		for _, l := range *h {
			if err := l.receive(); err != nil {
				return err
			}
		}
	}
	return nil
}

// receive reads an answer.
func (l *heldLane) receive() error {
	response, err := http.ReadResponse(l.answers, nil)
	if err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("a check was answered %s", response.Status)
	}
	return nil
}

func (h heldLanes) close() {
	for _, l := range h {
		_ = l.conn.Close()
	}
}
