package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	partSize = 1 << 20 // bytes of a ledger in one message
	// maxTaking bounds the ledgers that are handed over to one node at once.
	maxTaking = 16
	// takeTime is how long one may take until its next part.
	takeTime = time.Minute
)

// handed is what this process has handed over.
type handed struct {
	to   ring.NodeID
	what map[string]bool // files of others and of months that are over: they don't change any more
}

// part is the head of a MethodTake, before the bytes.
type part struct {
	Month    Month       `json:"month"`
	Source   ring.NodeID `json:"source"`
	Node     string      `json:"node"`
	Sequence uint64      `json:"sequence"`
	Offset   int64       `json:"offset"`
	Last     bool        `json:"last"`
	Sum      uint32      `json:"sum"` // with Last: CRC-32C of the whole file
}

// taking is a ledger on its way to this node.
type taking struct {
	file *os.File
	path string
	head header
	size int64
	sum  uint32
	last time.Time
}

func (t *taking) drop() {
	_ = t.file.Close()
	_ = os.Remove(t.path)
}

// HandOver gives all ledgers of this node to another member, which keeps them under the names of those who counted them.
// It may be called again, for what was counted since: what was handed over before is replaced, not added. It returns nil
// when the other has all on its disk.
func (c *Cluster) HandOver(ctx context.Context) error {
	c.handing.Lock()
	defer c.handing.Unlock()
	if err := c.meter.Sync(); err != nil {
		return err
	}
	list, err := entries(c.meter.dir)
	if err != nil {
		return fmt.Errorf("hand usage over: %w", err)
	}
	c.mu.Lock()
	first := c.handed.to
	c.mu.Unlock()
	errs := []error{errors.New("hand usage over: there is no other member")}
	for _, m := range c.receivers(first) {
		if err = c.handTo(ctx, m, list); err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("hand usage over to %s: %w", m.Name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs[min(1, len(errs)-1):]...)
}

// receivers are the other members, the one that took this node's ledgers before in front.
func (c *Cluster) receivers(first ring.NodeID) (list []Member) {
	for _, m := range c.members() {
		switch {
		case m.ID == c.meter.cfg.Self:
		case m.ID == first:
			list = append([]Member{m}, list...)
		default:
			list = append(list, m)
		}
	}
	return list
}

func (c *Cluster) handTo(ctx context.Context, to Member, list []entry) error {
	c.mu.Lock()
	if c.handed.to != to.ID {
		c.handed = handed{to: to.ID, what: make(map[string]bool)}
	}
	what := c.handed.what
	c.mu.Unlock()
	now := c.meter.cfg.Now()
	for _, e := range list {
		c.mu.Lock()
		had := what[e.path]
		c.mu.Unlock()
		if had {
			continue
		}
		if err := c.handFile(ctx, to, e, uint64(now)); err != nil {
			return err
		}
		if e.source != c.meter.cfg.Self || now >= (e.month+1).Begin()+int64(retireAfter) {
			c.mu.Lock()
			what[e.path] = true
			c.mu.Unlock()
		}
	}
	return nil
}

// handFile sends one ledger as it is in the file.
func (c *Cluster) handFile(ctx context.Context, to Member, e entry, sequence uint64) error {
	l, err := openListing(e.path)
	if err != nil {
		return err
	}
	h, rows, end := l.header, len(l.order), l.end
	if err := l.close(); err != nil {
		return err
	}
	if rows == 0 {
		return nil // as the month to come
	}
	if e.source == c.meter.cfg.Self {
		h.sequence = sequence
	}
	f, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer f.Close()
	p := part{Month: e.month, Source: e.source, Node: h.node, Sequence: h.sequence}
	buffer := make([]byte, partSize)
	for !p.Last {
		// Rows that are entered meanwhile are beyond end: without their beginnings they would look like damage.
		n, err := io.ReadFull(f, buffer[:min(partSize, end-p.Offset)])
		if err != nil {
			return err
		}
		p.Last = p.Offset+int64(n) == end
		p.Sum = wire.Sum(p.Sum, buffer[:n])
		if err := c.sendPart(ctx, to, &p, buffer[:n]); err != nil {
			return err
		}
		p.Offset += int64(n)
	}
	return nil
}

func (c *Cluster) sendPart(ctx context.Context, to Member, p *part, content []byte) error {
	head, err := json.Marshal(p)
	if err != nil {
		return err
	}
	body := append(wire.AppendText(nil, head), content...)
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err = c.peers.Call(ctx, to.ID, MethodTake, body)
	return err
}

// take puts a part of a ledger where it belongs; after the last one the ledger is one of this node's.
func (c *Cluster) take(body []byte) ([]byte, error) {
	d := wire.NewDecoder(body)
	var p part
	if err := json.Unmarshal(d.View(len(body)), &p); err != nil {
		return nil, errRecord
	}
	if p.Source == c.meter.cfg.Self || p.Source.IsZero() || p.Month < firstYear*12 || p.Month > lastYear*12+11 {
		return nil, errors.New("a ledger that can't be taken")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := fileName(p.Month, p.Source)
	t, err := c.takingOf(name, &p)
	if err != nil {
		return nil, err
	}
	content := d.Rest()
	if t.size != p.Offset || t.size+int64(len(content)) > mostBytes {
		return nil, errors.New("a part is missing")
	}
	if _, err := t.file.Write(content); err != nil {
		return nil, err
	}
	t.size += int64(len(content))
	t.sum = wire.Sum(t.sum, content)
	t.last = time.Now()
	if p.Last {
		delete(c.taking, name)
		if err := c.taken(t, &p, name); err != nil {
			t.drop()
			return nil, err
		}
	}
	return []byte{}, nil
}

// takingOf is the ledger that a part belongs to; the first part begins it anew.
func (c *Cluster) takingOf(name string, p *part) (*taking, error) {
	t := c.taking[name]
	if t != nil && (p.Offset == 0 || t.head.sequence != p.Sequence) {
		t.drop()
		delete(c.taking, name)
		t = nil
	}
	if t != nil {
		return t, nil
	}
	if p.Offset != 0 {
		return nil, errors.New("a part is missing")
	}
	for n, old := range c.taking {
		if time.Since(old.last) > takeTime {
			old.drop()
			delete(c.taking, n)
		}
	}
	if len(c.taking) >= maxTaking {
		return nil, errors.New("too many ledgers are handed over at once")
	}
	path := filepath.Join(c.meter.dir, name+".part")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	t = &taking{file: f, path: path, last: time.Now(),
		head: header{source: p.Source, month: p.Month, sequence: p.Sequence, node: p.Node}}
	c.taking[name] = t
	return t, nil
}

// taken makes a ledger that is whole one of this node's. An older copy of the same source gives way.
func (c *Cluster) taken(t *taking, p *part, name string) error {
	if t.sum != p.Sum || t.size < headerSize {
		return errDamaged
	}
	if _, err := t.file.WriteAt(t.head.append(nil), 0); err != nil {
		return err
	}
	if err := errors.Join(t.file.Sync(), t.file.Close()); err != nil {
		return err
	}
	path := filepath.Join(c.meter.dir, name)
	if old, err := openListing(path); err == nil {
		newer := old.header.sequence > p.Sequence
		if err := old.close(); err != nil {
			return err
		}
		if newer {
			return os.Remove(t.path)
		}
	}
	if c.listings[path] != nil {
		c.shut(path)
	}
	delete(c.handed.what, path)
	if err := os.Rename(t.path, path); err != nil {
		return err
	}
	c.meter.cfg.Logger.Info("took over a month of usage", "month", p.Month, "node", p.Node)
	return syncDir(c.meter.dir)
}
