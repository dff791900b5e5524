package apitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// MemoryRules is an admin.RuleStore without persistence.
type MemoryRules struct {
	Limiter *limiter.Limiter
	Fail    atomic.Pointer[error] // what writes return, if not nil
	Failed  atomic.Int64          // how many times writes have failed because of Fail
	Writing func()                // called during each write, if not nil; set before the first one

	mu      sync.Mutex // guards the fields below
	docs    []*document.Document
	entries *entries.State
}

// Write makes a change.
func (r *MemoryRules) Write(_ context.Context, c document.Change, o cluster.WriteOptions) (int64, error) {
	if err := r.Fail.Load(); err != nil {
		r.Failed.Add(1)
		return 0, *err
	}

	if r.Writing != nil {
		r.Writing()
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if o.IfMatch != 0 && o.IfMatch != int64(len(r.docs)) {
		return 0, fmt.Errorf("write rules: %w", rules.ErrConflict)
	}

	doc, err := r.docs[len(r.docs)-1].Apply(c)
	if err != nil {
		return 0, fmt.Errorf("write rules: %w", err)
	}

	return r.Use(doc)
}

// Use puts a document in force.
func (r *MemoryRules) Use(doc *document.Document) (int64, error) {
	set, err := rules.Compile(doc, int64(len(r.docs)+1))
	if err != nil {
		return 0, err
	}
	r.docs = append(r.docs, doc)
	r.Limiter.SetRules(set)
	return set.Version, nil
}

// WriteEntries makes changes of entries, as an admin.EntryStore does.
func (r *MemoryRules) WriteEntries(_ context.Context, changes []cluster.EntryChange) (int64, *entries.Entry, error) {
	if err := r.Fail.Load(); err != nil {
		r.Failed.Add(1)
		return 0, nil, *err
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	next := r.entries
	if next == nil {
		next = entries.New()
	}

	now := time.Now().UnixMilli()
	for i := range changes {
		after, err := next.With(changes[i].Stamped(now))
		if err != nil {
			return 0, nil, fmt.Errorf("write entries: %w", err)
		}
		next = after
	}

	r.entries = next
	r.Limiter.SetEntries(next)

	record := next.RecordAt(next.Version())
	if record == nil {
		return next.Version(), nil, nil
	}
	return next.Version(), cmp.Or(record.After, record.Before), nil
}

// Versions lists the versions.
func (r *MemoryRules) Versions() []rules.Version {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []rules.Version
	for i := len(r.docs); i > 0; i-- {
		list = append(list,
			rules.Version{Number: int64(i), When: time.Unix(0, 0).UTC(), By: "test", What: "all",
				Size: 1, Applied: int64(i)})
	}
	return list
}

// Version returns a version.
func (r *MemoryRules) Version(n int64) (*document.Document, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < 1 || n > int64(len(r.docs)) {
		return nil, fmt.Errorf("look for version %d: %w", n, document.ErrNotFound)
	}
	return r.docs[n-1], nil
}

// Alone is an admin.Cluster of a single node.
type Alone struct {
	Name, Address, Region, Zone string
	ID                          ring.NodeID
}

// View returns a cluster of one member, which owns everything.
func (a Alone) View() admin.ClusterView {
	return admin.ClusterView{
		Epoch:   1,
		Settled: true,
		View:    "connected",
		Leader:  a.Name,
		Members: []admin.Member{{
			Member: cluster.Member{
				Name: a.Name, ID: a.ID, Address: a.Address, Region: a.Region, Zone: a.Zone,
				Voter: true, Leader: true, InRing: true, Partitions: ring.Partitions,
			},
			Reachable: true,
		}},
		Regions: []admin.Region{{Name: a.Region, Primary: true, Reachable: true, Members: 1}},
	}
}

// Owner always returns this node.
func (a Alone) Owner(int) (owner, standby string, epoch int64) { return a.Name, "", 1 }

// Members is a fake admin.Membership.
type Members struct{ left atomic.Int64 }

// Leave succeeds with force, and the first time. The second time the node is
// the only member, and after that there is no leader.
func (m *Members) Leave(ctx context.Context, force bool, _ string) (last bool, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return false, errors.New("the context has no deadline")
	}
	if force {
		return true, nil
	}

	switch m.left.Add(1) {
	case 1:
		return false, nil
	case 2:
		return true, fmt.Errorf("leave: %w", admin.ErrOnlyMember)
	}

	return false, fmt.Errorf("leave: %w", cluster.ErrLeaderUnavailable)
}

// Remove succeeds for the name "gone", and with force for "there".
func (m *Members) Remove(_ context.Context, name string, force bool, _ string) error {
	switch name {
	case "gone":
		return nil
	case "there":
		if force {
			return nil
		}
		return fmt.Errorf("remove: %w", cluster.ErrRefused)
	}
	return fmt.Errorf("remove: %w", cluster.ErrNotFound)
}

// Levels is an admin.Levels whose only member knows level 3.
type Levels struct{}

// Levels returns fixed levels.
func (Levels) Levels() cluster.Levels {
	return cluster.Levels{Agreed: 2, Highest: 3,
		Members: []cluster.MemberLevel{{Name: "n1", ID: ring.NodeID{7}, Knows: 3, Release: "v3", Zones: "2031a"}}}
}

// Raise refuses levels above 3.
func (Levels) Raise(_ context.Context, to cluster.Level) (cluster.Level, error) {
	if to > 3 {
		return 0, fmt.Errorf("raise: %w", cluster.ErrRefused)
	}
	return 3, nil
}

// NoRegions is an admin.RegionRemover that knows no other region.
type NoRegions struct{}

// RemoveRegion returns an error that wraps cluster.ErrNotFound.
func (NoRegions) RemoveRegion(_ context.Context, name string) (int64, error) {
	return 0, fmt.Errorf("%w: region %q", cluster.ErrNotFound, name)
}
