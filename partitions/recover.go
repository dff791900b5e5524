package partitions

import (
	"context"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

const (
	// pullTimeout bounds how long a standby may take to give back what it has.
	pullTimeout = 30 * time.Second
	// slowPatience is how many times Config.Patience a standby has that can be reached and has not answered.
	slowPatience = 5
	// backTimeout bounds one message of it.
	backTimeout = 5 * time.Second
)

// recover asks the standbys of partitions whose counters were lost with this node's memory for their copies. After
// Config.Patience it goes on with what the last checkpoint had. It runs in the loop.
func (k *Keeper) recover() {
	v := k.view.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	lists := map[ring.NodeID][]int{}
	missing := false
	waited := time.Since(k.waitSince)
	alone := 0
	for p := range k.parts {
		if k.parts[p].phase != recovering {
			continue
		}
		switch standby := v.From.Standby(p); {
		case k.pulling[standby]:
			missing = true
		case k.ready(standby):
			lists[standby] = append(lists[standby], p)
			missing = true
		case waited < k.cfg.Patience, waited < slowPatience*k.cfg.Patience && k.cfg.Calls.Reachable(standby):
			missing = true
		default:
			k.begin(p)
			alone++
		}
	}
	if alone > 0 {
		k.cfg.Logger.Warn("partitions go on with what the last checkpoint had: their standbys gave nothing back",
			"partitions", alone)
	}
	if !missing {
		k.waitSince = time.Time{}
	}
	for standby, list := range lists {
		k.pulling[standby] = true
		k.seqPull++
		body := appendPartitions(k.appendHeader(nil, k.seqPull), list)
		k.done.Go(func() { k.pull(standby, list, body) })
	}
}

// pull asks one standby, and goes on with what it gave back.
func (k *Keeper) pull(standby ring.NodeID, list []int, body []byte) {
	ctx, cancel := context.WithTimeout(k.ctx, pullTimeout)
	defer cancel()
	_, err := k.cfg.Calls.Call(ctx, standby, MethodPull, body)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pulling, standby)
	if k.ctx.Err() != nil {
		return
	}
	if err != nil {
		k.failed(standby)
		k.cfg.Logger.Debug("standby gave nothing back yet", "standby", standby.String(), "error", err)
		return
	}
	v := k.view.Load()
	for _, p := range list {
		if k.parts[p].phase == recovering && v.From.Standby(p) == standby {
			k.begin(p)
		}
	}
	k.cfg.Logger.Info("partitions recovered from their standby", "standby", standby.String(), "partitions", len(list))
}

// takePull gives an owner that lost its memory what is here of its partitions. What was admitted here meanwhile is in
// it.
func (k *Keeper) takePull(v *view, c *peer.Call, r *reader) {
	list := r.partitions()
	if r.err != nil {
		c.Fail(codeMalformed, r.err.Error())
		return
	}
	k.mu.Lock()
	for _, p := range list {
		if from, _ := v.Owner(p); from != c.From.Node || k.parts[p].phase == held {
			k.mu.Unlock()
			c.Fail(codeRefused, "the partition is not the asking node's")
			return
		}
		k.giveDebts(p)
	}
	k.mu.Unlock()
	k.done.Go(func() { k.giveBack(c, list) })
}

func (k *Keeper) giveBack(c *peer.Call, list []int) {
	var message, packed []byte
	send := func() error {
		ctx, cancel := context.WithTimeout(k.ctx, backTimeout)
		defer cancel()
		_, err := k.cfg.Calls.Call(ctx, c.From.Node, MethodBack, message)
		message = message[:0]
		return err
	}
	var err error
	for _, p := range list {
		err = k.cfg.Table.Copy(p, func(records []counters.Record) error {
			for len(records) > 0 {
				if len(message) == 0 {
					message = k.appendHeader(message, 0)
				}
				n := 0
				packed, n = pack(packed[:0], records, k.cfg.Now())
				message = appendSection(message, section{p: p}, n, packed)
				records = records[n:]
				if len(message) >= messageSize {
					if err := send(); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			break
		}
	}
	if err == nil && len(message) > 0 {
		err = send()
	}
	if err != nil {
		c.Fail(codeRefused, err.Error())
		return
	}
	c.Reply(nil)
}

// takeBack merges what a standby gives back with what the checkpoint had: the more used of both.
func (k *Keeper) takeBack(c *peer.Call, r *reader) {
	now := k.cfg.Now()
	for r.err == nil && len(r.b) > 0 {
		r.section(now, func(s section) bool {
			return phase(k.phases[s.p].Load()) == recovering
		}, func(rec counters.Record) { k.cfg.Table.Merge(now, rec) })
	}
	if r.err != nil {
		c.Fail(codeMalformed, r.err.Error())
		return
	}
	c.Reply(nil)
}

// dropOthers drops the counters of partitions that are neither this node's nor its to keep copies of.
func (k *Keeper) dropOthers() {
	k.mu.Lock()
	v := k.view.Load()
	if !k.drops || !v.member || v.From == nil || !v.Settled {
		k.mu.Unlock()
		return
	}
	k.drops = false
	var list []int
	for p := range k.parts {
		pt := &k.parts[p]
		owner, _ := v.Owner(p)
		if pt.phase != away || owner == k.cfg.Self || v.From.Standby(p) == k.cfg.Self {
			continue
		}
		list = append(list, p)
	}
	k.mu.Unlock()
	for _, p := range list {
		if !k.dropOther(v, p) {
			return // the next view asks for it again
		}
	}
}

// dropOther drops the counters of p, unless there is another view than v: then a copy of p may just be coming.
func (k *Keeper) dropOther(v *view, p int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.view.Load() != v {
		return false
	}
	k.parts[p].source, k.parts[p].whole = ring.NodeID{}, false
	k.cfg.Table.Drop(p)
	k.debts.replace(p)
	return true
}
