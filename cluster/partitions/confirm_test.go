package partitions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// confirmTaken takes one of key at its owner and confirms that.
func (f *fleet) confirmTaken(key int) (by *node, err error) {
	from := f.all()[key%len(f.all())]
	if !from.alive.Load() {
		return nil, errUndecided
	}
	by, allowed, err := f.take(from, keyOf(key))
	if err != nil || !allowed {
		return nil, errUndecided
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return by, by.keeper.Load().Confirm(ctx, ring.PartitionOf(keyOf(key).Subject))
}

// A confirmation pushes the change at once, and the standby has it.
func TestConfirmIsQuick(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		time.Sleep(time.Second) // let all copies become whole
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				began := time.Now()
				by, err := f.confirmTaken(i)
				if took := time.Since(began); err != nil || took > DefaultConfig().Interval/2 {
					t.Errorf("key %d: have %v after %v", i, err, took)
					return
				}
				p := ring.PartitionOf(keyOf(i).Subject)
				standby := f.byID(by.keeper.Load().Route(p).Standby)
				if used, _ := standby.table.Load().Usage(now(), keyOf(i), &limit); used != 1 {
					t.Errorf("key %d: the standby has %d, want 1", i, used)
				}
			})
		}
		wg.Wait()
		for _, n := range f.all() {
			if n.keeper.Load().mu.Lock(); len(n.keeper.Load().confirms) != 0 {
				t.Errorf("%d still wait", len(n.keeper.Load().confirms))
			}
			n.keeper.Load().mu.Unlock()
		}
	})
}

func (f *fleet) closeAll() {
	for _, n := range f.all() {
		n.close()
	}
}

// G8: no kill of a node, during any move, loses a confirmed change.
func TestG8_ConfirmedOutlivesItsOwner(t *testing.T) {
	for _, victim := range []int{0, 2} {
		onThreeNodes(t, func(t *testing.T, f *fleet) {
			d := f.add()
			f.bring(d)
			const keys = 100
			var confirmed [keys]atomic.Int64
			var failed atomic.Int64
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					for i := w; ; i += 4 {
						select {
						case <-stop:
							return
						case <-time.After(2 * time.Millisecond):
						}
						if _, err := f.confirmTaken(i % keys); err != nil {
							failed.Add(1)
						} else {
							confirmed[i%keys].Add(1)
						}
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			f.ring(f.nodes...) // partitions move to the fourth node while one of the other three dies
			time.Sleep(time.Duration(victim) * 20 * time.Millisecond)
			f.nodes[victim].kill()
			f.end(f.nodes[victim])
			time.Sleep(300 * time.Millisecond)
			close(stop)
			wg.Wait()
			total := int64(0)
			for i := range confirmed {
				total += confirmed[i].Load()
				if used := f.used(keyOf(i)); used < confirmed[i].Load() {
					t.Errorf("key %d: have %d used, %d were confirmed", i, used, confirmed[i].Load())
				}
			}
			if total < keys {
				t.Errorf("have %d confirmed, %d failed", total, failed.Load())
			}
		})
	}
}

// Without a standby, the disk confirms: a checkpoint that began after the
// change. Several confirmations may share it.
func TestConfirmAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.closeAll()
		var saves, saving atomic.Int64
		broken := errors.New("disk is full")
		var fails atomic.Bool
		f.save = func(ctx context.Context) error {
			if saving.Add(1) > 1 {
				t.Error("two checkpoints run at once")
			}
			defer saving.Add(-1)
			saves.Add(1)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
			if fails.Load() {
				return broken
			}
			return nil
		}
		n := f.add()
		f.bring(n)
		f.ring(n)
		f.settle()
		if !n.keeper.Load().CanConfirm(1) {
			t.Error("a node with a disk is not backed")
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				began := time.Now()
				if _, err := f.confirmTaken(i); err != nil {
					t.Errorf("have %v", err)
				}
				if took := time.Since(began); took < 50*time.Millisecond {
					t.Errorf("confirmed within %v, before the disk had it", took)
				}
			})
		}
		wg.Wait()
		if n := saves.Load(); n < 1 || n > 3 {
			t.Errorf("have %d checkpoints for 100 changes at once", n)
		}
		fails.Store(true)
		if _, err := f.confirmTaken(1); !errors.Is(err, broken) {
			t.Errorf("have %v, want %v", err, broken)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if err := n.keeper.Load().Confirm(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("have %v, want a deadline error", err)
		}
	})
}

// Nothing is confirmed if the standby can't be reached, if the token is
// elsewhere, or without a disk.
func TestNotConfirmed(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		time.Sleep(time.Second)
		n := f.nodes[0]
		p := 0
		for n.keeper.Load().Route(p).Location != Here {
			p++
		}
		if !n.keeper.Load().CanConfirm(p) {
			t.Error("not backed despite a standby")
		}
		if err := f.nodes[1].keeper.Load().Confirm(context.Background(), p); !errors.Is(err, ErrNotOwner) {
			t.Errorf("have %v, want ErrNotOwner", err)
		}
		f.byID(n.keeper.Load().Route(p).Standby).kill()
		f.eventually("the standby is missed", func() bool { return !n.keeper.Load().CanConfirm(p) })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		expect.ErrorIs(t, n.keeper.Load().Confirm(ctx, p), ErrUnconfirmed, "n.keeper.Load().Confirm(ctx, p)")
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.closeAll()
		n := f.add() // without a disk
		f.bring(n)
		f.ring(n)
		f.settle()
		err := n.keeper.Load().Confirm(context.Background(), 1)
		if !errors.Is(err, ErrUnconfirmed) || n.keeper.Load().CanConfirm(1) {
			t.Errorf("have %v, backed %v; want ErrUnconfirmed", err, n.keeper.Load().CanConfirm(1))
		}
	})
}

// goodNode is Calls to a node that can be reached, has no copies and takes every push.
type goodNode struct{}

func (goodNode) Go(_ ring.NodeID, m peer.Method, _ []byte, _ time.Duration, done func([]byte, error)) {
	var reply []byte
	if m == MethodPush {
		reply = appendPartitions(nil, nil)
	}
	go done(reply, nil)
}

func (goodNode) Call(context.Context, ring.NodeID, peer.Method, []byte) ([]byte, error) {
	return nil, nil
}

func (goodNode) Reachable(ring.NodeID) bool { return true }

// BenchmarkAwaitStandbys confirms debts of many partitions at once. The time for
// each must not grow with their number.
func BenchmarkAwaitStandbys(b *testing.B) {
	config := DefaultConfig()
	config.Self, config.Boot, config.Table, config.Now, config.Calls = idOf(0), 1, newTable(), now, goodNode{}
	config.Logger = slog.New(slog.DiscardHandler)
	k, err := Open(config)
	expect.NoError(b, err)
	defer k.Close()

	state := agreement.New()
	members := []agreement.Member{{ID: idOf(0), Name: "a", Address: "a"}, {ID: idOf(1), Name: "b", Address: "b"}}
	for i, e := range []agreement.Entry{
		agreement.RegisterProcess{Node: idOf(0), Boot: 1},
		agreement.RegisterProcess{Node: idOf(1), Boot: 2},
		agreement.Ring{Epoch: 1, Members: members, Settings: ring.DefaultSettings()},
	} {
		entry, err := agreement.ThisBuild.Encode(e)
		expect.NoError(b, err)
		state, _ = state.Apply(uint64(i+1), entry)
	}
	k.Adopt(state)

	var owned []int
	for p := range ring.Partitions {
		if state.To.Owner(p) == idOf(0) {
			owned = append(owned, p)
		}
	}
	for k.Stats().Owned < len(owned) || k.Stats().Uncopied > 0 {
		time.Sleep(time.Millisecond)
	}

	for n := 250; n <= len(owned); n *= 2 {
		b.Run(fmt.Sprintf("partitions=%d", n), func(b *testing.B) {
			for range b.N {
				debited, refused := map[int]bool{}, map[int]bool{}
				for _, p := range owned[:n] {
					debited[p] = true
				}
				k.awaitStandbys(debited, refused)
				expect.Equal(b, len(refused), 0, "refused partitions")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/partition")
		})
	}
}
